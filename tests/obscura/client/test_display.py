"""How resources show themselves: names, lines, tables and pictures, all text escaped."""

import inspect
from datetime import UTC, datetime

import numpy as np
import pytest
from pydantic import BaseModel

from obscura.client import Account, AsyncAccount, Client, Dataset, Images, Job, Plan, Release, Sample, Sweep
from obscura.client.resources import Live
from obscura.wire import job_schemas, schemas

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BALANCE = schemas.BalanceFacts(
    capacity_nano=100, spent_nano=25, reserved_nano=10, left_nano=65, limit_epsilon=8.0, spent_epsilon=2.0,
    reserved_epsilon=1.0, left_epsilon=5.5, affordable_epsilon=5.5, guaranteed_epsilon=8.0, attacker_certainty_max=0.9,
)  # fmt: skip
ACCOUNT = {
    "id": "acc_a", "name": "<b>patients", "owner": "clinic", "epsilon": 8.0, "delta": 1e-5, "unit": "subject",
    "adjacency": "add_remove", "rate": 1.0, "frozen": False, "project_id": "prj_default", "created_at": NOW,
    "balance": BALANCE,
}  # fmt: skip
TRIAL = {
    "failure": None, "reserved_nano": 0, "charged_nano": 4, "spent_nano": 4, "spent_epsilon": 1.0, "incomplete": False,
    "state": "succeeded",
}  # fmt: skip


@pytest.fixture
def shown() -> dict[str, Live | Plan]:
    dataset = Dataset(
        id="ds_a", name="scans", created_at=NOW, account_id="acc_a", visibility="private", classes=["<i>", "b"],
        height=32, width=24, channels=1, records_declared=2000, subjects_declared=None, state="ready", joined=False,
        format="zip", content_sha256=None, content_bytes=None, failure_code=None, ready_at=NOW,
    )  # fmt: skip
    job = Job(
        id="job_a", kind="train", created_at=NOW, account_id="acc_a", dataset_id="ds_a", evaluation_dataset_id=None,
        recipe="moments", epsilon=1.0, options={}, cost_nano=40, cost_epsilon=1.0, ended_early=None,
        publishes_if_cancelled=True, blocked=None, started_at=NOW, finished_at=None, state="running",
        cancel_requested=False, progress={"stage": "<u>", "step": 3, "steps": 9, "charged_nano": 10,
        "charged_epsilon": 0.25}, failure=None, release_id=None, sample_id=None,
    )  # fmt: skip
    plan = Plan(
        recipe="moments", dataset_id="ds_a", epsilon=1.0, delta=1e-5, unit="record", adjacency="add_remove",
        cost_nano=30, cost_epsilon=1.0, stages=[], facts={}, notes=["<s> is lost"], config={},
        expectation=job_schemas.Expectation(band=None, recognisable=None, accuracy=None, summary=["Expect shapes."],
        next_band=None, next_epsilon=None, next_units=None, curve=[]),
        budget=job_schemas.BudgetFacts(account_id="acc_a", limit_epsilon=8, left_epsilon=5.5, left_nano=60,
        left_after_epsilon=4.8, left_after_nano=30, affordable=True),
    )  # fmt: skip
    trials = [
        TRIAL | {"job_id": "job_b", "options": {"components": 10}, "epsilon": 1.0, "release_id": "rel_b",
        "accuracy": {"cnn": 0.75}},
        TRIAL | {"job_id": "job_c", "options": {"components": "<q>"}, "epsilon": 2.0, "release_id": None,
        "accuracy": None},
    ]  # fmt: skip
    sweep = Sweep(
        id="swp_a", name="search", created_at=NOW, account_id="acc_a", dataset_id="ds_a", recipe="moments",
        state="ended", trials=trials, best_job_id="job_b", totals={"cost_nano": 9, "reserved_nano": 0, "spent_nano": 8,
        "returned_nano": 1, "cost_epsilon": 2.5, "spent_epsilon": 2.2},
    )  # fmt: skip
    sample = Sample(
        id="smp_a", job_id="job_d", created_at=NOW, state="queued", failure=None, release_id="rel_b", count=1000,
        classes=None, seed=0, format="npz", sha256=None, bytes=None,
    )  # fmt: skip
    records = (Account(**ACCOUNT), dataset, job, plan, sweep, sample)
    return {type(each).__name__: each for each in records}


