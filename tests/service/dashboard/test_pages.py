"""The dashboard's pages: what they show, what they never show, and how they are built."""

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from PIL import Image
from sqlalchemy.orm import Session

from obscura.wire import wording
from obscura.wire.words import EarlyEnd, HoldState, JobState
from scripts import images
from service import ledger
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Evaluation, Job, Release, Sample
from service.db.ledger_tables import EVERYWHERE, Account, ArmingStop
from service.storage.interface import key_of
from tests.service.dashboard.conftest import ORIGIN, assert_shown, forms_of, submit, token_of

BLOCKS = frozenset({"dt", "dd", "th", "td", "p", "li", "div", "span"})
VOID = frozenset({"meta", "link", "img", "input", "br", "wbr", "hr"})


class Page(HTMLParser):
    """A page's elements, checked for balance on the way."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " if tag in BLOCKS else ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def words_of(html: str) -> str:
    return " ".join(Page(html).text.split())


def test_the_overview_shows_limit_spent_held_and_left(site, stock):
    html = site.client().get("/").text
    words = words_of(html)
    assert_shown(words, "patients", "An attacker’s 50% becomes at most 99.99%", "ε 8.0", "δ 10⁻⁵")
    assert re.search(r"[\d.]+% left · ε [\d.]+", words)
    assert words.count("add up?") == 1
    bar = next(svg for svg in Page(html).all("svg") if svg.get("role") == "img")
    parts = r"[\d.]+% spent, [\d.]+% reserved, [\d.]+% left of the lifetime budget"
    assert re.fullmatch(parts, bar["aria-label"] or "nothing")


def test_the_three_segments_of_a_bar_differ_by_pattern(site, stock):
    assert_shown(site.client().get("/parts/budgets").text, 'fill="url(#stripes)"', 'fill="url(#dots)"')
    assert_shown(site.client().get("/").text, '<pattern id="stripes"', '<pattern id="dots"')


def test_jobs_show_their_progress_and_nothing_measured(site, stock):
    shown = words_of(site.client().get(f"/jobs/{stock.running}").text)
    progress = "Teacher votes, 612 of 1,450 steps (42.2%) · about 4 min left"
    assert_shown(shown, progress, "Reserved, data in use, 50% paid", "Teachers 4,000", "a remark")
    assert "Waiting for a worker" in words_of(site.client().get(f"/jobs/{stock.queued}").text)
    site.do(Session.add, ArmingStop(scope=EVERYWHERE, code="hash_mismatch", found_at=datetime.now(UTC)))
    shown = words_of(site.client().get(f"/jobs/{stock.queued}").text)
    assert_shown(shown, "a check of the ledger found `hash_mismatch`")


def test_an_account_shows_its_holds_datasets_and_chained_entries(site, stock):
    parts = ("", "/data", "/jobs", "/ledger")
    shown = " ".join(words_of(site.client().get(f"/accounts/{stock.account}{part}").text) for part in parts)
    assert_shown(shown, "60,000", "28 × 28 × 1", "Reserved, data not opened yet", "datalens · ε 2")
    assert "Charged in advance: Votes" in shown
    newest = site.row(Account, stock.account).head_hash
    assert f'data-copy="{newest}"' in site.client().get(f"/accounts/{stock.account}/ledger").text


def test_the_ledger_is_read_in_pages(site, stock):
    for number in range(70):
        change = {"frozen": number % 2 == 0, "reason": "a test"}
        site.do(ledger.limits.set_frozen, account_id=stock.account, **change, now=site.now)
    page = f"/accounts/{stock.account}/ledger"
    client, seen, address = site.client(), [], page
    while address:
        html = client.get(address).text
        seen += [int(number) for number in re.findall(r'data-copy-name="Copy SHA-256 of entry (\d+)"', html)]
        older = re.search(r'href="([^"]+\?before=\d+)">Older', html)
        address = older[1] if older else ""
    assert sorted(seen) == list(range(1, site.row(Account, stock.account).head_sequence + 1))
    assert len(seen) > 70
    assert "Newest entries" in client.get(f"{page}?before=20").text
    assert client.get(f"{page}?before=0").status_code == 422


def test_a_release_shows_its_guarantee_grid_and_downloads(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    shown = words_of(client.get(page).text)
    assert_shown(shown, "of the lifetime budget", "76.4% accuracy", "ε 1.0")
    assert "99.99%" not in shown, "the odds of the account are not those of the release"
    shown = words_of(client.get(f"{page}/guarantee").text)
    assert_shown(shown, "can raise that to at most 99.99%", "the class names")
    assert "accuracy on public images" in words_of(client.get(f"{page}/usefulness").text)
    assert "seed 7" in words_of(client.get(f"{page}/use").text)
    tiles = client.get(f"{page}/tiles.png").headers
    assert (tiles["content-type"], tiles["cache-control"]) == ("image/png", "private, max-age=3600")
    download = client.get(f"/samples/{stock.sample}/content")
    assert download.content == b"synthetic"
    assert download.headers["content-disposition"] == f'attachment; filename="{stock.sample}.zip"'
    part = client.get(f"/samples/{stock.sample}/content", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"nth")
    assert client.get(f"{page}/files/generator.json").content == b"{}"


def test_a_generator_comes_with_a_model_card_and_a_program_under_the_names_that_it_looks_for(site, stock):
    client, page = site.signed_in("train", "read"), f"/releases/{stock.release}"
    config = {"classes": 10, "channels": 1, "height": 28, "width": 28, "components": 2, "features": 3}
    folder = site.settings.data_dir / "releases" / stock.release
    (folder / "generator.json").write_text(json.dumps({"format": 1, "config": config}))
    shown = client.get(f"{page}/use").text
    for name, said in (
        ("README.md", "## Guarantee"),
        ("load_generator.py", "class Generator"),
        ("generator.json", "28"),
    ):
        assert f"{page}/files/{name}" in shown
        answer = client.get(f"{page}/files/{name}")
        assert said in answer.text
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    for title in ("Parquet for Hugging Face (zip)", "WebDataset (tar)"):
        assert title in shown


def test_a_release_hands_out_its_receipt(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    assert f'href="{page}/receipt"' in client.get(f"{page}/guarantee").text
    signed = site.row(Release, stock.release).receipt
    assert signed["statement"]["release_id"] == stock.release
    answer = client.get(f"{page}/receipt")
    assert answer.json() == signed
    assert answer.headers["content-disposition"] == f'attachment; filename="{stock.release}-receipt.json"'
    assert client.get("/releases/rel_aaaaaaaaaaaaaaaaaaaa/receipt").status_code == 404


def test_the_report_is_served_under_a_policy_of_its_own(site, stock):
    policy = site.client().get(f"/releases/{stock.release}/report").headers["content-security-policy"]
    assert "sandbox" in policy
    assert "script-src" not in policy
    assert "default-src 'none'" in policy


def test_only_published_files_are_served(site, stock):
    client, orphan, page = site.client(), new_id("rel"), f"/releases/{stock.release}"
    folder = site.settings.data_dir / key_of(orphan)
    folder.mkdir(parents=True)
    (folder / "tiles.png").write_bytes(b"unpublished")
    own = site.settings.data_dir / key_of(stock.release)
    (own / "secret.txt").write_text("x")
    (own / "report.json").unlink()
    (own / "report.json").symlink_to(site.settings.data_dir / "datasets")
    names = ("secret.txt", "report.json", "generator.safetensors", "..%2f..%2fobscura.db")
    others = [f"/releases/..%2f{stock.release}/tiles.png", "/static/..%2fpages.py", "/static/pages.py"]
    others += [f"/releases/{orphan}/tiles.png", f"/samples/{new_id('smp')}/content"]
    for address in (*others, *(f"{page}/files/{name}" for name in names)):
        assert client.get(address).status_code in (404, 422), address
    site.execute("UPDATE samples SET path = 'obscura.db' WHERE id = :id", id=stock.sample)
    assert client.get(f"/samples/{stock.sample}/content").status_code == 404


def test_every_page_is_well_formed_and_labelled(site, stock):
    reader, admin = site.client(), site.signed_in("admin")
    for client in (reader, admin):
        for address in [*stock.pages, "/login", "/jobs/nothing"]:
            html = client.get(address).text
            page = Page(html)
            whole = html.startswith("<!doctype html>")
            assert len(page.all("h1")) == int(whole), address
            if whole:
                assert page.all("html")[0]["lang"] == "en"
                assert any(link.get("href") == "#content" for link in page.all("a"))
                assert len(page.all("main")) == 1
            assert len(page.all("caption")) == len(page.all("table"))
            assert all(cell.get("scope") for cell in page.all("th"))
            assert all(image.get("alt") for image in page.all("img"))
            assert all(svg.get("aria-hidden") or svg.get("aria-label") for svg in page.all("svg"))
            assert all(bar.get("aria-label") for bar in page.all("progress"))
            labelled = {label["for"] for label in page.all("label")}
            fields = [
                field
                for field in page.all("input", "select", "textarea")
                if "hidden" not in {field.get("type"), *field}
            ]
            assert {field["id"] for field in fields} == labelled
            ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
            assert len(ids) == len(set(ids)), address
            levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
            assert all(after <= before + 1 for before, after in pairwise(levels)), address


def test_pages_hold_nothing_that_the_policy_would_block(site, stock):
    client = site.signed_in("admin")
    for address in [*stock.pages, "/login"]:
        page = Page(client.get(address).text)
        assert page.all("style") == []
        assert all(script.get("src") for script in page.all("script"))
        for _, attributes in page.elements:
            assert not {name for name in attributes if name == "style" or name.startswith("on")}
            for name in ("src", "href", "action"):
                assert (attributes.get(name) or "/").startswith(("/", "#", "?"))


def test_odds_are_those_of_the_limit_and_never_of_what_was_spent(site, stock):
    """Spent so far is no amount that was fixed beforehand, so no page makes odds of it, nor of one release."""
    spent = site.balance(stock.account)
    assert 0 < spent.spent_nano < spent.capacity_nano
    shown = [words_of(site.client().get(address).text) for address in stock.pages]
    odds = r"(?:raise that to|50% becomes) at most ([\d.]*\d%)"
    claimed = {found for words in shown for found in re.findall(odds, words)}
    assert claimed == {wording.show_sure(spent.attacker_certainty_max)}


def test_every_answer_carries_the_policy(site, stock):
    client = site.client()
    answers = [client.get(address) for address in [*stock.pages, "/login", "/jobs/nothing", "/static/dashboard.css"]]
    answers.append(client.post("/logout", headers={"Origin": "http://elsewhere.example"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "/static/" in str(answer.url) or answer.headers["cache-control"] == "no-store"


def test_no_page_promises_what_the_mathematics_does_not(site, stock):
    for address in stock.pages:
        shown = site.client().get(address).text.lower()
        for promise in ("anonymous", "100% private", "100% sure"):
            assert promise not in shown


def test_no_page_holds_private_facts_or_secrets(site, stock):
    canaries = {"secret": "5ec2e7" * 10 + "0000", "hash": "da7a" * 16}
    site.change(Job, stock.running, secret=canaries["secret"])
    site.change(Dataset, stock.dataset, content_sha256=canaries["hash"], content_bytes=123_454_321)
    client = site.signed_in("admin")
    for address in stock.pages:
        html = client.get(address).text
        assert not [canary for canary in (*canaries.values(), "123454321", "123,454,321") if canary in html]


def test_names_are_escaped(site, open_account, declare_dataset):
    account = open_account(site.factory, name="<script>alert(1)</script>")
    declare_dataset(site.factory, account_id=account, name='"><img src=x>')
    for address in ("/", f"/accounts/{account}", f"/accounts/{account}/data"):
        html = site.client().get(address).text
        assert "<script>alert" not in html
        assert "<img src=x" not in html


def test_a_running_job_without_a_sign_of_life_says_so(site, stock):
    progress = {"stage": "teacher_votes", "step": 3, "steps": 9, "silent_minutes": 5}
    silent = site.add_job(stock.account, stock.dataset, epsilon=0.1, state="running", progress=progress)
    for address in (f"/jobs/{silent}", "/jobs"):
        assert_shown(words_of(site.client().get(address).text), "No sign of life for 5 minutes")
    assert "No sign of life" not in words_of(site.client().get(f"/jobs/{stock.running}").text)


def test_a_frozen_and_overspent_account_shows_nothing_left(site, stock):
    site.do(ledger.limits.lower_limit, account_id=stock.account, epsilon=0.5, reason="withdrawn", now=site.now)
    html = site.client().get(f"/accounts/{stock.account}").text
    assert_shown(html, "Frozen", "0% left of the lifetime budget")
    assert "-" not in re.sub(r"[^\d.%-]", "", " ".join(re.findall(r'width="[^"]*%"', html)))


@pytest.mark.parametrize("address", ["/jobs/nothing", "/releases/rel_x", "/accounts/acc_x", "/parts/nothing"])
def test_what_is_not_there_is_a_page_too(site, address):
    answer = site.client().get(address)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "Show budgets" in answer.text


def test_images_are_drawn_from_a_form_at_no_cost_and_in_proportions(site, stock):
    client, page = site.signed_in("train", "read"), f"/releases/{stock.release}"
    usual, rare, *_ = site.row(Dataset, stock.dataset).classes
    fields = {"count": 500, "seed": 3, "format": "npz", "proportions": {rare: 1, usual: 99}}
    job = site.job(submit(client, f"{page}/use", f"POST /v1{page}/samples", **fields).json()["job_id"])
    (sample,) = site.rows(Sample, Sample.job_id == job.id)
    assert (job.kind, job.hold_id) == ("sample", None)
    assert (sample.count, sample.seed, sample.format.value) == (500, 3, "npz")
    assert site.rung == [1]
    shown = client.get(f"/jobs/{job.id}").text
    assert_shown(shown, "Free: this job generates images from a release", f"{usual} 99, {rare} 1")
    assert f"{usual} 99, {rare} 1" in client.get(f"{page}/use").text


def test_a_queued_job_is_cancelled_from_a_form_and_its_hold_given_back(site, stock):
    client, page = site.signed_in("train", "read"), f"/jobs/{stock.queued}"
    assert forms_of(client.get(f"/jobs/{stock.done}").text) == {}
    assert forms_of(client.get(page).text).keys() == {f"POST /v1{page}/cancel"}
    assert submit(client, page, f"POST /v1{page}/cancel").is_success
    assert site.job(stock.queued).state is JobState.CANCELLED
    assert site.hold_of(stock.queued).state is HoldState.RETURNED


COST = r"This job has permanently spent ε ([\d.]+) of ([\d.]+), and"


def test_a_training_that_has_charged_is_ended_and_published_or_discarded_with_its_price_in_the_question(site, stock):
    client, page = site.signed_in("train", "read"), f"/jobs/{stock.running}"
    html = client.get(page).text
    assert_shown(html, "End now and publish", "Discard it")
    assert re.search(COST + r" would publish nothing\.", html)
    assert html.count(f'data-call="POST /v1{page}/cancel"') == 2, "the second discards"
    assert client.post(f"/v1{page}/cancel", headers=ORIGIN | {"X-Form-Token": token_of(client, page)}).is_success
    html = client.get(page).text
    assert_shown(html, "Finishing early", "It charges nothing more and publishes a partial result", "Discard it")
    assert "End now" not in html
    assert forms_of(html)[f"POST /v1{page}/cancel"] == ({"discard": True}, set())
    assert submit(client, page, f"POST /v1{page}/cancel").is_success
    html = client.get(page).text
    assert "Stopping" in html
    assert "Discard it" not in html
    assert site.job(stock.running).ended_early is EarlyEnd.DISCARDED


def test_a_training_that_has_nothing_to_publish_says_so_before_it_is_cancelled(site, stock):
    plan = site.job(stock.running).plan
    # Half of it was charged, and the first release that is of use would come after all of it.
    stage = {**plan["stages"][0], "name": "class_means"}
    last = {**stage, "name": "pooled_covariance", "event": {**stage["event"], "count": 1}}
    changes = {"cost_nano": 2 * plan["cost_nano"], "recipe": "moments"}
    changes["stages"] = [{**stage, "event": last["event"]}, last]
    site.change(Job, stock.running, plan={**plan, **changes})
    html = site.signed_in("train", "read").get(f"/jobs/{stock.running}").text
    assert "Cancel this job" in html
    assert re.search(COST + r" has nothing to publish yet\.", html)
    assert "Discard it" not in html


def test_a_job_whose_plan_cannot_be_read_has_a_page(site, stock):
    plan = site.job(stock.running).plan
    site.change(Job, stock.running, plan={**plan, "cost_nano": plan["cost_nano"] + 1})
    answer = site.signed_in("train", "read").get(f"/jobs/{stock.running}")
    assert answer.status_code == 200
    assert "Cancel this job" in answer.text


def test_a_release_is_evaluated_from_a_form(site, stock, declare_dataset):
    client, page = site.signed_in("train", "read"), f"/releases/{stock.release}"
    assert_shown(client.get(f"{page}/usefulness").text, "Not measured on public images yet.", "upload a public dataset")
    others = {"other size": {"height": 32}, "other colour": {"channels": 3}, "other number": {"classes": ["a", "b"]}}
    others["other class"] = {"classes": ["a", "b", "c"]}
    for name, facts in others.items():
        declare_dataset(site.factory, account_id=None, name=name, **facts)
    public = declare_dataset(site.factory, account_id=None, name="held out")
    html = client.get(f"{page}/usefulness").text
    assert f'<option value="{public}">held out</option>' in html
    assert sorted(re.findall(r"<li>(other [^<]+)</li>", html)) == [
        "other class: it has a as class 1, not boot as class 1",
        "other colour: it has colour images, not grey images",
        "other number: it has 2 classes, not 3 classes",
        "other size: it has 28 × 32 pixels, not 28 × 28 pixels",
    ]
    assert_shown(html, "4 public datasets do not fit")
    answer = submit(client, f"{page}/usefulness", f"POST /v1{page}/evaluations", dataset_id=public)
    assert "Evaluate a release" in client.get(f"/jobs/{answer.json()['job_id']}").text
    (row,) = site.rows(Evaluation)
    facts = {"dataset": "held out", "dataset_id": public, "train_images": 5, "test_images": 48, "seeds": [0]}
    results = {"accuracy": {"cnn": 0.912}, "accuracy_real": 0.46, "evaluation": facts}
    site.change(Evaluation, row.id, results=results, finished_at=site.now)
    html = client.get(f"{page}/usefulness").text
    assert_shown(html, "91.2%", "accuracy on held out", "CNN trained on 24 real images", "this is no upper limit")
    assert "76.4%" not in html  # what an older measurement said


def test_an_incomplete_release_says_so(site, stock):
    client, page = site.client(), f"/releases/{stock.release}"
    assert "ncomplete" not in client.get(page).text
    incomplete = {"reason": "time_limit", "fraction": 0.421, "made": 421, "planned": 1000, "stages": {}}
    site.change(Release, stock.release, incomplete=incomplete)
    share = "Incomplete: 42.1% of the planned noisy releases were made."
    assert_shown(client.get(page).text, share, "because it reached the time limit")
    assert "incomplete, 42.1% of the plan" in client.get("/releases").text


def test_only_admins_of_the_installation_see_that_a_disk_is_short(make_site, open_account):
    site = make_site(dashboard_public=True, disk_free_bytes_min=2**60)
    note = "A disk of the service is nearly full"
    assert note in site.signed_in("admin").get("/").text
    for others in (site.client(), site.signed_in("data", "read"), site.signed_in("train", "read")):
        for path in ("/", "/jobs", "/datasets", "/releases", "/train"):
            assert note not in others.get(path).text
    assert note not in make_site(dashboard_public=True).signed_in("admin").get("/").text


@pytest.mark.parametrize("name", ["plan", "release"])
def test_the_images_of_the_tutorial_show_the_words_of_today(name, site, open_account, declare_dataset):
    """Their files have the texts of the menus, headings, labels and paragraphs that they show."""
    account = open_account(site.factory)
    dataset = declare_dataset(site.factory, account_id=account, records_declared=12_000, classes=[*"abcdefghij"])
    release = site.add_release(site.add_job(account, dataset, epsilon=1.0, state="succeeded"), stored=10)
    address = {"plan": f"/train?dataset={dataset}&recipe=moments&epsilon=1", "release": f"/releases/{release}"}[name]
    html = site.signed_in("admin", "data", "train", "read", "audit").get(address).text
    shown = json.loads(Image.open(images.FOLDER / f"{name}.png").text["shows"])
    mend = f"run python -m {images.SCRIPTS[f'{name}.png']}"
    assert [text for text in shown if text not in words_of(html)] == [], mend
    menus = "".join(re.findall(r"<nav.*?</nav>", html, flags=re.DOTALL))
    assert set(re.findall(r">([^<>]+)</a>", menus)) <= set(shown), mend
