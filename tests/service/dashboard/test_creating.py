"""What pages create: accounts, datasets with their images, trainings, searches. Once each, with nothing lost."""

import html
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from obscura.wire.words import DatasetState, JobState
from privacy.plans.registry import RECIPES
from service import dashboard, errors, jobs, ledger
from service.datasets.parts import PART_BYTES_MAX
from service.datasets.vault import make_fingerprint_key
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Preview, Sweep
from service.db.ledger_tables import Account
from service.jobs import kinds
from service.views.plans import describe_recipe
from tests.pictures import archive, picture
from tests.service.dashboard.conftest import Stock, assert_shown, forms_of, submit, token_of
from tests.service.steps import hold_amount

pytestmark = pytest.mark.usefixtures("read_here")

DATASET = {"name": "scans", "classes": "cat, dog\nowl", "width": "6", "height": "4", "channels": "1"}
DATASET |= {"records_declared": "100"}
PROBLEM = {"Accept": "application/problem+json", "Origin": "http://127.0.0.1:8420"}


def zipped(size: tuple[int, int] = (6, 4), *, folders: Sequence[str] = ("cat", "dog", "owl")) -> bytes:
    names = [f"{folders[number % len(folders)]}/{number}.png" for number in range(9)]
    return archive(*((name, picture(size=size, value=20 * number)) for number, name in enumerate(names)))


def test_uploading_needs_the_script_and_the_pages_say_so(site, open_account, declare_dataset):
    uploader, account = site.signed_in("data", "read"), open_account(site.factory)
    declared = declare_dataset(site.factory, account_id=account, state=DatasetState.DECLARED)
    for address in ("/datasets/new", f"/datasets/{declared}"):
        assert_shown(uploader.get(address).text, "<noscript>", "needs JavaScript", "obscura datasets push")


def test_the_script_of_uploads_fills_in_no_number_of_records_and_opens_no_picture():
    script = (Path(dashboard.__file__).parent / "static" / "upload.js").read_text("utf-8")
    assert not re.findall("records_declared|createImageBitmap|getImageData", script)


def declare_and_upload(client, content, *, fit="exact", format="zip", token="", **changes):
    """Upload as the page's script does: begin, send the parts, end. Returns the first refusal, or the last answer."""
    headers = PROBLEM | {"X-Form-Token": token or token_of(client, "/datasets/new")}
    form = {"fields": DATASET | {"account_id": "public"} | changes, "format": format, "fit": fit}
    answer = client.post("/uploads", json=form | {"file_bytes": len(content)}, headers=headers)
    if answer.is_error:
        return answer
    upload = answer.json()["upload"]
    for offset in range(0, len(content), PART_BYTES_MAX):
        part, where = content[offset : offset + PART_BYTES_MAX], headers | {"X-Upload": upload}
        answer = client.put(f"/uploads?offset={offset}", content=part, headers=where)
        assert answer.json() == {"received": offset + len(part)}
    return client.post("/datasets/new", json=form | {"upload": upload}, headers=headers)


REFUSED_UPLOADS = {
    "another size": (422, "upload_refused", {}, lambda: zipped((5, 4))),
    "no archive": (422, "upload_refused", {}, lambda: b"nothing"),
    "nothing": (422, "upload_refused", {}, lambda: b""),
    "height": (422, "invalid_input", {"height": "0"}, zipped),
    "account_id": (422, "invalid_input", {"account_id": ""}, zipped),  # public is never the default
    "unknown format": (422, "invalid_input", {"format": "tar"}, zipped),
    "another session": (403, "forbidden", {"token": "0" * 64}, zipped),
    "too large": (413, "too_large", {}, lambda: b"x" * 1_300_000),
}


