"""Requests that once met a 5xx, each of which is the caller's fault, and generated ones. Both databases."""

import base64
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from benchmarks.api_stock import SMALL, lay_in
from service.api.answers import JSON_VALUES_MAX, encode_cursor
from service.api.events import StreamLimits
from service.api.problems import ERRORS_MAX
from service.datasets.vault import make_fingerprint_key
from service.db.access_tables import ApiKey, Decision
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample, Sweep
from service.db.ledger_tables import Account
from service.db.session import SessionFactory, transaction
from service.identity import admins, auth
from service.identity.access import Scope
from service.main import utc_now
from service.settings import Settings
from tests.service.api.conftest import ACCOUNT, DATASET, SCOPES, Served, connected, problem, received, serving

LISTS = ("accounts", "datasets", "jobs", "releases", "sweeps", "keys", "decisions")


@pytest.fixture(scope="module")
def served(place: Settings) -> Iterator[Served]:
    with serving(place, *SCOPES) as served:
        yield served


def raw(served: Any, request: bytes) -> bytes:
    """Send bytes that no client library would, and return the answer's head."""
    with connected(served.url, request) as connection:
        return received(connection, b"\r\n\r\n")


def test_budgets_that_mean_nothing_are_refused(served):
    deltas = [{"delta": 1e-309}, {"delta": 5e-324}, {"delta": 1e-300, "epsilon": 1e-300}, {"delta": 0.5}]
    for changes in (*deltas, {"epsilon": 1e-6}, {"epsilon": 1001}):
        served.send("accounts", {"name": "nobody", **ACCOUNT, **changes}, status=422)
    assert "nobody" not in [account["name"] for account in served.everything("accounts")]


def test_every_budget_that_is_taken_can_be_shown(served):
    for number, terms in enumerate(product((0.001, 1000), (1e-30, 0.1))):
        asked = ACCOUNT | dict(zip(("epsilon", "delta"), terms, strict=True)) | {"name": f"people {number}"}
        answer = served.client().post("/v1/accounts", json=asked)
        assert answer.status_code in (201, 422), answer.text  # too little to buy anything with is refused
    shown = served.client().get("/v1/accounts").json()["items"]
    assert shown
    assert all(math.isfinite(value) for item in shown for value in item["balance"].values())
    served.client().post("/login", data={"key": served.tokens["admin"]})
    assert served.client().get("/").status_code == 200


def test_a_stored_delta_that_is_out_of_range_breaks_no_page(served):
    """It was taken once, and stands in the ledger for ever."""
    sound, odd = served.account(), served.account()
    served.change(Account, odd["id"], delta=1e-309)
    client = served.client()
    client.post("/login", data={"key": served.tokens["admin"]})
    for page in ("/", "/parts/budgets", f"/accounts/{odd['id']}", "/v1/accounts", f"/v1/accounts/{odd['id']}"):
        assert client.get(page).status_code == 200, page
    assert sound["name"] in client.get("/").text


