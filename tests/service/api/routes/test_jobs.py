"""Plans, jobs and sweeps over HTTP: prices, holds, idempotency, cancelling, what a job may say, all trials or none."""

import re
import threading
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource
from sqlalchemy import text

from obscura.client import BudgetError, NotFoundError
from service import jobs
from service.db.base import new_id
from service.db.job_tables import Release
from service.db.session import transaction
from service.jobs import kinds
from service.main import utc_now
from tests.service.api.conftest import SMALL, problem
from tests.service.api.test_events import wait_for_streams
from tests.together import at_once, wait_until


def plan(served: Any, dataset: dict[str, Any], *, status: int = 200, **changes: Any) -> Any:
    body = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 1.0, "options": SMALL} | changes
    return served.send("plans", body, scope="read", status=status)


def test_a_plan_says_what_it_buys_and_what_would_be_left(served, dataset):
    before = served.balance(dataset["account_id"])
    made = plan(served, dataset)
    assert 0 < made["cost_epsilon"] <= 1.0
    assert made["cost_nano"] == sum(stage["cost_nano"] for stage in made["stages"])
    assert made["facts"]["teachers"] == 10
    budget, left = made["budget"], before["left_nano"]
    assert (budget["affordable"], budget["left_nano"]) == (True, left)
    assert budget["left_after_nano"] == left - made["cost_nano"]
    assert served.balance(dataset["account_id"]) == before


def test_a_plan_above_the_budget_is_still_a_plan(served, dataset):
    budget = plan(served, dataset, epsilon=3.0)["budget"]
    assert (budget["affordable"], budget["left_after_nano"]) == (False, budget["left_nano"])


def test_the_command_line_tries_a_plan_on_public_images_at_no_cost(served, dataset, tmp_path):
    """What a preview does: tests/workers/train/test_previewing.py."""
    image = tmp_path / "preview.png"

    def forecast() -> None:
        wait_until(lambda: served.read("jobs")["items"])
        (job,) = served.read("jobs")["items"]
        found = {"accuracy": 0.2, "real": 0.9, "chance": 0.1, "stand_in": "generated patterns"}
        served.finish(kinds.preview.KIND.finish, job["id"], results=found, grid=b"\x89PNG")

    words = ("plan", dataset["id"], "-r", "moments", "-e", "1", "--preview", "--image", str(image))
    ran, _ = at_once(lambda: served.obscura(*words), forecast)
    assert ran.exit_code == 0, ran.output
    assert "This is a forecast on other images, not a promise." in ran.stdout
    assert image.read_bytes() == b"\x89PNG"
    assert served.balance(dataset["account_id"])["reserved_nano"] == 0


def test_a_job_holds_its_price(served, dataset):
    price = plan(served, dataset)["cost_nano"]
    answer = served.train(dataset["id"])
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{job['id']}")
    assert (job["state"], job["cost_nano"]) == ("queued", price)
    assert served.balance(dataset["account_id"])["reserved_nano"] == price


def test_keys_of_different_callers_do_not_meet(served, dataset):
    asked = [served.train(dataset["id"], key="once", scope=scope, epsilon=0.5) for scope in ("admin", "train")]
    assert len({answer.json()["id"] for answer in asked}) == 2


def test_an_idempotency_key_is_needed(served, dataset):
    body = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 0.5, "options": SMALL}
    for headers in ({}, *({"Idempotency-Key": key} for key in ("", "x" * 201, "with space"))):
        refused = served.ask("POST", "jobs", body, scope="train", headers=headers, status=422)
        assert "Idempotency-Key" in refused["detail"]


def test_a_job_tells_only_what_is_allowed(served, job):
    attempt = served.claim(job["id"])
    served.progress(job["id"], attempt, stage="votes", step=3, steps=10, eta_seconds=12.5)
    with transaction(served.factory) as session:
        row = session.execute(text("SELECT secret, lease_owner, hold_id FROM jobs")).one()
        session.execute(text("UPDATE jobs SET progress = json_set(progress, '$.loss', 'CANARY-LOSS')"))
    shown = served.read(f"jobs/{job['id']}")
    assert set(shown["progress"]) == {
        "stage", "step", "steps", "charged_nano", "planned_nano", "charged_epsilon", "planned_epsilon", "eta_seconds",
        "silent_minutes",
    }  # fmt: skip
    assert (shown["progress"]["step"], shown["progress"]["planned_nano"]) == (3, job["cost_nano"])
    everything = served.client("read").get(f"/v1/jobs/{job['id']}").text + served.client("read").get("/v1/jobs").text
    for private in (*row, "CANARY", '"lease', "secret", "attempt"):
        assert private not in everything


