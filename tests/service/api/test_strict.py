"""Strict requests: unknown fields and unreadable names are refused with the rule; request ids; filters of lists."""

import json

import pytest
import structlog

from obscura.wire.names import RULE
from tests.obscura.wire.test_names import REFUSED
from tests.service.api.conftest import ACCOUNT, DATASET


def test_what_is_unknown_is_refused_with_what_is_known(served):
    problem = served.read("jobs", status=422, limitt=3)
    assert problem["known"] == ["account_id", "state", "recipe", "limit", "cursor"]
    assert "account_id, state, recipe, limit, cursor" in problem["detail"]
    assert "takes none" in served.read("releases/rel_x", status=422, deep="1")["detail"]
    problem = served.send("accounts", {**ACCOUNT, "name": "x", "budget": 3}, status=422)
    (fault,) = problem["errors"]
    assert fault["pointer"] == "/body/budget"
    assert "name, owner, epsilon, delta, accept_large_delta, unit, adjacency" in fault["message"]
    trial = {"options": {}, "epsilonn": 1}
    search = {"name": "x", "dataset_id": "ds_x", "recipe": "datalens", "trials": [trial, trial]}
    errors = served.send("sweeps", search, key="k", status=422)["errors"]
    assert {fault["message"] for fault in errors} == {"this field is unknown; the known ones are options, epsilon"}


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""])
def test_a_body_that_is_no_json_is_refused_by_its_kind(served, kind):
    body = json.dumps({**ACCOUNT, "name": "x"}).encode()
    answer = served.client().post("/v1/accounts", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "application/json" in answer.json()["detail"]
    kinds = ("application/json; charset=utf-8", "application/merge-patch+json")
    for number, good in enumerate(kinds):
        body = json.dumps({**ACCOUNT, "name": f"x{number}"}).encode()
        assert served.client().post("/v1/accounts", content=body, headers={"Content-Type": good}).status_code == 201


def test_an_upload_as_a_form_is_refused_by_its_kind(served):
    dataset = served.dataset()
    answer = served.client().put(f"/v1/datasets/{dataset['id']}/content?format=npz", files={"file": ("x.npz", b"x")})
    assert answer.status_code == 415
    assert "curl -T" in answer.json()["detail"]


def test_requests_are_named_in_answers_and_in_the_log(served):
    ask = served.client("read").get
    given = ask("/v1/jobs", headers={"X-Request-Id": "build-17.retry_2"})
    assert given.headers["x-request-id"] == "build-17.retry_2"
    names = {ask("/v1/nothing", headers={"X-Request-Id": bad}).headers["x-request-id"] for bad in ("", "a b", "x" * 65)}
    assert len(names) == 3
    assert all(len(name) == 32 for name in names)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        served.client(None).post("/login", data={"key": "obs_wrong"}, headers={"X-Request-Id": "me"})
    assert [line["request_id"] for line in lines if line["event"] == "dashboard_sign_in_refused"] == ["me"]


def test_lists_are_narrowed(served):
    mine, other = served.account(), served.account()
    dataset = served.ready_dataset(mine["id"])
    waiting = served.dataset(visibility="private", account_id=other["id"])
    job = served.train(dataset["id"], epsilon=0.1).json()

    def ids(path: str, **params: str) -> set[str]:
        return {row["id"] for row in served.everything(path, **params)}

    assert ids("datasets", account_id=mine["id"]) == ids("datasets", state="ready") == {dataset["id"]}
    assert ids("datasets", state="declared", account_id=other["id"]) == {waiting["id"]}
    assert ids("jobs", account_id=mine["id"]) == ids("jobs", state="queued", recipe="datalens") == {job["id"]}
    assert ids("jobs", recipe="dpgan") == ids("jobs", state="running") == ids("jobs", account_id=other["id"]) == set()
    assert ids("releases", account_id=mine["id"]) == ids("sweeps", account_id=mine["id"]) == set()
    assert "queued" in served.read("jobs", status=422, state="asleep")["detail"]
    assert "dpgan" in served.read("jobs", status=422, recipe="nothing")["detail"]


# --- names ---


def test_a_name_that_people_cannot_read_is_refused_with_the_rule(served):
    refused = served.send("accounts", {**ACCOUNT, "name": REFUSED["turns around"]}, status=422)
    assert [RULE in fault["message"] for fault in refused["errors"]] == [True]


def test_two_classes_are_not_one_name_in_two_spellings(served):
    refused = served.send("datasets", {**DATASET, "classes": ["café", "cafe\u0301"]}, status=422)
    assert "distinct" in refused["detail"]


def test_names_are_stored_in_form_c(served):
    account = served.send("accounts", {**ACCOUNT, "name": "  Ko\u0308ln\u00a0患者 "}, status=201)
    assert account["name"] == "Köln 患者"
    served.send("accounts", {**ACCOUNT, "name": "Köln 患者"}, status=409)
    made = served.send("datasets", {**DATASET, "classes": ["cafe\u0301", "boot"]}, status=201)
    assert made["classes"] == ["café", "boot"]
