"""The plan page: what to expect before anything is spent, and a slider from nothing to all that is left."""

import html
import re

import pytest

from obscura.wire.wording import show_epsilon
from service import ledger
from service.dashboard.charts import LEFT, RIGHT, WIDTH
from service.db.base import new_id
from service.db.ledger_tables import Account
from tests.browser import CHROMIUM, WINDOWS, a_page, barriers, served, sign_in
from tests.service.dashboard.conftest import assert_shown
from tests.service.steps import hold_amount

TEN = tuple("0123456789")


@pytest.fixture
def planned(site, open_account, declare_dataset) -> tuple[str, str]:
    """An account with a limit of 12, and 1,437 declared grey images of ten classes."""
    account = open_account(site.factory, epsilon=12.0, delta=1e-5)
    facts = {"classes": list(TEN), "height": 28, "width": 28, "channels": 1, "records_declared": 1437}
    return account, declare_dataset(site.factory, account_id=account, **facts)


@pytest.mark.parametrize(
    ("epsilon", "band", "next_step"),
    [
        ("0.05", "noise", r"For outlines: epsilon 0\.2\d+, or about 6,900 records"),
        ("1", "outlines", r"For recognisable shapes: epsilon 8\.\d+, or about 9,400 records"),
        ("10", "shapes", r"For detail: about 7,600 records"),
    ],
)
def test_a_plan_shows_what_to_expect_with_an_example_and_the_next_step(site, planned, epsilon, band, next_step):
    client = site.signed_in("train", "read")
    page = html.unescape(client.get(f"/train?dataset={planned[1]}&epsilon={epsilon}").text)
    asked = {"dataset_id": planned[1], "recipe": "moments", "epsilon": float(epsilon)}
    key = {"Authorization": f"Bearer {site.key('read')}"}
    expected = site.client().post("/v1/plans", json=asked, headers=key).json()["expectation"]
    assert (expected["band"], expected["recognisable"]) == (band, band == "shapes")
    assert_shown(page, *expected["summary"], f'src="/static/{band}_grey.png')
    assert re.search(next_step, expected["summary"][-1])
    image = client.get(expected["example"])
    assert image.headers["content-type"] == "image/png"
    assert len(image.content) < 10_000
    assert page.index("What to expect") < page.index(">Cost<") < page.index("Train for ε")


def test_the_chart_has_the_bands_of_the_budget_and_the_measured_accuracies(site, planned):
    client = site.signed_in("train", "read")
    chart = re.search(r'<svg class="chart".*?</svg>', client.get(f"/train?dataset={planned[1]}").text, re.DOTALL)
    zones = [
        (float(x), float(width))
        for x, width in re.findall(r'class="zone[^>]* x="([\d.]+)".*?width="([\d.]+)"', chart[0])
    ]
    assert "Detail: noise, then outlines, then shapes." in chart[0]
    assert zones[0][0] == LEFT
    assert [x for x, _ in zones[1:]] == pytest.approx([x + width for x, width in zones[:-1]], abs=0.2)
    assert sum(width for _, width in zones) == pytest.approx(WIDTH - RIGHT - LEFT, abs=0.5)
    assert re.search(r'class="area" d="M[\d.]+ [\d.]+ L', chart[0])
    assert re.findall(r"([\d.]+)%, ε ([\d.]+)</text>", chart[0])[-1] == ("100", "12.0")
    counts = client.get(f"/train?dataset={planned[1]}&recipe=class_histogram").text
    assert 'class="chart"' not in counts
    assert_shown(counts, "This recipe publishes counts, not images.")