def test_a_job_that_shows_no_sign_of_life_says_so_while_it_runs(served, job):
    attempt = served.claim(job["id"])
    this = {"job_id": job["id"], "attempt": attempt}
    assert served.read(f"jobs/{job['id']}")["progress"]["silent_minutes"] is None
    served.do(jobs.report_silence, **this, minutes=5)
    assert served.read(f"jobs/{job['id']}")["progress"]["silent_minutes"] == 5
    served.do(jobs.give_back, **this, now=utc_now())
    assert served.read(f"jobs/{job['id']}")["progress"]["silent_minutes"] is None


def test_pending_jobs_say_when_to_ask_again(served, job):
    path = f"/v1/jobs/{job['id']}"
    assert int(served.client("read").get(path).headers["retry-after"]) > 0
    served.publish(job["id"], served.claim(job["id"]))
    done = served.client("read").get(path)
    assert "retry-after" not in done.headers
    assert re.fullmatch(r"rel_[a-z2-7]{20}", done.json()["release_id"])


def answer_to(served: Any, dataset_id: str, *, key: str = "", scope: str = "train", **changes: Any) -> httpx.Response:
    """Ask for a sweep."""
    trials = [{"options": SMALL | {"beta": share}} for share in (0.1, 0.2, 0.3)]
    body = {"name": "shares", "dataset_id": dataset_id, "recipe": "datalens", "epsilon": 0.3, "trials": trials}
    headers = {"Idempotency-Key": key or new_id("key")}
    return served.client(scope).post("/v1/sweeps", json=body | changes, headers=headers)


def ask(served: Any, dataset_id: str, *, status: int = 202, **changes: Any) -> Any:
    answer = answer_to(served, dataset_id, **changes)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_missing_extractor_is_refused_before_anything_is_held(served):
    dataset = dict(served.ready_dataset(served.account(epsilon=60.0)["id"]))
    options = {"architecture": "pretrained_linear", "extractor": "imagenet"}
    asked: dict[str, Any] = {"recipe": "dp_classifier", "epsilon": 15.0}
    trials = [{"options": {"architecture": "cnn"}}, {"options": options}]

    def answers(status: int, accepted: int) -> list[dict[str, Any]]:
        planned = plan(served, dataset, **asked, options=options, status=status)
        training = served.train(dataset["id"], **asked, options=options)
        assert training.status_code == accepted
        return [planned, training.json(), ask(served, dataset["id"], **asked, trials=trials, status=accepted)]

    folder = served.data_dir / "extractors"
    folder.mkdir()
    for name in ("imagenet.json", "other.json", "other.safetensors"):
        (folder / name).write_text("{}")
    for refused in answers(422, 422):
        assert "no extractor imagenet: it has other" in refused["detail"]
    assert served.balance(dataset["account_id"])["reserved_nano"] == 0
    assert served.read("jobs")["items"] == []
    (folder / "imagenet.safetensors").write_bytes(b"")
    answers(200, 202)


def test_all_trials_are_held_and_shown(served, dataset):
    answer = answer_to(served, dataset["id"], trials=[{"options": SMALL}, {"options": SMALL, "epsilon": 0.5}])
    sweep = answer.json()
    assert answer.status_code == 202, sweep
    assert (sweep["state"], sweep["best_job_id"]) == ("open", None)
    assert [(trial["epsilon"], trial["state"]) for trial in sweep["trials"]] == [(0.3, "queued"), (0.5, "queued")]
    totals = sweep["totals"]
    assert totals["cost_nano"] == totals["reserved_nano"] == sum(trial["reserved_nano"] for trial in sweep["trials"])
    assert (totals["spent_nano"], totals["returned_nano"]) == (0, 0)
    assert served.balance(dataset["account_id"])["reserved_nano"] == totals["cost_nano"]
    read = served.client("read").get(answer.headers["location"])
    assert (read.json(), read.headers["retry-after"]) == (sweep, "2")
    assert [item["id"] for item in served.read("sweeps")["items"]] == [sweep["id"]]