@pytest.mark.parametrize("refused", REFUSED_UPLOADS)
def test_a_refused_upload_leaves_no_declaration(make_site, refused):
    status, code, fields, content = REFUSED_UPLOADS[refused]
    site = make_site(upload_bytes_max=1_000_000)
    make_fingerprint_key(site.settings)
    uploader = site.signed_in("data", "read")
    answer = declare_and_upload(uploader, content(), **fields)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    if refused in ("height", "account_id"):
        assert answer.json()["fields"].keys() == {refused}
    if code == "too_large":
        assert answer.json()["detail"] == "This file is 1.3 MB. The limit is 1 MB."
    assert all(row.erased_at is not None for row in site.rows(Dataset))
    assert "scans" not in uploader.get("/datasets").text
    assert not any(path.is_file() for path in (site.settings.data_dir / "quarantine").rglob("*"))
    sent = declare_and_upload(uploader, zipped())
    assert (sent.status_code, sent.json()["state"]) == (200, "ready")


def test_a_form_that_is_too_large_or_cannot_be_read_is_refused(site, uploader):
    headers = PROBLEM | {"X-Form-Token": token_of(uploader, "/datasets/new"), "Content-Type": "application/json"}
    for address in ("/uploads", "/datasets/new"):
        for body in (b'{"fields": {"name": 7}}', b"[]", b"{", b"", b'{"more": ""}', b'{"upload": "%s"}' % (b"a" * 65)):
            answer = uploader.post(address, content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
        for accept in (PROBLEM["Accept"], "text/html"):  # the page, too, states the limit
            answer = uploader.post(address, content=b"x" * 3_000_000, headers=headers | {"Accept": accept})
            assert (answer.status_code, "This request is 3 MB. The limit is 1 MB." in answer.text) == (413, True)


@pytest.mark.parametrize(
    ("classes", "said"),
    [("SURNAME_GIVEN_19610423, dog", "look like people: SURNAME_GIVEN_19610423"), ("train, test", "like subsets")],
)
def test_names_that_may_be_no_classes_are_asked_about_before_they_are_public(
    site, open_account, classes, said, uploader
):
    make_fingerprint_key(site.settings)
    fields = {"account_id": open_account(site.factory), "classes": classes}
    content = zipped(folders=tuple(classes.split(", ")))
    asked = declare_and_upload(uploader, content, **fields)
    assert (asked.status_code, said in asked.json()["fields"]["classes"]) == (422, True)
    assert site.rows(Dataset) == []
    assert declare_and_upload(uploader, content, **fields, stated="yes").status_code == 200
    (declared,) = site.rows(Dataset)
    assert list(declared.classes) == classes.split(", ")


def test_a_training_is_priced_then_asked_for_once(site, stock, trainer):
    page = trainer.get(f"/train?dataset={stock.dataset}&recipe=datalens&epsilon=0.4&options=teachers+%3D+300").text
    body, _ = forms_of(page)["POST /v1/jobs"]
    assert (body["epsilon"], body["options"]) == (0.4, {"teachers": 300})
    assert_shown(page, "Left afterwards", "<code>teachers</code></dt><dd>300", "Train for ε")
    terminal = f"obscura train {stock.dataset} --recipe datalens --epsilon 0.4 --option teachers=300 --wait"
    assert_shown(page, f"<code>{terminal}</code>")
    before = site.rows(Job)
    for number, epsilon in enumerate(("0.2", "0.8")):
        part = trainer.get(f"/train/price?dataset={stock.dataset}&recipe=datalens&epsilon={epsilon}").text
        price, now, after = map(float, re.findall(r"ε ([\d.]+)</span></dd>", part)[:3])
        assert (0.15, 0.7)[number] < price < float(epsilon) + 0.01
        assert after <= now
        assert "for this training" in part
    held = site.balance(stock.account).reserved_nano
    assert len(site.rows(Job)) == len(before), "a price costs nothing"
    address = f"/train?dataset={stock.dataset}&recipe=datalens&epsilon=0.4&options=teachers+%3D+300"
    first, second = (submit(trainer, address, "POST /v1/jobs", once="c" * 32).json() for _ in range(2))
    assert first["id"] == second["id"]
    job = site.job(first["id"])
    assert (job.epsilon, job.options, job.state) == (0.4, {"teachers": 300}, JobState.QUEUED)
    assert len(site.rows(Job)) == len(before) + 1
    assert site.balance(stock.account).reserved_nano > held


@pytest.mark.parametrize("limit", [0.01, 0.241, 900.0])
def test_a_plan_begins_with_the_recommended_recipe_and_a_third_of_what_is_left(
    site, open_account, declare_dataset, limit
):
    account = open_account(site.factory, epsilon=limit)
    dataset = declare_dataset(site.factory, account_id=account)
    page = site.signed_in("train", "read").get(f"/train?dataset={dataset}").text
    recipes = re.search(r'<select id="recipe".*?</select>', page)
    assert re.findall(r'<option value="(\w+)"', recipes[0]) == list(RECIPES)
    assert re.findall(r'<option value="(\w+)" selected', recipes[0]) == ["moments"] == list(RECIPES)[:1]
    epsilon = float(re.search(r'<input id="epsilon"[^>]* value="([\d.]+)"', page)[1])
    assert limit / 5 < epsilon <= limit / 3
    assert 'id="confirmed"' not in page


def test_a_price_above_half_of_what_is_left_is_confirmed(site, open_account, declare_dataset):
    account = open_account(site.factory, epsilon=1.0)
    dataset = declare_dataset(site.factory, account_id=account)
    trainer, box = site.signed_in("train", "read"), 'id="confirmed" type="checkbox" required'
    asked = f"/train?dataset={dataset}&recipe=moments&shown=moments"
    for query in ("&epsilon=0.9", "&epsilon=0.3&vary=epsilon&values=0.4,0.5"):
        assert_shown(trainer.get(asked + query).text, box, "never comes back")
    assert box not in trainer.get(f"{asked}&epsilon=0.4").text
    assert submit(trainer, f"{asked}&epsilon=0.4", "POST /v1/jobs").status_code == 202


def test_whether_people_are_known_again_is_declared_by_a_box(site, open_account, uploader):
    account = open_account(site.factory, name="families", unit="subject")
    make_fingerprint_key(site.settings)
    fields = {"account_id": account, "subjects_declared": "50"}
    content = zipped(folders=("cat/a", "dog/b", "owl/c"))
    known = declare_and_upload(uploader, content, **fields, subjects_recognised="yes").json()["id"]
    (row,) = site.rows(Dataset)
    assert row.subjects_recognised
    assert "recognised in other datasets" in uploader.get(f"/datasets/{known}").text
    usual = declare_and_upload(uploader, content, **fields, name="usual").json()["id"]
    assert "recognised in other datasets" not in uploader.get(f"/datasets/{usual}").text


def test_every_option_of_a_recipe_is_a_field_that_its_model_describes(site, stock, trainer):
    asked = f"/train?dataset={stock.dataset}&epsilon=0.4&shown=datalens&recipe="
    fields = "option.teachers=300&option.preset=published&option.use_top_k=&option.teacher_network=linear"
    page = trainer.get(f"{asked}datalens&{fields}").text
    options = {"preset": "published", "teachers": 300, "teacher_network": "linear"}
    assert forms_of(page)["POST /v1/jobs"][0]["options"] == options
    assert_shown(
        page, "<code>teachers</code></dt><dd>300", 'name="option.teachers" value="300"', "<option selected>published"
    )
    wrong = trainer.get(f"{asked}datalens&option.teachers=0.5").text
    assert re.search(r'data-fault="teachers">[^<]+an integer between 1 and 100000', wrong)
    other = trainer.get(f"{asked}moments&option.clip=0.5").text  # of the recipe that was shown before
    assert forms_of(other)["POST /v1/jobs"][0].get("options", {}) == {}
    unknown = trainer.get(f"/train?dataset={stock.dataset}&recipe=datalens&options=old+%3D+1%0Ateachers+%3D+300").text
    assert re.search(r"<textarea[^>]*>old = 1</textarea>", unknown), "what no field stands for can be taken out"
    spend(site, stock.account)  # so that the pages below plan nothing
    for name, recipe in RECIPES.items():
        page = html.unescape(trainer.get(f"/train?dataset={stock.dataset}&recipe={name}").text)
        groups = describe_recipe(recipe).groups
        assert len(groups) in ((3, 4, 5, 6) if groups else (0,))
        assert re.findall(r'name="option\.(\w+)"', page) == [each for names in groups.values() for each in names]
        assert_shown(page, *(schema["description"] for schema in recipe.options["properties"].values()))


def test_the_price_says_which_class_noise_drowns_by_a_stated_balance(site, stock, trainer):
    (row,) = site.rows(Dataset, Dataset.id == stock.dataset)
    asked = f"/train/price?dataset={stock.dataset}&recipe=moments&epsilon=0.4&shown=moments&option.class_fractions="
    rare = ",".join(["1000"] * (len(row.classes) - 1) + ["1"])
    warned = trainer.get(asked + rare).text
    assert re.search(rf'role="status">Lost in the noise: {row.classes[-1]} \(about', warned)
    assert 'role="status">Lost in the noise:' not in trainer.get(asked).text
    wrong = trainer.get(asked.replace("/price", "") + "1")
    assert (wrong.status_code, "numbers for" in wrong.text) == (422, True)


def test_what_cannot_be_planned_is_explained_at_its_field(site, stock, trainer):
    for query, field in (("epsilon=x", "epsilon"), ("options=teachers", "options"), ("recipe=nothing", "recipe")):
        answer = trainer.get(f"/train?dataset={stock.dataset}&{query}")
        assert answer.status_code == 422
        assert re.search(rf'data-fault="{field}">[^<]+<', answer.text), query
        assert stock.dataset in answer.text
    assert "too little left" in trainer.get(f"/train?dataset={stock.dataset}&epsilon=900").text
    assert trainer.get("/train?dataset=ds_nothing").status_code == 404
    assert "Train for" not in site.signed_in("read").get("/train").text


def spend(site, account_id: str, *, but_nano: int = 0) -> None:
    rest_nano = site.balance(account_id).left_nano - but_nano
    facts = {"account_id": account_id, "job_id": new_id("job"), "amount_nano": rest_nano, "now": site.now}
    site.do(hold_amount, **facts)


@pytest.mark.parametrize("left_nano", [0, 300])
def test_the_plan_page_of_a_spent_account_says_so_and_what_is_free(site, stock, left_nano, trainer):
    """What is left may be less than the least that can be asked for: that is spent, too, and no mistake of a reader."""
    spend(site, stock.account, but_nano=left_nano)
    for address in ("/train", "/train/price"):
        answer = trainer.get(f"{address}?dataset={stock.dataset}&epsilon=1")
        assert answer.status_code == 200, address
        assert_shown(answer.text, "The budget of patients is spent or reserved", f'href="/releases/{stock.release}')
        assert_shown(
            answer.text, "Generate more images", "measure a release", f'href="/accounts/{stock.account}/controls'
        )
        assert 'role="alert"' not in answer.text
        assert "Train for" not in answer.text


def test_a_training_is_cloned_and_a_failed_one_tried_again(site, stock, trainer):
    failed = site.add_job(
        stock.account, stock.dataset, epsilon=0.3, state="failed", failure_code="out_of_memory", options={"top_k": 7}
    )
    shown = trainer.get(f"/jobs/{failed}").text
    assert_shown(shown, f'href="/train?again={failed}"', "Try it again", "The worker ran out of memory.")
    assert "Train again with these options" in trainer.get(f"/jobs/{stock.done}").text
    page = trainer.get(f"/train?again={failed}").text
    assert forms_of(page)["POST /v1/jobs"][0]["options"] == {"top_k": 7}
    assert_shown(page, 'name="epsilon"', 'value="0.3"', "Train for ε")


def test_first_steps_lead_to_the_first_release(site, open_account, declare_dataset):
    def open_steps() -> list[str]:
        return re.findall(r'class="button" href="(/[\w/]+)"', site.client().get("/").text)

    assert open_steps() == ["/accounts/new", "/datasets/new", "/train"]
    empty = site.client().get("/").text
    assert re.findall(r"<h2[^>]*>([^<]+)", empty) == ["First steps"], "no empty lists below"
    assert site.client().get("/jobs").status_code == site.client().get("/releases").status_code == 200
    account = open_account(site.factory)
    assert open_steps() == ["/datasets/new", "/train"]
    assert "Accounts</h2>" in site.client().get("/").text
    dataset = declare_dataset(site.factory, account_id=account)
    assert open_steps() == ["/train"]
    job = site.add_job(account, dataset, epsilon=1.0, state="succeeded")
    assert "First steps" in site.client().get("/").text
    site.add_release(job)
    assert "First steps" not in site.client().get("/").text


def test_readers_see_no_form_that_acts(site, stock):
    for client, address in product((site.client(), site.signed_in("read")), stock.pages):
        page: Any = client.get(address)
        assert page.status_code == 200
        assert forms_of(page.text) == {}
        assert page.text.count('method="post"') == page.text.count('action="/logout"')


def test_a_plan_is_previewed_and_its_forecast_is_shown(site, stock, trainer):
    address = f"/train?dataset={stock.dataset}&epsilon=900"
    assert "Preview before you spend" in trainer.get(address).text, "what cannot be paid can be looked at"
    job_id = submit(trainer, address, "POST /v1/previews").json()["job_id"]
    assert (site.job(job_id).kind, site.job(job_id).hold_id) == ("preview", None)
    found = {"accuracy": 0.2, "real": 0.9, "chance": 0.1, "stand_in": "generated patterns"}
    site.do(jobs.claim, job_id=job_id, worker="w", lease_seconds=60, now=site.now)
    preview_id = site.do(jobs.made_by, Preview, job_id).id
    assert "grid.png" not in trainer.get(f"/jobs/{job_id}").text
    site.do(kinds.preview.publish_grid, job_id=job_id, attempt=1, grid=b"\x89PNG drawn")
    shown = trainer.get(f"/jobs/{job_id}/part").text
    assert_shown(shown, f"/previews/{preview_id}/grid.png", "The accuracy is being measured.")
    assert trainer.get(f"/previews/{preview_id}/grid.png").content == b"\x89PNG drawn"
    with pytest.raises(errors.StaleAttempt):
        site.do(kinds.preview.publish_grid, job_id=job_id, attempt=2, grid=b"late")
    site.do(kinds.preview.KIND.finish, job_id=job_id, attempt=1, results=found, grid=b"\x89PNG", now=site.now)
    shown = trainer.get(f"/jobs/{job_id}").text
    assert_shown(shown, "right on 20% of generated patterns", "nearly everything is lost in the noise")
    assert_shown(shown, f"/previews/{preview_id}/grid.png")
    assert trainer.get(f"/previews/{preview_id}/grid.png").content == b"\x89PNG"
    assert 'value="900"' in trainer.get(f"/train?again={job_id}").text
    row = trainer.get("/jobs").text.partition(f'id="row-{job_id}"')[2].partition("</tr>")[0]
    assert ">free<" in row
    assert "900" not in row


# --- searches ---------------------------------------------------------------------------------------------------------


def asked(stock: Stock, *tried: tuple[str, str], **fields: str) -> str:
    usual = [("dataset", stock.dataset), ("recipe", "datalens"), ("epsilon", "0.2"), ("shown", "datalens")]
    pairs = [pair for option, values in tried for pair in (("vary", option), ("values", values))]
    return "?" + urlencode([*{**dict(usual), **fields}.items(), *pairs])


def test_a_search_is_priced_as_a_whole_then_held_once(site, stock, trainer):
    query = asked(stock, ("teachers", "100, 300"), ("", ""), ("epsilon", "0.1,0.2,0.3"), options="top_k = 7")
    page = trainer.get("/train" + query).text
    assert_shown(page, "Cost of all 6 trials", "Train 6 times for ε", "You pay for every trial")
    assert_shown(page, "you cannot tell which trial is best")
    assert re.findall(r'rowheader">(Teachers [^<]+)</th><td[^>]*>([\d.]+)<', page) == [
        (f"Teachers {teachers}", epsilon) for teachers in (100, 300) for epsilon in ("0.1", "0.2", "0.3")
    ]
    command = f"obscura sweep {stock.dataset} --recipe datalens --epsilon 0.2 --option top_k=7"
    assert_shown(html.unescape(page), f"{command} --grid 'teachers=100, 300' --grid epsilon=0.1,0.2,0.3 --wait")
    price, before = float(re.findall(r"ε ([\d.]+)</span></dd>", page)[0]), site.balance(stock.account)
    part = trainer.get("/train/price" + query).text
    assert float(re.findall(r"ε ([\d.]+)</span></dd>", part)[0]) == price
    assert site.rows(Sweep) == []
    first, second = (submit(trainer, "/train" + query, "POST /v1/sweeps", once="c" * 32).json() for _ in range(2))
    (sweep,) = site.rows(Sweep)
    assert first["id"] == second["id"] == sweep.id
    trials = sorted(site.rows(Job, Job.sweep_id == sweep.id), key=lambda job: job.created_at)
    assert [(job.options, job.epsilon) for job in trials] == [
        ({"top_k": 7, "teachers": teachers}, epsilon) for teachers in (100, 300) for epsilon in (0.1, 0.2, 0.3)
    ]
    reserved_nano = site.balance(stock.account).reserved_nano - before.reserved_nano
    assert reserved_nano == sweep.cost_nano
    held = ledger.filter_of(site.row(Account, stock.account)).epsilon_of(reserved_nano)
    assert held <= price < held + 0.001, "what was shown is what is held, rounded up"
    assert sweep.name == "teachers=100, 300; epsilon=0.1,0.2,0.3"
    assert "6 trainings with" in trainer.get(f"/sweeps/{sweep.id}").text


@pytest.mark.parametrize(
    ("tried", "place", "said"),
    [
        ([("teachers", "100,0.5")], "values-1", "Trial 2: .*an integer between 1 and 100000"),
        ([("epsilon", "0.1,many")], "values-1", "Enter a number"),
        ([("top_k", "7,8"), ("epsilon", "0.1,-1")], "values-2", "greater than or equal to"),
        ([("", "7,8")], "values-1", "Write the name of an option"),
        ([("top_k", "7,8"), ("top_k", "9")], "values-2", "occurs twice"),
        ([("top_k", "7")], "grids", "1 trial; a sweep must have 2 to 64"),
        ([("nothing", "7,8")], "options", "Trial 1: .*nothing"),
    ],
)
def test_a_search_that_cannot_be_planned_is_explained_where_it_stands(site, stock, tried, place, said, trainer):
    for address in ("/train", "/train/price"):
        answer = trainer.get(address + asked(stock, *tried))
        assert answer.status_code == 422
        wrong = re.findall(r'data-wrong="([\w-]+)" hidden>([^<]+)<', answer.text)
        assert [name for name, _ in wrong] == [place]
        assert re.search(said, wrong[0][1])
        assert "Train 2 times" not in answer.text
    whole = trainer.get("/train" + asked(stock, *tried)).text
    assert re.search(said, dict(re.findall(r'data-fault="([\w-]+)">([^<]+)<', whole))[place])
    assert all(html.escape(values) in whole for _, values in tried), "what was written is still there"
    assert site.rows(Sweep) == []


def test_a_search_that_the_account_cannot_pay_for_says_what_would_fit(site, stock, trainer):
    left = site.balance(stock.account).affordable_epsilon
    page = trainer.get("/train" + asked(stock, ("teachers", "100,300"), epsilon=str(left))).text
    fitting = re.search(r"too little left for all 2 trials. Give each trial at most ε ([\d.]*\d)", page)
    assert fitting
    assert forms_of(page) == {}
    assert "Train 2 times" in trainer.get("/train" + asked(stock, ("teachers", "100,300"), epsilon=fitting[1])).text


def test_only_who_may_train_sees_the_form(site, stock):
    query = asked(stock, ("teachers", "100,300"))
    for client in (site.client(), site.signed_in("read"), site.signed_in("data", "read")):
        page = client.get("/train" + query).text
        assert 'name="vary"' not in page
        assert "Cost of all" not in page


def test_a_recipe_is_searched_by_its_own_options(site, stock, trainer):
    page = trainer.get("/train" + asked(stock, ("teachers", "100,300"), recipe="dpgan")).text
    assert "Cost of all" not in page, "the values were another recipe's"
    (offered,) = set(re.findall(r'<select id="vary-\d" name="vary">(.*?)</select>', page))
    assert_shown(offered, '<option value="epsilon">', '<option value="clip">')
    assert "teachers" not in offered