@pytest.mark.parametrize("spent", [False, True])
def test_the_slider_goes_from_nothing_to_all_that_is_left(site, planned, spent):
    account, dataset = planned
    if spent:
        amount_nano = site.balance(account).left_nano // 3
        site.do(hold_amount, account_id=account, job_id=new_id("job"), amount_nano=amount_nano, now=site.now)
    row = site.row(Account, account)
    steps = re.search(r'data-steps="([^"]+)"', site.client().get(f"/train/price?dataset={dataset}").text)
    epsilons, shares = zip(*(each.split(":") for each in steps[1].split()), strict=True)
    assert len(epsilons) == 100
    assert [*map(float, epsilons)] == sorted(map(float, epsilons))
    left = row.left_nano / ledger.filter_of(row).capacity_nano
    assert float(shares[-1].strip("%")) == pytest.approx(100 * left, abs=0.5)
    half = ledger.filter_of(row).epsilon_of(row.left_nano // 2)
    assert epsilons[49] == show_epsilon(half, up=None), "rounded, not truncated"
    for step in (0, 32, 65, 99):  # the slider's text while it moves is the text of the cost
        page = site.signed_in("train", "read").get(f"/train?dataset={dataset}&epsilon={epsilons[step]}").text
        assert_shown(page, f'data-cost="{shares[step]} of the lifetime budget, ε {epsilons[step]}"', "Train for ε")
    marks = re.findall(r"([\d.]+)%, ε ([\d.]+)</text>", page)
    assert marks[0][1] == show_epsilon(ledger.filter_of(row).epsilon_of(row.left_nano // 3), up=None)
    assert marks[-1][1] == epsilons[-1]
    assert_shown(page, 'id="confirmed" type="checkbox" required')


@pytest.mark.parametrize(
    ("epsilon", "reach"), [("1", r"0\.\d+ to ε 8\.\d+"), ("7", r"0\.\d+ to ε 8\.\d+"), ("10", "8.+ to ε 12.0")]
)
def test_one_example_stands_for_a_whole_band(site, planned, epsilon, reach):
    page = site.client().get(f"/train?dataset={planned[1]}&epsilon={epsilon}").text
    band = "Shapes" if epsilon == "10" else "Outlines"
    assert re.search(f"stands for the whole band “{band}”, from ε {reach}. None of your images", page)


def test_the_expected_number_is_for_the_forecast_alone(site, planned):
    client, asked = site.signed_in("train", "read"), f"/train?dataset={planned[1]}&epsilon=10"
    assert_shown(client.get(asked).text, "This assumes the limit of 1,437 records", "Expect shapes")
    page = client.get(f"{asked}&expected_units=900").text
    assert_shown(page, "This assumes 900 records, as you stated for this forecast.", "Expect blurred outlines")
    assert "Expect shapes" not in page
    assert "expected" not in re.search('data-call="POST /v1/jobs".*?>', page)[0]
    order = {"dataset_id": planned[1], "epsilon": 10.0, "expected_units": 900}
    key = {"Authorization": f"Bearer {site.key('read')}"}
    assert site.client().post("/v1/plans", json=order, headers=key).json()["expectation"]["band"] == "outlines"
    refused = site.client().post("/v1/plans", json=order | {"expected_units": 2000}, headers=key)
    assert (refused.status_code, "limit is 1,437 records" in refused.text) == (422, True)
    page = client.get(f"{asked}&expected_units=2000").text
    assert_shown(page, "limit is 1,437 records: expect at most as many", 'data-wrong="expected_units"')


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM.exists(), reason="headless Chromium is missing")
def test_the_slider_moves_the_cost_and_what_to_expect(site, planned, browser):
    with served(site.app) as address, a_page(browser, base_url=address) as (page, said):
        sign_in(page, site.key("train", "read"))
        page.goto(f"/train?dataset={planned[1]}")
        slider, shown, epsilon = page.get_by_label("Budget to spend"), page.locator("output"), page.locator("#epsilon")
        page.get_by_text("Expect blurred outlines").first.wait_for()
        first = epsilon.input_value()
        assert re.fullmatch(rf"[\d.]+% of the lifetime budget, ε {first}(\.0)?", shown.inner_text())
        slider.press("End")
        page.locator(".expect").get_by_text("Expect shapes").wait_for()
        assert (epsilon.input_value(), slider.get_attribute("aria-valuetext")) == ("12.0", shown.inner_text())
        assert page.locator('.expect img[src*="shapes_grey"]').evaluate("image => image.naturalWidth") == 168
        assert page.get_by_role("status").get_by_text("Expect shapes").count() == 1
        page.get_by_label("Yes, spend").wait_for()
        page.fill("#epsilon", "0.05")
        page.locator(".expect").get_by_text("Lost in the noise").wait_for()
        assert slider.input_value() == "1"
        found = {}
        for group in page.locator(".groups summary").all():
            group.click()
        for width, scheme in WINDOWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            found[width, scheme] = (
                barriers(page),
                page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0,
            )
    assert set(map(str, found.values())) == {"([], False)"}, found
    assert said == []