LINES = {
    "Account": "<Account <b>patients acc_a: epsilon 5.5 of 8.0 left, delta 1e-05, all records of one subject>",
    "Dataset": "<Dataset scans ds_a: private, ready, at most 2,000 images, 24 x 32 grey>",
    "Job": "<Job job_a: running, train, epsilon 0.25 of 1.0 charged>",
    "Plan": "<Plan moments: costs epsilon 1.0 of 5.5 left, epsilon 4.8 left after it, epsilon 1.0, delta 1e-05>",
    "Sweep": "<Sweep search swp_a: 2 trials, ended, epsilon 2.2 of 2.5 spent>",
    "Sample": "<Sample smp_a: 1,000 images, queued, npz>",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_names_the_record_its_state_and_its_cost(shown, kind):
    assert repr(shown[kind]) == str(shown[kind]) == LINES[kind]


@pytest.mark.parametrize("kind", LINES)
def test_a_table_escapes_every_text(shown, kind):
    html = shown[kind]._repr_html_()
    assert html.startswith("<h4>")
    assert not any(tag in html for tag in ("<b>", "<i>", "<u>", "<s>", "<q>"))


def test_the_bars_show_the_shares(shown):
    bars = {kind: shown[kind]._repr_html_() for kind in ("Account", "Plan", "Job")}
    assert "width:25.00%" in bars["Account"]
    assert "width:10.00%" in bars["Account"]
    assert "width:50.00%" in bars["Plan"]
    assert "width:25.00%" in bars["Job"]


def test_a_sweep_becomes_a_data_frame_with_a_row_for_each_trial(shown):
    frame = shown["Sweep"].to_pandas()
    assert frame["options.components"].tolist() == [10, "<q>"]
    assert frame["epsilon"].tolist() == [1.0, 2.0]
    assert (frame["accuracy.cnn"][0], frame["release_id"][0]) == (0.75, "rel_b")


def test_completion_offers_fields_and_methods_and_none_of_pydantic():
    offered = dir(Account(**ACCOUNT))
    assert {"balance", "epsilon", "freeze", "entries"} <= set(offered)
    assert not set(offered) & set(dir(BaseModel))


def test_an_asynchronous_record_shows_the_same():
    sync = Account(**ACCOUNT)
    shown = AsyncAccount.of(sync)
    assert repr(shown) == repr(sync).replace("<Account", "<AsyncAccount")
    assert shown._repr_html_() == sync._repr_html_()


def test_every_option_of_a_folder_is_named_in_the_signatures():
    for method in (Client.train, Client("http://localhost", None).datasets.push):
        parameters = inspect.signature(method).parameters
        assert {"at_most", "size", "grey", "classes", "subjects_key"} <= parameters.keys()
        assert all(each.kind != each.VAR_KEYWORD for each in parameters.values())


def test_a_grid_has_a_row_for_each_class_in_the_order_of_the_labels():
    pixels = np.repeat(np.array([10, 200, 10, 10], np.uint8), 64).reshape(4, 8, 8)
    images = Images(pixels, np.array([0, 1, 0, 0]), ("dark", "bright"))
    shown = np.asarray(images.show(per_class=2))
    assert images["dark"].shape == (3, 8, 8)
    assert (shown[0, 0], shown[-20, 0], shown[-20, -20]) == (10, 200, 255)  # enlarged; an absent image is white
    assert np.array_equal(images["bright"], pixels[1:2])


def test_two_releases_are_compared_by_the_facts_that_differ():
    facts = {
        "id": "rel_a", "name": "a", "created_at": NOW, "kind": "generator", "job_id": "job_a", "account_id": "acc_a",
        "dataset_id": "ds_a", "recipe": "moments", "epsilon": 1.0, "delta": 1e-5, "unit": "record", "classes": ["a"],
        "accuracy": {"cnn": 0.5}, "balanced_accuracy": None, "accuracy_by_class": None, "artifact_sha256": "0",
        "summary": {}, "incomplete": None, "histogram": None, "project_id": "prj_default",
    }  # fmt: skip
    one, two = Release(**facts), Release(**facts | {"id": "rel_b", "epsilon": 2.0, "accuracy": {"cnn": 0.7}})
    assert one.compare(two) == {"epsilon": (1.0, 2.0), "accuracy": ({"cnn": 0.5}, {"cnn": 0.7})}
    assert repr(two) == "<Release a rel_b: generator, epsilon 2.0, delta 1e-05, one record>"


def test_a_client_and_its_collections_name_their_service_and_their_methods():
    client = Client("http://localhost:1", None)
    assert repr(client) == "<Client of http://localhost:1>"
    assert repr(client.webhooks) == "<Webhooks of http://localhost:1: create, delete, get, list, test>"
