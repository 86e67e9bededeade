"""Following, narrowing and comparing: event streams, filters, releases side by side, charts, folded entries."""

import re
from dataclasses import replace

import pytest

from obscura.wire.words import DatasetState, JobState
from service.dashboard.charts import Point, accuracy_chart
from service.dashboard.forms import SEARCHED_MAX, Filters
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sweep
from service.views import sweeps
from tests.service.dashboard.conftest import assert_shown


def test_a_jobs_page_is_told_of_its_events_until_the_last(site, stock):
    client = site.client()
    assert f'data-events="/jobs/{stock.running}/events"' in client.get(f"/jobs/{stock.running}").text
    assert "data-events" not in client.get(f"/jobs/{stock.done}").text
    with client.stream("GET", f"/jobs/{stock.running}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        first = next(line for line in lines if line.startswith("event:"))
        ended = {"state": JobState.SUCCEEDED, "lease_until": None, "finished_at": site.now}
        site.change(Job, stock.running, **ended, progress_version=1)
        last = next(line for line in lines if line.startswith("event:"))
    assert (first, last) == ("event: progress", "event: finished")
    ended = client.get(f"/jobs/{stock.done}/events")
    seen = re.search(r"^id: (\S+)$", ended.text, flags=re.MULTILINE)
    assert seen is not None
    assert client.get(f"/jobs/{stock.done}/events", headers={"Last-Event-ID": seen[1]}).status_code == 204
    assert client.get("/jobs/job_x/events").status_code == 404
    assert site.app.state.service.streams._taken.total() == 0


def test_lists_are_narrowed_and_keep_their_filters_from_page_to_page(site, stock, open_account, declare_dataset):
    client, other = site.client(), open_account(site.factory, name="other people")
    mine = declare_dataset(site.factory, account_id=other, name="100%_owls")
    waits = declare_dataset(site.factory, account_id=other, state=DatasetState.DECLARED)

    def shown(address: str) -> set[str]:
        return set(re.findall(r'id="(?:row|card)-(\w+)"', client.get(address).text))

    assert shown("/datasets") == {stock.dataset, mine, waits}
    assert shown("/datasets?q=OWL") == shown("/datasets?q=0%25_o") == {mine}
    assert shown(f"/datasets?q={waits}") == shown("/datasets?state=declared") == {waits}
    assert shown(f"/datasets?account={other}&state=ready") == {mine}
    assert shown("/jobs?state=running") == {stock.running}
    assert shown("/jobs?state=succeeded&recipe=datalens") == shown("/jobs?state=succeeded")
    assert shown("/jobs?recipe=dpgan") == shown(f"/jobs?account={other}") == set()
    assert shown(f"/releases?account={stock.account}") == shown("/releases?q=first") == {stock.release}
    assert shown("/releases?q=owl") == set()
    assert "Nothing matches these filters" in client.get("/releases?q=owl").text
    assert client.get("/jobs?state=asleep").status_code == 422
    values = site.do(Filters(q="a b", state="ready").template_values, "/datasets")
    assert values["list_path"] == "/datasets?q=a+b&state=ready"
    (condition,) = site.do(Filters(q="x").conditions, Dataset, ("q",))
    statement = str(condition.compile(compile_kwargs={"literal_binds": True}))
    assert f"LIMIT {SEARCHED_MAX}" in statement, "a search reads a bounded part of the table"


def test_releases_stand_side_by_side_with_the_chance_level(site, stock):
    client, page = site.client(), "/compare"
    site.change(Job, stock.done, options={"teachers": 250})
    other = site.add_release(
        site.add_job(stock.account, stock.dataset, epsilon=0.2, state="succeeded", options={"teachers": 70}),
        name="second",
    )
    site.change(Release, other, summary={"accuracy": {"cnn": 0.5, "mlp": 0.25}})
    text = client.get(f"{page}?release={stock.release}&release={other}").text
    assert_shown(text, "second", "76.4%", "50%", "chance 33.3%", "<code>teachers</code>", ">250<", ">70<", "DataLens")
    assert "teacher_steps" not in text, "only what differs is shown"
    unticked = client.get(page)
    assert unticked.status_code == 422
    assert_shown(unticked.text, "You ticked 0 releases to compare. Go back and tick two to 4.")
    assert client.get(f"{page}?release=rel_x").status_code == 404
    five = "&".join(f"release={stock.release}" for _ in range(5))
    assert client.get(f"{page}?{five}").status_code == 422
    assert f'value="{other}"' in client.get("/releases").text


def test_a_release_says_how_to_use_it(site, stock):
    shown = site.client().get(f"/releases/{stock.release}/use").text
    assert_shown(shown, f"obscura download {stock.release}", "load_dataset", "ImageFolder", "Idempotency-Key")
    assert f"http://127.0.0.1:8420/v1/releases/{stock.release}/samples" in shown


@pytest.mark.parametrize(("address", "status"), [("/nothing", 404), ("/jobs/x/y/z", 404), ("/logout", 405)])
def test_an_unknown_address_is_a_page_for_browsers_alone(site, address, status):
    browser = site.client().get(address, headers={"Accept": "text/html,*/*"})
    assert browser.status_code == status
    assert "</html>" in browser.text
    assert browser.headers["content-security-policy"].startswith("default-src 'none'")
    assert site.client().get(address).headers["content-type"] == "application/problem+json"
    assert site.client().get("/v1/nothing", headers={"Accept": "text/html"}).json()["code"] == "not_found"


def test_a_chart_has_a_dot_for_each_measured_training():
    chart = accuracy_chart([Point(1.0, 0.5, 1.0), Point(2.0, 1.0, 2.0, is_best=True)], classes=4)
    (x_one, y_one, one, _), (x_two, y_two, two, _) = chart.dots
    assert (one.is_best, two.is_best) == (False, True)
    assert x_two - chart.left == pytest.approx(2 * (x_one - chart.left), abs=0.2)
    assert chart.bottom - y_two == pytest.approx(2 * (chart.bottom - y_one), abs=0.2)
    assert chart.bottom - chart.chance == pytest.approx((chart.bottom - y_two) / 4, abs=0.2)
    assert replace(chart).percents[0] == (0, chart.bottom)
    assert accuracy_chart([], classes=4) is None
    crowded = accuracy_chart([Point(cost, 0.5, cost) for cost in (1.0, 1.1, 3.0)], classes=4)
    assert [has_room for *_, has_room in crowded.dots] == [True, False, True]


def test_the_reference_is_served_from_here_alone(site):
    client = site.client()
    page = client.get("/reference")
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert all(address.startswith("/") for address in addresses)
    assert "unsafe" not in page.headers["content-security-policy"]
    for address in addresses:
        if address not in ("/", "/v1/openapi.json"):
            assert client.get(address).status_code == 200, address
    assert client.get("/reference/index.html").status_code == 404


def test_the_page_marks_the_trial_that_the_record_names_as_the_best(site, stock):
    """Two trials are equally good: there is one answer to which is best, and the API and the page give it."""
    other = site.add_job(stock.account, stock.dataset, epsilon=0.1, state="succeeded")
    site.add_release(other, name="second")
    sweep_id = site.add_sweep(stock.done, other)
    (record,) = site.do(sweeps.records, [site.row(Sweep, sweep_id)])
    rows = site.client().get(f"/sweeps/{record.id}").text.split("<tr ")
    assert record.best_job_id in (stock.done, other)
    assert [record.best_job_id in row for row in rows if "best so far" in row] == [True]