def test_a_finished_sweep_names_the_best_on_public_data(served, dataset, client):
    sweep = ask(served, dataset["id"])
    trained = [trial["job_id"] for trial in sweep["trials"]]
    releases = [served.publish(job_id, served.claim(job_id)) for job_id in trained[:2]]
    # The other recognises more images, and fewer of the rare classes.
    served.change(Release, releases[0], summary={"accuracy": {"cnn": 0.95}, "balanced_accuracy": {"cnn": 0.5}})
    served.change(Release, releases[1], summary={"accuracy": {"cnn": 0.9, "mlp": 0.8}})
    found = client.sweeps.get(sweep["id"])
    assert (found.state, found.finished) == ("open", False)
    seen: list[str] = []
    client.transport.sleep = lambda _seconds: seen.append(found.cancel().state)
    ended = found.wait()
    assert seen == ["ended"]
    assert [trial.state for trial in ended.trials] == ["succeeded", "succeeded", "cancelled"]
    assert [(trial.accuracy or {}).get("cnn") for trial in ended.trials] == [0.95, 0.9, None]
    assert [trial.compared_by for trial in ended.trials] == [0.5, 0.9, None]
    assert (ended.best_job_id, ended.best().id) == (trained[1], releases[1])
    totals = ended.totals
    spent_nano = served.balance(dataset["account_id"])["spent_nano"]
    assert (totals.spent_nano, totals.reserved_nano) == (spent_nano, 0)
    assert totals.returned_nano == totals.cost_nano - spent_nano < totals.cost_nano


def test_a_sweep_without_measurements_has_no_best(served, dataset, client):
    named = {"name": "x", "recipe": "datalens"}
    made = client.sweeps.create(dataset["id"], **named, trials=[{"options": SMALL}] * 2, epsilon=0.2)
    assert [found.id for found in client.sweeps.list()] == [made.id]
    with pytest.raises(NotFoundError):
        made.cancel().best()
    with pytest.raises(BudgetError) as refused:
        client.sweeps.create(dataset["id"], **named, trials=[{"options": SMALL}] * 9, epsilon=1.9)
    assert refused.value.numbers["trials_affordable"] == 1


def test_a_preview_is_asked_for_read_and_costs_nothing(served, dataset):
    body = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 1.0}
    asked = served.send("previews", body, key="once", scope="train", status=202)
    assert asked == served.send("previews", body, key="once", scope="train", status=202)
    assert (asked["state"], asked["accuracy"], asked["verdict"]) == ("queued", None, None)
    assert served.read(f"previews/{asked['id']}") == asked
    assert served.read(f"jobs/{asked['job_id']}")["kind"] == "preview"
    assert served.balance(dataset["account_id"])["reserved_nano"] == 0
    problem(served.client("read").get(f"/v1/previews/{asked['id']}/grid.png"), 409, "pending")


# --- streams of events, which last as long as the job ----------------------------------------------------------------


def test_a_stream_ends_with_the_final_state(served, job):
    attempt = served.claim(job["id"])
    served.progress(job["id"], attempt, stage="votes", step=1, steps=2)
    with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        stream = (event for event in EventSource(answer).iter_sse() if event.data)
        found = [next(stream)]
        served.progress(job["id"], attempt, stage="votes", step=2, steps=2)
        found.append(next(stream))
        release_id = served.publish(job["id"], attempt)
        found += stream
    assert found[-1].event == "finished"
    assert {event.event for event in found[:-1]} == {"progress"}
    assert '"step":1' in found[0].data
    assert '"step":2' in found[1].data
    assert f'"release_id":"{release_id}"' in found[-1].data
    assert len({event.id for event in found}) == len(found)


def test_a_stopping_service_ends_its_streams(served, job):
    stopping = served.app.state.service.stopping
    with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        lines = answer.iter_lines()
        next(lines)
        stopping.set()
        assert ": still here" not in lines, "it goes on until its next heartbeat"
    stopping.clear()


def test_a_stream_ends_when_its_key_is_revoked(served, job):
    mine, other = (served.make_key(name, "read") for name in ("mine", "other"))
    path, ended = f"/v1/jobs/{job['id']}/events", threading.Event()

    def follow_until_the_end() -> None:
        with served.client("mine").stream("GET", path) as answer:
            for _ in answer.iter_lines():
                pass
        ended.set()

    threading.Thread(target=follow_until_the_end, daemon=True).start()
    wait_for_streams(served, 1)
    served.send(f"keys/{other['id']}/revoke")
    assert not ended.wait(0.5)
    served.send(f"keys/{mine['id']}/revoke")
    assert ended.wait(30), "the stream goes on"
    wait_for_streams(served, 0)
    assert served.enters("mine") == [False]
