"""Sweeps over HTTP and in the client: all trials or none, their figures, and the best on public data."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.client import BudgetError, Client, NotFoundError
from service.db.base import new_id
from service.db.job_tables import Release
from service.db.session import transaction

SMALL = {"teachers": 10, "top_k": 4, "images": 50}


def ask(
    served: Any, dataset_id: str, *, key: str | None = None, scope: str = "train", **changes: Any
) -> httpx.Response:
    body = {"name": "shares", "dataset_id": dataset_id, "recipe": "datalens", "epsilon": 0.3}
    body |= {"trials": [{"options": SMALL | {"vote_share": share}} for share in (0.1, 0.2, 0.3)]} | changes
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
    trials = [{"options": SMALL}, {"options": SMALL, "epsilon": 0.5}]
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
    answer = ask(served, dataset_id, trials=[{"options": SMALL}] * 64)
    assert (answer.status_code, answer.json()["code"]) == (409, "insufficient_budget")
    problem = answer.json()
    assert problem["trials"] == 64
    assert 0 < problem["trials_affordable"] < 64
    assert problem["epsilon_affordable_for_each"] > 0
    assert "Nothing was accepted" in problem["detail"]
    assert served.client().get("/v1/jobs").json()["items"] == []
    assert ask(served, dataset_id, trials=[{"options": SMALL}] * problem["trials_affordable"]).status_code == 202


def test_requests_that_cannot_be(served: Any, dataset_id: str) -> None:
    for changes in (
        {"trials": [{"options": SMALL}]},
        {"trials": [{"options": SMALL}] * 65},
        {"trials": [{"options": SMALL, "seed": 1}] * 2},
        {"epsilon": None},
        {"epsilon": -1},
        {"name": ""},
        {"trials": [{"options": SMALL}, {"options": {"no_such": 1}}]},
    ):
        assert ask(served, dataset_id, **changes).status_code == 422, changes
    assert (
        "Trial 2 has no epsilon"
        in ask(served, dataset_id, epsilon=None, trials=[{"epsilon": 0.1}, {"options": SMALL}]).json()["detail"]
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
        made = client.sweep_over(dataset_id, name="x", recipe="datalens", trials=[{"options": SMALL}] * 2, epsilon=0.2)
        assert [found.id for found in client.sweeps()] == [made.id]
        with pytest.raises(NotFoundError):
            made.cancel().best()
        with pytest.raises(BudgetError) as refused:
            client.sweep_over(dataset_id, name="x", recipe="datalens", trials=[{"options": SMALL}] * 9, epsilon=1.9)
        assert refused.value.numbers["trials_affordable"] == 1
