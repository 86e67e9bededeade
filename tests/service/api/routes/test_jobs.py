"""Plans, jobs and sweeps over HTTP: prices, holds, idempotency, cancelling, what a job may say, all trials or none."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.client import BudgetError, Client, NotFoundError
from service.db.base import new_id
from service.db.job_tables import Release
from service.db.session import transaction

OPTIONS = {"teachers": 10, "top_k": 4, "images": 50}


@pytest.fixture
def dataset(served: Any) -> dict[str, Any]:
    """A private dataset that is ready."""
    return dict(served.ready_dataset(served.account(name="patients")["id"]))


def balance(served: Any, dataset: dict[str, Any]) -> dict[str, Any]:
    return dict(served.client("read").get(f"/v1/accounts/{dataset['account_id']}").json()["balance"])


def plan(served: Any, dataset: dict[str, Any], **changes: Any) -> Any:
    body = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 1.0, "options": OPTIONS} | changes
    return served.client("read").post("/v1/plans", json=body)


def test_a_plan_says_what_it_buys_and_what_would_be_left(served: Any, dataset: dict[str, Any]) -> None:
    before = balance(served, dataset)
    made = plan(served, dataset).json()
    assert 0 < made["price_epsilon"] <= 1.0
    assert made["price_nano"] == sum(stage["price_nano"] for stage in made["stages"])
    assert made["buys"]["teachers"] == 10
    assert made["budget"]["affordable"] is True
    assert made["budget"]["left_nano"] == before["left_nano"]
    assert made["budget"]["left_after_nano"] == before["left_nano"] - made["price_nano"]
    assert balance(served, dataset) == before


def test_a_plan_above_the_budget_is_still_a_plan(served: Any, dataset: dict[str, Any]) -> None:
    made = plan(served, dataset, epsilon=3.0).json()
    assert made["budget"]["affordable"] is False
    assert made["budget"]["left_after_nano"] == made["budget"]["left_nano"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipe": "alchemy"}, "recipe"),
        ({"options": {"teachres": 4}}, "teachres"),
        ({"options": OPTIONS | {"top_k": 1000}}, "top_k"),
        ({"options": OPTIONS | {"teachers": 1000}}, "teachers"),
    ],
)
def test_refused_plans_teach(served: Any, dataset: dict[str, Any], changes: dict[str, Any], word: str) -> None:
    answer = plan(served, dataset, **changes)
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    refused = served.train(dataset["id"], **changes)
    assert refused.status_code == 422
    assert balance(served, dataset)["held_nano"] == 0


def test_delta_above_one_over_n(served: Any) -> None:
    account = served.account(delta=0.05)
    dataset = served.dataset(visibility="private", account_id=account["id"])
    answer = plan(served, dataset)
    assert answer.status_code == 422
    assert answer.json()["delta_max"] == 0.01


def test_a_job_holds_its_price(served: Any, dataset: dict[str, Any]) -> None:
    price = plan(served, dataset).json()["price_nano"]
    answer = served.train(dataset["id"])
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["state"] == "queued"
    assert job["price_nano"] == price
    assert balance(served, dataset)["held_nano"] == price


def test_a_job_that_the_account_cannot_pay(served: Any, dataset: dict[str, Any]) -> None:
    first = served.train(dataset["id"], epsilon=1.5).json()
    answer = served.train(dataset["id"], epsilon=1.5)
    assert answer.status_code == 409
    problem = answer.json()
    assert problem["code"] == "insufficient_budget"
    assert problem["requested_epsilon"] == 1.5
    assert problem["limit_epsilon"] == 2.0
    assert problem["held_nano"] == first["price_nano"]
    assert problem["spent_nano"] == 0
    assert problem["left_nano"] == balance(served, dataset)["left_nano"]
    affordable = problem["affordable_epsilon"]
    assert 0 < affordable < 1.5
    assert f"{affordable:g}" in problem["detail"]
    assert served.train(dataset["id"], epsilon=affordable).status_code == 202


def test_the_same_key_and_body_is_the_same_job(served: Any, dataset: dict[str, Any]) -> None:
    first = served.train(dataset["id"], key="once")
    again = served.train(dataset["id"], key="once")
    assert again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    assert balance(served, dataset)["held_nano"] == first.json()["price_nano"]
    other = served.train(dataset["id"], key="once", epsilon=0.5)
    assert other.status_code == 422
    assert other.json()["code"] == "idempotency_mismatch"


def test_keys_of_different_callers_do_not_meet(served: Any, dataset: dict[str, Any]) -> None:
    body = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 0.5, "options": OPTIONS}
    headers = {"Idempotency-Key": "once"}
    ids = {
        served.client(scope).post("/v1/jobs", json=body, headers=headers).json()["id"] for scope in ("admin", "train")
    }
    assert len(ids) == 2


@pytest.mark.parametrize("key", [None, "", "x" * 201, "with space"])
def test_an_idempotency_key_is_needed(served: Any, dataset: dict[str, Any], key: str | None) -> None:
    body = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 0.5, "options": OPTIONS}
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = served.client("train").post("/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["detail"]


def test_cancelling_a_queued_job_returns_its_hold(served: Any, dataset: dict[str, Any]) -> None:
    job = served.train(dataset["id"]).json()
    answer = served.client("train").post(f"/v1/jobs/{job['id']}/cancel")
    assert answer.json()["state"] == "cancelled"
    assert balance(served, dataset)["held_nano"] == 0
    assert served.client("train").post(f"/v1/jobs/{job['id']}/cancel").status_code == 200


def test_cancelling_a_running_job_asks_it(served: Any, dataset: dict[str, Any]) -> None:
    job = served.train(dataset["id"]).json()
    served.claim(job["id"])
    answer = served.client("train").post(f"/v1/jobs/{job['id']}/cancel").json()
    assert answer["state"] == "running"
    assert answer["cancel_requested"] is True


def test_cancelling_what_has_succeeded_is_a_conflict(served: Any, dataset: dict[str, Any]) -> None:
    job = served.train(dataset["id"]).json()
    served.publish(job["id"], served.claim(job["id"]))
    assert served.client("train").post(f"/v1/jobs/{job['id']}/cancel").status_code == 409


def test_a_job_tells_only_what_is_allowed(served: Any, dataset: dict[str, Any]) -> None:
    job = served.train(dataset["id"]).json()
    attempt = served.claim(job["id"])
    served.progress(job["id"], attempt, stage="votes", step=3, steps=10, eta_seconds=12.5)
    with transaction(served.factory) as session:
        row = session.execute(text("SELECT secret, lease_owner, hold_id FROM jobs")).one()
        session.execute(text("UPDATE jobs SET progress = json_set(progress, '$.loss', 'CANARY-LOSS')"))
    shown = served.client("read").get(f"/v1/jobs/{job['id']}").json()
    assert set(shown["progress"]) == {
        "stage", "step", "steps", "charged_nano", "planned_nano", "charged_epsilon", "planned_epsilon", "eta_seconds",
    }  # fmt: skip
    assert shown["progress"]["step"] == 3
    assert shown["progress"]["planned_nano"] == job["price_nano"]
    everything = served.client("read").get(f"/v1/jobs/{job['id']}").text + served.client("read").get("/v1/jobs").text
    for private in (*row, "CANARY", '"lease', "secret", "attempt"):
        assert private not in everything


def test_pending_jobs_say_when_to_ask_again(served: Any, dataset: dict[str, Any]) -> None:
    job = served.train(dataset["id"]).json()
    path = f"/v1/jobs/{job['id']}"
    assert int(served.client("read").get(path).headers["retry-after"]) > 0
    served.publish(job["id"], served.claim(job["id"]))
    done = served.client("read").get(path)
    assert "retry-after" not in done.headers
    assert re.fullmatch(r"rel_[a-z2-7]{20}", done.json()["release_id"])


def test_failures_are_named_from_a_closed_set(served: Any, dataset: dict[str, Any]) -> None:
    from service import jobs
    from service.main import utc_now

    job = served.train(dataset["id"]).json()
    attempt = served.claim(job["id"])
    with transaction(served.factory) as session:
        code = jobs.FailureCode.OUT_OF_MEMORY
        jobs.finish_failed(session, job_id=job["id"], attempt=attempt, failure_code=code, now=utc_now())
    shown = served.client("read").get(f"/v1/jobs/{job['id']}").json()
    assert shown["failure"]["code"] == "out_of_memory"
    assert "memory" in shown["failure"]["message"]


def test_a_broker_that_is_away_loses_no_job(served: Any, dataset: dict[str, Any]) -> None:
    job = served.train(dataset["id"], key=new_id("key")).json()
    with transaction(served.factory, read_only=True) as session:
        waiting = session.execute(text("SELECT count(*) FROM outbox WHERE sent_at IS NULL")).scalar_one()
    assert waiting == 1
    assert served.claim(job["id"]) == 1


def test_a_missing_extractor_is_refused_before_anything_is_held(served: Any) -> None:
    dataset = dict(served.ready_dataset(served.account(epsilon=30.0)["id"]))
    options = {"architecture": "pretrained_linear", "extractor": "imagenet"}
    asked: dict[str, Any] = {"recipe": "dp_classifier", "options": options, "epsilon": 15.0}
    trials = [{"options": {"architecture": "cnn"}}, {"options": options}]
    sweep = {"name": "s", "dataset_id": dataset["id"], "recipe": "dp_classifier", "epsilon": 15.0, "trials": trials}
    client = served.client()

    def sweep_answer() -> Any:
        return client.post("/v1/sweeps", json=sweep, headers={"Idempotency-Key": new_id("key")})

    folder = served.data_dir / "extractors"
    folder.mkdir()
    (folder / "imagenet.json").write_text("{}")
    (folder / "other.json").write_text("{}")
    (folder / "other.safetensors").write_bytes(b"")
    for answer in (plan(served, dataset, **asked), served.train(dataset["id"], **asked), sweep_answer()):
        assert answer.status_code == 422
        assert "no extractor imagenet: there are other" in answer.json()["detail"]
    assert balance(served, dataset)["held_nano"] == 0
    assert client.get("/v1/jobs").json()["items"] == []
    (folder / "imagenet.safetensors").write_bytes(b"")
    assert plan(served, dataset, **asked).status_code == 200
    assert served.train(dataset["id"], **asked).status_code == 202
    assert sweep_answer().status_code == 202


def ask(
    served: Any, dataset_id: str, *, key: str | None = None, scope: str = "train", **changes: Any
) -> httpx.Response:
    body = {"name": "shares", "dataset_id": dataset_id, "recipe": "datalens", "epsilon": 0.3}
    body |= {"trials": [{"options": OPTIONS | {"vote_share": share}} for share in (0.1, 0.2, 0.3)]} | changes
    answer: httpx.Response = served.client(scope).post(
        "/v1/sweeps", json=body, headers={"Idempotency-Key": key or new_id("key")}
    )
    return answer


@pytest.fixture
def account(served: Any) -> dict[str, Any]:
    made: dict[str, Any] = served.account(epsilon=2.0)
    return made


@pytest.fixture
def dataset_id(served: Any, account: dict[str, Any]) -> str:
    return str(served.ready_dataset(account["id"])["id"])


def test_all_trials_are_held_and_shown(served: Any, account: dict[str, Any], dataset_id: str) -> None:
    trials = [{"options": OPTIONS}, {"options": OPTIONS, "epsilon": 0.5}]
    answer = ask(served, dataset_id, trials=trials)
    assert answer.status_code == 202, answer.text
    sweep = answer.json()
    assert (sweep["state"], sweep["best_job_id"]) == ("open", None)
    assert [trial["epsilon"] for trial in sweep["trials"]] == [0.3, 0.5]
    assert {trial["state"] for trial in sweep["trials"]} == {"queued"}
    totals = sweep["totals"]
    assert totals["price_nano"] == totals["held_nano"] == sum(trial["held_nano"] for trial in sweep["trials"])
    assert (totals["spent_nano"], totals["returned_nano"]) == (0, 0)
    balance = served.client().get(f"/v1/accounts/{account['id']}").json()["balance"]
    assert balance["held_nano"] == totals["price_nano"]
    read = served.client("read").get(answer.headers["location"])
    assert read.json() == sweep
    assert read.headers["retry-after"] == "2"
    listed = served.client("read").get("/v1/sweeps").json()
    assert [item["id"] for item in listed["items"]] == [sweep["id"]]


def test_too_many_trials_are_refused_with_how_many_would_fit(served: Any, dataset_id: str) -> None:
    answer = ask(served, dataset_id, trials=[{"options": OPTIONS}] * 64)
    assert (answer.status_code, answer.json()["code"]) == (409, "insufficient_budget")
    problem = answer.json()
    assert problem["trials"] == 64
    assert 0 < problem["trials_affordable"] < 64
    assert problem["epsilon_affordable_for_each"] > 0
    assert "Nothing was accepted" in problem["detail"]
    assert served.client().get("/v1/jobs").json()["items"] == []
    assert ask(served, dataset_id, trials=[{"options": OPTIONS}] * problem["trials_affordable"]).status_code == 202


def test_requests_that_cannot_be(served: Any, dataset_id: str) -> None:
    for changes in (
        {"trials": [{"options": OPTIONS}]},
        {"trials": [{"options": OPTIONS}] * 65},
        {"trials": [{"options": OPTIONS, "seed": 1}] * 2},
        {"epsilon": None},
        {"epsilon": -1},
        {"name": ""},
        {"trials": [{"options": OPTIONS}, {"options": {"no_such": 1}}]},
    ):
        assert ask(served, dataset_id, **changes).status_code == 422, changes
    assert (
        "Trial 2 has no epsilon"
        in ask(served, dataset_id, epsilon=None, trials=[{"epsilon": 0.1}, {"options": OPTIONS}]).json()["detail"]
    )
    assert ask(served, dataset_id, scope="read").status_code == 403
    assert served.client("train").post("/v1/sweeps", json={}).status_code == 422
    assert served.client().get("/v1/sweeps/swp_x").status_code == 404
    assert served.client().post("/v1/sweeps/swp_x/cancel").status_code == 404


def test_a_retry_starts_nothing_twice(served: Any, dataset_id: str) -> None:
    first = ask(served, dataset_id, key="again").json()
    assert ask(served, dataset_id, key="again").json()["id"] == first["id"]
    assert ask(served, dataset_id, key="again", name="other").json()["code"] == "idempotency_mismatch"
    assert len(served.client().get("/v1/jobs").json()["items"]) == 3


def test_a_finished_sweep_names_the_best_on_public_data(served: Any, dataset_id: str) -> None:
    sweep = ask(served, dataset_id).json()
    jobs = [trial["job_id"] for trial in sweep["trials"]]
    releases = [served.publish(job_id, served.claim(job_id), charge_nano=500) for job_id in jobs[:2]]
    with transaction(served.factory) as session:
        session.get_one(Release, releases[1]).summary = {"accuracy": {"cnn": 0.9, "mlp": 0.8}}
    with Client(served.url, served.tokens["admin"]) as client:
        found = client.sweep(sweep["id"])
        assert (found.state, found.finished) == ("open", False)
        seen: list[str] = []
        client.transport.sleep = lambda _seconds: seen.append(found.cancel().state)
        ended = found.wait()
        assert seen == ["ended"]
        assert [trial.state for trial in ended.trials] == ["succeeded", "succeeded", "cancelled"]
        assert [(trial.accuracy or {}).get("cnn") for trial in ended.trials] == [0.7, 0.9, None]
        assert ended.best_job_id == jobs[1]
        assert ended.best().id == releases[1]
        totals = ended.totals
        assert (totals.spent_nano, totals.held_nano) == (1000, 0)
        assert totals.returned_nano == totals.price_nano - 1000


def test_a_sweep_without_measurements_has_no_best(served: Any, dataset_id: str) -> None:
    with Client(served.url, served.tokens["admin"]) as client:
        made = client.sweep_over(
            dataset_id, name="x", recipe="datalens", trials=[{"options": OPTIONS}] * 2, epsilon=0.2
        )
        assert [found.id for found in client.sweeps()] == [made.id]
        with pytest.raises(NotFoundError):
            made.cancel().best()
        with pytest.raises(BudgetError) as refused:
            client.sweep_over(dataset_id, name="x", recipe="datalens", trials=[{"options": OPTIONS}] * 9, epsilon=1.9)
        assert refused.value.numbers["trials_affordable"] == 1