def test_a_host_that_is_none_is_a_bad_request(served):
    for host in (b"[", b"[::1", b"a b", b"\xff", b"", b"[zz]", b"x:y", b"a,b"):
        for path in (b"/", b"/login", b"/v1/accounts", b"/v1/health/live", b"/nothing"):
            answer = raw(served, b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400"), (host, path, answer)
    for host in (b"localhost", b"127.0.0.1:8420", b"[::1]:8420", b"obscura.example"):
        answer = raw(served, b"GET /v1/health/live HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), (host, answer)


def test_an_origin_that_is_none_is_another_site(served):
    for origin in ("http://[", "http://[::1", "//", "null", "http://elsewhere"):
        answer = served.client(None).post("/login", data={"key": "x"}, headers={"Origin": origin})
        assert answer.status_code == 403, (origin, answer.text)


def cursor(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


CURSORS = [
    *(cursor([moment, "x"]) for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "\ud800")),
    *(cursor(["2030-01-01T00:00:00+00:00", name]) for name in ("\ud800", "\0")),
    *(cursor([value]) for value in ("\0", "\ud800", "x" * 300, 10**30, -1, 2**63, True)),
    *(cursor({}), encode_cursor(["x", "y", "z"]), "%00", "é", "A" * 499, "A" * 600),
]


def test_cursors_that_no_list_gave_out(served):
    account = served.account()
    for path in (*LISTS, f"accounts/{account['id']}/entries"):
        for value in CURSORS:
            answer = served.client().get(f"/v1/{path}", params={"cursor": value})
            assert 400 <= answer.status_code < 500, (path, value, answer.text)


PATHS = ["/v1/{}/%00", "/v1/{}/x%00y", "/v1/{}/%ff", "/v1/{}/%ed%a0%80", "/v1/{}/" + "x" * 5000, "/v1/{}/%F0%9F%98%80"]


def test_ids_that_are_none(served):
    client = served.client()
    client.post("/login", data={"key": served.tokens["admin"]})
    pages = ("accounts", "datasets", "jobs", "releases", "sweeps")
    for path in PATHS:
        routes = [path.format(kind) for kind in (*pages, "samples", "decisions")]
        routes += [path.removeprefix("/v1").format(kind) for kind in pages]
        for route in routes:
            assert 400 <= client.get(route).status_code < 500, route
    for route in ("/v1/decisions?account_id=%00", "/jobs?before=%00", "/?after=%00"):
        assert 400 <= client.get(route).status_code < 500


OPTIONS = [
    '{"a": "\\u0000"}',
    '{"\\u0000": 1}',
    '{"a": "\\ud800"}',
    '{"a": {"\\udfff": 1}}',
    '{"a": NaN}',
    '{"a": [Infinity]}',
    '{"a": 1e400}',
    '{"a": 1' + "0" * 400 + "}",
    '{"a": ' + "[" * 200 + "]" * 200 + "}",
    '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}",
]


def test_options_that_cannot_be_kept(served, dataset):
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    order = f'"dataset_id": "{dataset["id"]}", "recipe": "datalens", "epsilon": 1'
    for options in OPTIONS:
        job, sweep = f'"options": {options}', f'"name": "s", "trials": [{{"options": {options}}}, {{}}]'
        for path, asked in (("/v1/plans", job), ("/v1/jobs", job), ("/v1/sweeps", sweep)):
            answer = served.client().post(path, content=f"{{{order}, {asked}}}", headers=headers)
            assert answer.status_code in (400, 422), answer.text


def test_numbers_beyond_the_columns(served):
    for records in (2**31, 2**63, 10**400):
        served.send("datasets", DATASET | {"records_declared": records}, status=422)
    assert served.client().get(f"/v1/jobs?limit={10**30}").status_code == 200
    assert served.client().get(f"/accounts/acc_x?before={10**30}").status_code in (303, 404, 422)


def test_the_same_account_at_the_same_moment(served):
    """One of them opens it, the others are told that it is there."""

    def open_account(number: int) -> int:
        with served.bearer(served.tokens["admin"]) as client:
            return client.post("/v1/accounts", json=ACCOUNT | {"name": f"crowd {number // 6}"}).status_code

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(open_account, range(36)))
    assert sorted(statuses) == [201] * 6 + [409] * 30


def test_a_name_that_was_taken_while_one_looked_is_a_conflict(served):
    """What the database refuses as a duplicate is a conflict wherever it arises."""

    @served.app.get("/v1/doubles")
    def doubles() -> None:
        with transaction(served.factory) as session:
            session.execute(text("INSERT INTO projects SELECT * FROM projects"))

    served.app.router.routes.insert(0, served.app.router.routes.pop())
    problem(served.client().get("/v1/doubles"), 409, "conflict")


def test_a_body_of_very_many_faults_is_described_in_part(served):
    order = {"dataset_id": "ds_x", "recipe": "datalens", "epsilon": 1}
    client = served.client("read")
    many = client.post("/v1/plans", json=order | {f"x{number}": 1 for number in range(11_000)})
    assert (many.status_code, len(many.json()["errors"])) == (422, ERRORS_MAX)
    long = client.post("/v1/plans", json=order | {"x" * 100_000: 1})
    assert (long.status_code, len(long.text) < 5000) == (422, True)


HEAPS = ["1,", "[],", "{},", '"",', "1e400,", "-0,", "9" * 4000 + ","]


@pytest.mark.parametrize("value", HEAPS, ids=range(len(HEAPS)))
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(served, value):
    count = 1_000_000 // len(value)
    values = (value * count)[:-1]
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    for path in ("/v1/plans", "/v1/datasets", "/v1/previews"):
        answer = served.client().post(path, content=f'{{"options": {{"a": [{values}]}}}}', headers=headers)
        assert answer.status_code in (400, 422), answer.text
        if count > JSON_VALUES_MAX:
            assert "more than 12,000 values" in answer.json()["detail"]
    unknown = "".join(f'"x{number}":1,' for number in range(80_000))
    refused = served.client("read").post("/v1/plans", content=f"{{{unknown[:-1]}}}", headers=headers)
    assert "more than 12,000 values" in refused.json()["detail"]


def test_a_route_takes_no_more_than_it_needs(served):
    body = {"name": "k", "scopes": ["read"], "more": "x" * 100_000}
    refused = problem(served.client().post("/v1/keys", json=body), 413, "too_large")
    assert refused["detail"].startswith("This request is 100 kB. The limit is 65.5 kB.")
    classes = [f"{number:04}" + "x" * 96 for number in range(1000)]
    assert served.client().post("/v1/datasets", json=DATASET | {"classes": classes}).status_code == 201


@pytest.mark.parametrize("path", ["plans", "accounts", "keys", "sweeps", "webhooks"])
def test_a_body_is_not_read_before_its_sender_is_known(served, path):
    """A client without a key used to be waited for."""
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    for key in ("", "Authorization: Bearer obs_wrong\r\n"):
        answer = raw(served, f"{head}{key}\r\n".encode() + b"{")
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert b"connection: close" in answer.lower()


FRAMINGS = [
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n",
    b"Content-Length: 4, 5\r\n",
    b"Content-Length: +4\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
]


@pytest.mark.parametrize("framing", FRAMINGS, ids=range(len(FRAMINGS)))
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_whose_end_is_ambiguous_is_refused_and_its_connection_closed(served, framing, method):
    """A proxy may take a part of it for the next request, and the service another part."""
    hidden = b"GET /v1/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = f"{method} /v1/health/live HTTP/1.1\r\nHost: localhost\r\n".encode()
    with connected(served.url, head + framing + b"\r\n0\r\n\r\n" + hidden) as connection:
        answer = received(connection, b"not to come")
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


# --- generated requests -----------------------------------------------------------------------------------------------


EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
CALLERS = (None, "read", "admin") if EXAMPLES else ("admin",)
SEED = 20261122
IDS_MAX = 8  # of each kind, from which requests choose
KINDS: dict[str, Any] = {
    "account_id": Account,
    "dataset_id": Dataset,
    "evaluation_dataset_id": Dataset,
    "job_id": Job,
    "sweep_id": Sweep,
    "release_id": Release,
    "sample_id": Sample,
    "request_id": Decision,
    "key_id": ApiKey,
}


def fuzz(url: str, factory: SessionFactory, scope: str | None, folder: Path) -> tuple[dict[str, Any], str]:
    """Send the requests of one caller; return Schemathesis' counts of test cases and its output."""
    report, phases = folder / "report.json", "examples,coverage,fuzzing,stateful" if EXAMPLES else "fuzzing"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json", "--no-color"]
    command += ["--checks", "not_a_server_error,status_code_conformance", "--phases", phases]
    command += ["--max-examples", str(EXAMPLES or 3)]
    command += ["--seed", str(SEED), "--continue-on-failure", "--no-shrink", "--suppress-health-check", "all"]
    command += ["--request-timeout", "60", "--report", "json", "--report-json-path", str(report)]
    root = str(Path(__file__).parents[3])
    changes = {"SCHEMATHESIS_HOOKS": "tests.service.api.fuzz_hooks", "PYTHONPATH": root}
    with transaction(factory) as session:
        ids = {name: list(session.scalars(select(table.id).limit(IDS_MAX))) for name, table in KINDS.items()}
        if scope is not None:
            if scope == Scope.ADMIN:
                token = admins.admit_on_machine(session, name=f"fuzz {new_id('x')}", now=utc_now())[1]
            else:
                token = auth.create_key(session, name="fuzz", scopes=[scope], now=utc_now())[1]
            command += ["--header", f"Authorization: Bearer {token}"]
            changes["FUZZ_OWN_KEY"] = f"key_{token.split('_')[1]}"
    changes["FUZZ_IDS"] = json.dumps(ids)
    finished = subprocess.run(command, cwd=folder, env=os.environ | changes, capture_output=True, text=True)
    output = finished.stdout + finished.stderr
    assert report.exists(), output[-2000:]
    facts = json.loads(report.read_text("utf-8"))
    assert facts["complete"], output[-4000:]
    return facts["test_cases"], output


@pytest.mark.slow
@pytest.mark.parametrize("scope", CALLERS)
def test_no_generated_request_meets_a_server_error(scope, database_url, tmp_path):
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, mode="celery")
    # Event streams end at once: a reader would otherwise wait for minutes.
    with serving(settings, stream_limits=StreamLimits(seconds_max=0.0)) as served:
        lay_in(served.factory, settings.data_dir, **SMALL)
        make_fingerprint_key(settings)  # withdrawals need it, and a start with a finding does not make it
        cases, output = fuzz(served.url, served.factory, scope, tmp_path)
    assert cases["errored"] == cases["with_failures"] == 0, output
    assert cases["generated"] > 100
