"""Every error is a problem document, every route but health has a key, no detail leaks, and requests are strict."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from fastapi.routing import APIRoute

import service
from obscura.wire.texts import RULE
from service.api.problems import STATUSES
from service.db.ledger_tables import Account
from service.errors import ObscuraError
from tests.obscura.wire.test_texts import REFUSED
from tests.service.api.conftest import ACCOUNT, DATASET, problem
from tests.together import ready

OPEN_ROUTES = {"/v1/health/live", "/v1/health/ready", "/v1/openapi.json"}


def api_operations(app: Any) -> list[tuple[str, str]]:
    paths = app.openapi()["paths"]
    return [(method.upper(), path) for path, operations in paths.items() for method in operations]


def filled(path: str) -> str:
    return path.replace("{", "").replace("}", "")


def test_every_route_needs_a_key(served):
    operations = api_operations(served.app)
    assert len(operations) > 20
    for method, path in operations:
        if path in OPEN_ROUTES:
            assert served.client(None).request(method, path).status_code == 200
            continue
        answer = served.client(None).request(method, filled(path))
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_no_api_route_is_outside_the_document_that_the_walk_reads(served):
    documented = {path for _, path in api_operations(served.app)}
    mounted = {route.path for route in served.app.routes if isinstance(route, APIRoute)}
    assert {path for path in mounted if path.startswith("/v1")} <= documented | OPEN_ROUTES


def test_every_route_declares_one_scope_and_refuses_keys_without_it(served):
    for path, operations in served.app.openapi()["paths"].items():
        for method, operation in operations.items():
            if path in OPEN_ROUTES:
                continue
            (needed,) = operation["security"][0]["ApiKey"]
            other = "data" if needed == "train" else "train"
            document = problem(served.client(other).request(method, filled(path)), 403, "forbidden")
            assert document["needed"] == needed


@pytest.mark.parametrize("header", ["Bearer nonsense", f"Bearer obs_{'a' * 20}_{'0' * 64}", "Basic eDp5", "Bearer"])
def test_bad_tokens_are_refused(served, header):
    answer = served.client(None).get("/v1/accounts", headers={"Authorization": header})
    problem(answer, 401, "unauthorized")


def test_unknown_addresses_and_methods(served):
    problem(served.client().get("/v1/nothing"), 404, "not_found")
    answer = served.client().delete("/v1/accounts")
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"]


def test_unknown_resources(served):
    for kind in ["accounts", "datasets", "jobs", "releases", "samples"]:
        problem(served.client("read").get(f"/v1/{kind}/no_such_thing"), 404, "not_found")


def test_invalid_bodies_say_where_without_echoing_the_value(served):
    body = {"name": "x", "owner": "x", "epsilon": "CANARY-VALUE", "delta": 2, "unit": "record"}
    document = problem(served.client().post("/v1/accounts", json=body), 422, "invalid_request")
    pointers = {error["pointer"] for error in document["errors"]}
    assert {"/body/epsilon", "/body/delta", "/body/adjacency"} <= pointers
    assert "CANARY-VALUE" not in str(document)


def test_epsilons_that_are_none_are_refused(served):
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    wrong = ("NaN", "Infinity", "-1", "0", "1e400")
    for path, epsilon in ((path, epsilon) for path in ("/v1/plans", "/v1/jobs") for epsilon in wrong):
        body = f'{{"dataset_id": "ds_x", "recipe": "datalens", "epsilon": {epsilon}}}'
        document = problem(served.client().post(path, content=body, headers=headers), 422, "invalid_request")
        assert document["errors"][0]["pointer"] == "/body/epsilon"


def test_broken_json(served):
    headers = {"Content-Type": "application/json"}
    problem(served.client().post("/v1/accounts", content="{", headers=headers), 422, "invalid_request")


def test_bodies_are_bounded_whatever_content_length_says(served):
    big = b'{"name": "' + b"x" * (served.app.state.settings.body_bytes_max + 1) + b'"}'
    headers = {"Content-Type": "application/json"}
    problem(served.client().post("/v1/accounts", content=big, headers=headers), 413, "too_large")
    streamed = served.client().post(
        "/v1/accounts", content=(big[i : i + 65536] for i in range(0, len(big), 65536)), headers=headers
    )
    problem(streamed, 413, "too_large")


def test_unexpected_errors_say_nothing(served):
    @served.app.get("/v1/breaks")
    def breaks() -> None:
        raise RuntimeError("CANARY-TRACE")

    served.app.router.routes.insert(0, served.app.router.routes.pop())
    answer = served.client().get("/v1/breaks")
    assert "CANARY" not in str(problem(answer, 500, "internal"))
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_corrupted_ledger_is_an_operators_matter(served):
    account = served.account()
    served.change(Account, account["id"], spent_nano=1)
    for address in (f"/v1/accounts/{account['id']}", "/v1/accounts"):
        answer = served.client().get(address)
        assert account["id"] not in problem(answer, 503, "ledger_corruption")["detail"]
        assert int(answer.headers["retry-after"]) > 0


def test_security_headers_are_on_every_answer(served):
    for answer in (
        served.client().get("/v1/accounts"),
        served.client(None).get("/v1/accounts"),
        served.client(None).get("/v1/health/live"),
        served.client().get("/v1/nothing"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers or "uvicorn" in answer.headers["server"]


def test_readiness_ends_when_the_service_stops(served):
    assert ready(served.client(None))["status"] == "ok"
    served.app.state.service.stopping.set()
    answer = served.client(None).get("/v1/health/ready")
    served.app.state.service.stopping.clear()
    problem(answer, 503, "busy")
    assert int(answer.headers["retry-after"]) > 0


def test_every_error_that_a_request_can_meet_has_a_status():
    """One that has none would be told as a fault of ours."""
    for module in pkgutil.walk_packages(service.__path__, "service."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(kind: type[ObscuraError]) -> Iterator[type[ObscuraError]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    # Raised where keys and signed files are read and backups made, which no request does.
    elsewhere = {"signature_refused", "signing_key_unusable", "backup_refused"}
    ours = {each.code for each in below(ObscuraError) if not each.__module__.startswith("workers.")}  # others' modules
    assert ours - set(STATUSES) == elsewhere


def test_what_is_unknown_is_refused_with_what_is_known(served):
    problem = served.read("jobs", status=422, limitt=3)
    assert problem["known"] == ["account_id", "state", "recipe", "limit", "cursor"]
    assert "account_id, state, recipe, limit, cursor" in problem["detail"]
    assert "accepts no query parameters" in served.read("releases/rel_x", status=422, deep="1")["detail"]
    problem = served.send("accounts", {**ACCOUNT, "name": "x", "budget": 3}, status=422)
    (fault,) = problem["errors"]
    assert fault["pointer"] == "/body/budget"
    assert "name, owner, epsilon, delta, accept_large_delta, unit, adjacency" in fault["message"]
    trial = {"options": {}, "epsilonn": 1}
    search = {"name": "x", "dataset_id": "ds_x", "recipe": "datalens", "trials": [trial, trial]}
    errors = served.send("sweeps", search, key="k", status=422)["errors"]
    assert {fault["message"] for fault in errors} == {"this field is unknown; the known fields are options, epsilon"}


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
    assert "are the same" in refused["detail"]
    served.send("datasets", {**DATASET, "classes": ["café", "cafe"]}, status=201)


def test_names_are_stored_in_form_c(served):
    account = served.send("accounts", {**ACCOUNT, "name": "  Ko\u0308ln\u00a0患者 "}, status=201)
    assert account["name"] == "Köln 患者"
    served.send("accounts", {**ACCOUNT, "name": "Köln 患者"}, status=409)
    made = served.send("datasets", {**DATASET, "classes": ["cafe\u0301", "boot"]}, status=201)
    assert made["classes"] == ["café", "boot"]
