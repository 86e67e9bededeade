"""Releases as galleries: tiles by class, tabs, cards, comparison, and accuracy by budget."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obscura.wire.words import ReleaseKind
from service import ledger
from service.dashboard.releases import CLASSES_A_PAGE, GalleryPlace
from service.db.access_tables import DEFAULT_PROJECT
from service.db.dataset_tables import Dataset
from service.db.job_tables import Release
from service.identity import projects
from service.storage.interface import key_of
from tests.service.dashboard.conftest import ORIGIN, assert_shown, forms_of, submit, token_in
from tests.service.steps import raise_limit


def numbers(html: str) -> list[int]:
    """The images whose tiles a page shows, in order."""
    return [
        int(number) for number in re.findall(r'<img src="/releases/\w+/images/(\d+)\.png"[^>]* loading="lazy"', html)
    ]


def test_tiles_are_grouped_by_class_with_the_accuracy_of_each(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    first, second, third = classes = site.row(Dataset, stock.dataset).classes
    html = client.get(page).text
    assert numbers(html) == [label + 3 * place for label in range(3) for place in range(40)]
    assert html.count("accuracy not measured") == 3
    by_class = {"accuracy": {"cnn": 0.75}, "accuracy_by_class": dict(zip(classes, (0.9, 0.5, 0.25), strict=True))}
    site.change(Release, stock.release, summary=by_class)
    shown = [" ".join(each.split()) for each in re.findall(r'<h3 class="class-name">(.*?)<', client.get(page).text)]
    assert shown == [first, second, third]
    assert re.findall(r'class="under">([\d.]+% accuracy)<', client.get(page).text) == [
        "90% accuracy",
        "50% accuracy",
        "25% accuracy",
    ]


def test_links_lead_through_all_images_and_end_with_generating_more(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    for start, expected in (("", set(range(140))), ("?label=2", set(range(2, 140, 3)))):
        seen, address = [], page + start
        while address:
            html = client.get(address).text
            seen += numbers(html)
            following = re.search(r'<a href="(\?[^"]*)" data-next>', html)
            address = page + following[1].replace("&amp;", "&") if following else ""
        assert (len(seen), set(seen)) == (len(expected), expected)
        assert_shown(html, "All 140 stored images are shown", f'href="{page}/use#draw-title"')
    assert client.get(f"{page}?label=3").status_code == 404
    assert client.get(f"{page}?page=-1").status_code == 422


@given(count=st.integers(1, 3000), classes=st.integers(1, 300))
def test_pages_show_every_image_once_and_stay_small(count, classes):
    seen, page, more = [], 0, True
    while more:
        groups, more = GalleryPlace(page=page).groups(count, classes)
        shown = [number for _, images in groups for number in images]
        assert len(groups) <= CLASSES_A_PAGE
        assert 0 < len(shown) <= 300
        assert all(number % classes == label for label, images in groups for number in images)
        seen += shown
        page += 1
    assert sorted(seen) == list(range(count))


def test_an_image_is_enlarged_without_a_script(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    assert '<dialog class="zoom" aria-label="Enlarged image">' in client.get(page).text
    html = client.get(f"{page}?page=0&image=4").text
    dialog = re.search(r"<dialog([^>]*)>(.*?)</dialog>", html, re.DOTALL)
    assert dialog is not None
    assert "open" in dialog[1]
    assert_shown(dialog[2], f'src="{page}/images/4.png"', "?page=0&image=1", "?page=0&image=7", ">Close<")


def test_images_are_cached_forever_and_stored_ones_downloaded_at_once(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    folder = site.settings.data_dir / key_of(stock.release)
    image = client.get(f"{page}/images/5.png")
    assert (image.headers["content-type"], image.headers["cache-control"]) == (
        "image/png",
        "private, max-age=31536000, immutable",
    )
    assert image.content.startswith(b"\x89PNG")
    assert image.content in (folder / "images.zip").read_bytes()
    assert client.get(f"{page}/images/5.png", headers={"If-None-Match": image.headers["etag"]}).status_code == 304
    for number, status in (("140", 404), ("-1", 422), ("x", 422)):
        assert client.get(f"{page}/images/{number}.png").status_code == status
    assert f'href="{page}/files/images.zip">Download 140 images' in client.get(page).text
    stored = client.get(f"{page}/files/images.zip")
    assert stored.content == (folder / "images.zip").read_bytes()
    assert stored.headers["content-disposition"] == f'attachment; filename="{stock.release}-images.zip"'


def test_a_link_in_the_place_of_stored_images_is_not_followed(site, stock):
    folder = site.settings.data_dir / key_of(stock.release)
    (folder / "images.zip").rename(site.settings.data_dir / "elsewhere.zip")
    (folder / "images.zip").symlink_to(site.settings.data_dir / "elsewhere.zip")
    assert site.client().get(f"/releases/{stock.release}/images/0.png").status_code == 404


@pytest.mark.parametrize(
    ("kind", "first", "hidden"),
    [("classifier", "Classifier", []), ("histogram", "Counts", ["usefulness"])],
)
def test_each_kind_has_its_tabs(site, stock, kind, first, hidden):
    client, page = site.client(), f"/releases/{stock.release}"
    counts = {"classes": ["a", "b", "c"], "counts": [1, 2, 3], "noisy_counts": [1, 2, 3], "standard_error": 4.5}
    site.change(Release, stock.release, kind=ReleaseKind(kind), summary={"histogram": counts, "accuracy": {}})
    html = client.get(page).text
    tabs = re.findall(r'<a href="(/releases/\w+(?:/\w+)?)"[^>]*>([^<]+)</a>', html.split('class="tabs"')[1])
    assert tabs[0] == (page, first)
    for name in ("usefulness", "guarantee", "use", "share", "nothing"):
        status = 404 if name in (*hidden, "nothing") else 200
        assert client.get(f"{page}/{name}").status_code == status, name


def test_cards_show_tiles_epsilon_and_accuracy(site, stock):
    for address in ("/", "/releases", f"/accounts/{stock.account}"):
        card = site.client().get(address).text.split(f'id="card-{stock.release}"')[1].split("</li>")[0]
        assert f'src="/releases/{stock.release}/tiles.png"' in card
        assert re.findall(r'class="chip">([^<]+)<', card) == ["ε 1.0", "76.4% accuracy"]
    site.change(Release, stock.release, summary={})
    assert "accuracy not measured" in site.client().get("/releases").text


def test_results_are_compared_before_classes_and_the_options_that_differ(site, stock):
    job = site.add_job(stock.account, stock.dataset, epsilon=0.2, state="succeeded", options={"teachers": 70})
    other = site.add_release(job, name="second")
    for release, value in ((stock.release, 0.9), (other, 0.4)):
        site.change(Release, release, summary={"accuracy": {"cnn": value}, "accuracy_by_class": {"cat": value}})
    html = site.client().get(f"/compare?release={stock.release}&release={other}").text
    places = [html.index(each) for each in ("results-title", "90%", "classes-title", 'width="40.0%"', "options-title")]
    assert places == sorted(places)
    assert html.index("options-title") < html.index("<code>teachers</code>")
    assert "<code>" not in site.client().get(f"/compare?release={other}").text, "nothing differs from itself"


def test_accuracy_is_charted_over_the_share_of_the_budget_for_all_releases_of_a_dataset(
    site, stock, open_account, declare_dataset
):
    cheap = site.add_release(site.add_job(stock.account, stock.dataset, epsilon=0.2, state="succeeded"), name="cheaper")
    unmeasured = site.add_release(
        site.add_job(stock.account, stock.dataset, epsilon=0.1, state="succeeded"), name="unmeasured"
    )
    site.change(Release, unmeasured, summary={})
    account = open_account(site.factory, name="others")
    foreign = declare_dataset(site.factory, account_id=account, name="others")
    site.add_release(site.add_job(account, foreign, epsilon=0.2, state="succeeded"), name="foreign")
    for address in (f"/releases/{stock.release}/usefulness", f"/datasets/{stock.dataset}"):
        html = site.client().get(address).text
        dots = re.findall(r'class="dot" cx="([\d.]+)"[^>]*><title>ε ([\d.]+)', html)
        assert len(dots) == 2
        assert_shown(html, "cheaper", "unmeasured", 'data-label="Budget"')
        assert "foreign" not in html
    rows = re.findall(r"<tr role=\"row\"><th scope=\"row\".*?</tr>", html)
    (row,) = [each for each in rows if f"/releases/{cheap}" in each]
    cost, capacity = site.hold_of(site.row(Release, cheap).job_id).captured_nano, site.balance(stock.account)
    share = float(re.search(r'data-label="Budget" class="n">([\d.]+)%', row)[1])
    assert share == pytest.approx(100 * cost / capacity.capacity_nano, abs=0.1)


def test_a_release_is_shared_with_a_project_by_its_name(site, stock):
    admin, page = site.signed_in("admin"), f"/releases/{stock.release}"
    call = f"POST /v1{page}/shares"
    html = admin.get(f"{page}/share").text
    assert forms_of(html).keys() == {call}
    assert 'placeholder="prj_..."' in html, "there is no other project"
    assert "POST" not in site.client().get(f"{page}/share").text
    assert submit(admin, f"{page}/share", call, reason="for teaching").status_code == 201
    heart = site.do(projects.create, name="heart", now=site.now).id
    assert admin.get(f"{page}/share").status_code == 404, "a second project hides releases from the installation"
    fields = {"token": token_in(admin.get("/").text), "project": DEFAULT_PROJECT}
    assert admin.post("/view", data=fields, headers=ORIGIN).status_code == 303
    html = admin.get(f"{page}/share").text
    assert f'<option value="{heart}">heart</option></select>' in html


def test_a_training_is_named_by_its_dataset_recipe_and_epsilon_and_shows_its_three_steps(site, stock):
    names = {stock.running: "ε 2", stock.queued: "ε 0.5", stock.done: "ε 1"}
    steps = {stock.running: "Training", stock.queued: "Queued", stock.done: None}
    for job_id, epsilon in names.items():
        html = site.client().get(f"/jobs/{job_id}").text
        name = site.row(Dataset, stock.dataset).name
        assert f"<h1>{name} · datalens · {epsilon}</h1>" in html
        timeline = re.search(r'<ol class="timeline">(.*?)</ol>', html, re.DOTALL)
        assert timeline is not None
        assert re.findall(r"<li[^>]*>(\w+)", timeline[1]) == ["Queued", "Training", "Published"]
        current = re.search(r'aria-current="step">(\w+)', timeline[1])
        assert (current and current[1]) == steps[job_id]
        assert ("about 4 min left" in timeline[1]) == (job_id == stock.running)
    failed = site.add_job(stock.account, stock.dataset, epsilon=0.1, state="failed", failure_code="internal")
    assert "Failed</li>" in site.client().get(f"/jobs/{failed}").text


def test_the_report_states_the_limit_of_the_account_at_publication(site, stock):
    """Not the limit that priced the training, or a later one."""
    job = site.add_job(stock.account, stock.dataset, epsilon=0.5, state="running")
    site.do(raise_limit, stock.account, 20.0, site.now)
    paid = {"hold_id": site.hold_of(job).id, "attempt": 1, "artifact_sha256": "ab" * 32, "reason": "published"}
    site.do(ledger.capture, **paid, now=site.now)
    capacity_nano = site.balance(stock.account).capacity_nano
    release = site.add_release(job, name="raised")
    site.do(raise_limit, stock.account, 30.0, site.now)
    client = site.signed_in("read")
    assert_shown(client.get(f"/releases/{release}/report").text, "ε 20.0, same δ, by its limit at publication")
    data = client.get(f"/releases/{release}/files/report.json").json()["release"]
    assert data["account_nano"] == capacity_nano
    assert data["account_spent_nano"] == site.balance(stock.account).spent_nano
