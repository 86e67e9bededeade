"""Metrics and logs: what they tell, what they never tell, and that alerts and dashboard name what exists."""

import io
import json
import logging
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from service.audit.findings import Finding, FindingCode, stop_arming
from service.db.access_tables import ApiKey
from service.db.session import transaction
from service.logs import REDACTED, configure_logging, get_logger
from service.main import create_app
from service.metrics import Metrics, is_timed
from service.settings import Settings
from tests.conftest import NOW
from tests.service.audit.book import LedgerBook

NOBODYS = "job_sekretsekretsekretse"
ROOT = Path(__file__).resolve().parents[2]
ALERTS, DASHBOARD = ROOT / "deploy/prometheus/alerts.yml", ROOT / "deploy/grafana/obscura.json"


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=NOW)


@pytest.fixture
def book(factory, tmp_path) -> LedgerBook:
    made = LedgerBook(factory, tmp_path / "var", NOW)
    made.open("patients")
    made.train("patients")
    return made


@pytest.fixture
def metrics(book: LedgerBook, clock: SimpleNamespace) -> Metrics:
    return Metrics(book.factory, clock=lambda: clock.now, version="0.1.0")


def told(metrics: Metrics) -> dict[str, float]:
    """The lines that hold a number, by what stands before it."""
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_jobs_and_the_ledger_are_told_at_most_once_a_minute(book, metrics, clock):
    first = told(metrics)
    assert first['obscura_jobs{kind="train",recipe="datalens",state="succeeded"}'] == 1
    assert (first["obscura_workers_busy"], first["obscura_ledger_entries_signed"]) == (0, 0)
    job_id, _ = book.hold("patients")
    book.claim(job_id)
    book.hold("patients")
    book.checkpoint()
    finding = Finding(FindingCode.JOURNAL_AHEAD, "The journal is ahead.", book.accounts["patients"])
    book.do(lambda session, now: stop_arming(session, [finding], now=now))
    assert told(metrics) == first
    clock.now = NOW + timedelta(minutes=5)
    second = told(metrics)
    assert second['obscura_jobs{kind="train",recipe="datalens",state="running"}'] == 1
    assert second['obscura_jobs{kind="train",recipe="datalens",state="queued"}'] == 1
    assert (second["obscura_workers_busy"], second["obscura_jobs_lease_over"]) == (1, 0)
    assert second["obscura_queue_oldest_seconds"] in (240, 300)
    assert second["obscura_ledger_entries_signed"] > 0
    assert second["obscura_trainings_stopped"] == 1
    clock.now = NOW + timedelta(hours=5)
    assert (told(metrics)["obscura_workers_busy"], told(metrics)["obscura_jobs_lease_over"]) == (0, 1)


def test_charges_of_a_training_under_way_change_nothing(book, metrics, clock):
    """How far a training has come follows from its records, for steps take longer the more units they draw."""
    job_id, hold_id = book.hold("patients")
    book.claim(job_id)
    clock.now = NOW + timedelta(minutes=1)
    before = told(metrics)
    book.arm(hold_id)
    book.charge(hold_id, 2)
    clock.now = NOW + timedelta(minutes=1, seconds=61)
    after = told(metrics)
    assert {name for name in after if after[name] != before[name]} <= {"obscura_queue_oldest_seconds"}


def test_times_are_told_of_lists_alone():
    assert is_timed("GET", "/v1/accounts")
    assert not is_timed("GET", "/v1/datasets/{dataset_id}")
    assert not is_timed("PUT", "/v1/datasets/{dataset_id}/content")
    assert not is_timed("POST", "/v1/jobs")


def requests(stream: io.StringIO) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "request"]


def test_what_is_noted_of_a_request_names_no_object_and_no_query(sqlite_url, tmp_path, stream):
    settings = Settings(data_dir=tmp_path / "var", database_url=sqlite_url, mode="celery", access_log=True)
    with TestClient(create_app(settings, send=lambda *_: None)) as client:
        token = settings.admin_key_path.read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "X-Request-Id": "abc"}
        assert client.get("/v1/accounts?limit=7", headers=headers).status_code == 200
        assert client.get(f"/v1/jobs/{NOBODYS}", headers=headers).status_code == 404
        assert client.get("/sekret?name=sekret").status_code == 404
        assert client.get("/v1/accounts").status_code == 401
        text = client.get("/metrics", headers=headers).raise_for_status().text
    assert 'obscura_requests_total{method="GET",route="/v1/accounts",status="2xx"} 1.0' in text
    assert 'obscura_requests_total{method="GET",route="/v1/jobs/{job_id}",status="4xx"} 1.0' in text
    assert 'obscura_request_seconds_count{route="/v1/accounts"} 2.0' in text
    assert 'obscura_build_info{version="' in text
    noted = requests(stream)
    key_id = token.removeprefix("obs_").split("_")[0]
    assert [(line["route"], line["status"]) for line in noted[:4]] == [
        ("/v1/accounts", 200),
        ("/v1/jobs/{job_id}", 404),
        ("other", 404),
        ("/v1/accounts", 401),
    ]
    assert key_id in str(noted[0]["key_id"])
    assert noted[0]["request_id"] == "abc"
    assert noted[3]["key_id"] is None
    assert noted[0].keys() == {
        *("event", "method", "route", "status", "key_id", "request_id", "level", "logger", "timestamp"),
    }
    assert "sekret" not in str(noted) + text
    assert token not in str(noted)


def test_requests_are_not_logged_by_default(sqlite_url, tmp_path, stream):
    settings = Settings(data_dir=tmp_path / "var", database_url=sqlite_url, mode="celery")
    with TestClient(create_app(settings, send=lambda *_: None)) as client:
        client.get("/v1/health/live")
    assert requests(stream) == []


def names(metrics: Metrics) -> set[str]:
    metrics.count("GET", "/v1/accounts", 200, 0.01)
    families = list(metrics.registry.collect())
    samples = {sample.name for family in families for sample in family.samples}
    return samples | {f"{family.name}_info" for family in families if family.type == "info"} | {"up"}


def test_alerts_and_dashboard_name_metrics_that_exist(book, metrics, clock):
    told(metrics)
    known = names(metrics) | {f"obscura_{name}" for name in ("ledger_verified_timestamp_seconds", "ledger_findings")}
    rules = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    asked = [rule["expr"] for rule in rules] + [each["expr"] for panel in panels for each in panel["targets"]]
    used = {name for expression in asked for name in re.findall(r"\bobscura_[a-z_]+|\bup\b", expression)}
    assert len(rules) > 5
    assert used <= known, used - known
    assert all({"summary", "description"} <= rule["annotations"].keys() for rule in rules)
    assert len({panel["id"] for panel in panels}) == len(panels)
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "rules", str(ALERTS)], check=True, capture_output=True)


def test_the_page_configures_a_scrape_of_the_job_that_the_alerts_name():
    page = (ROOT / "docs" / "operate" / "monitor.md").read_text("utf-8")
    shown = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    (scraped,) = shown["scrape_configs"]
    assert f'up{{job="{scraped["job_name"]}"}}' in ALERTS.read_text("utf-8")
    assert shown["rule_files"] == [ALERTS.name]


def test_the_page_reviews_every_metric_and_no_other(metrics):
    page = (ROOT / "docs" / "operate" / "monitor.md").read_text("utf-8")
    reviewed = set(re.findall(r"^\| `(obscura_[a-z_]+)`", page, flags=re.MULTILINE))
    assert reviewed == set(re.findall(r"^# TYPE (\S+)", metrics.render().decode(), flags=re.MULTILINE))


def test_no_metric_tells_when_a_route_was_first_requested(metrics):
    metrics.count("PUT", "/v1/datasets/{dataset_id}/content", 200, 0.1)
    metrics.count("GET", "/v1/jobs", 200, 0.1)
    assert not [name for name in told(metrics) if "_created" in name]


# --- logs -------------------------------------------------------------------------------------------------------------


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line(stream):
    get_logger("service.test").bind(job_id="job_a").info("claimed", attempt=2, seconds=1.5)
    get_logger("service.test").debug("not written")
    (line,) = lines(stream)
    said = {"event": "claimed", "job_id": "job_a", "attempt": 2, "seconds": 1.5, "level": "info"}
    assert line.items() >= (said | {"logger": "service.test"}).items()
    assert line["timestamp"].endswith("Z")


def test_events_of_libraries_are_written_alike(stream):
    # A name of its own: servers that ran in this process may have changed the loggers of uvicorn.
    logging.getLogger("library.of.somebody").warning("Started %s", "server")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("Started server", "warning", "library.of.somebody")


FORBIDDEN = "private_images images labels secret token password Authorization loss file_name filename"


@pytest.mark.parametrize("name", FORBIDDEN.split())
def test_forbidden_names_are_redacted_at_every_depth(stream, name):
    get_logger("t").info("e", **{name: "canary"}, nested={"deep": [{name: "canary"}]})
    assert "canary" not in stream.getvalue()
    assert lines(stream)[0][name] == REDACTED


def test_arrays_bytes_and_objects_are_named_not_shown(stream):
    get_logger("t").info("e", array=np.full(3, 77), raw=b"canary", thing=object(), many=[b"canary"])
    (line,) = lines(stream)
    assert (line["array"], line["raw"], line["thing"]) == ("[ndarray]", "[bytes]", "[object]")
    assert "canary" not in stream.getvalue()
    assert "77" not in json.dumps({k: v for k, v in line.items() if k != "timestamp"})


def test_api_tokens_and_url_passwords_are_redacted_inside_texts(stream):
    token = "obs_" + "a" * 20 + "_" + "0f" * 32
    get_logger("t").info(f"got {token}", url="postgresql+psycopg://obscura:hunter2@db/obscura")
    assert token not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    assert lines(stream)[0]["url"] == "postgresql+psycopg://obscura:***@db/obscura"


def refuse(value: str) -> None:
    raise ValueError(f"refused: {value}")


def test_a_trace_says_in_which_file_line_and_function_and_not_with_which_value(stream):
    """Of the whole chain, from our own logger and from a library's."""
    try:
        try:
            refuse("CANARY")
        except ValueError as error:
            raise RuntimeError("CANARY again") from error
    except RuntimeError:
        get_logger("t").exception("failed")
        logging.getLogger("library").exception("failed too")
    line = refuse.__code__.co_firstlineno + 1
    for told in lines(stream):
        assert [part["exc_type"] for part in told["exception"]] == ["RuntimeError", "ValueError"]
        places = [(frame["file"], frame["line"], frame["function"]) for frame in told["exception"][1]["frames"]]
        assert places[-1] == (__file__, line, "refuse")
        assert REDACTED not in json.dumps(told)
    assert "CANARY" not in stream.getvalue()


def test_long_texts_are_cut_and_configuring_twice_writes_once(stream):
    configure_logging("INFO", stream)
    get_logger("t").info("e", text="x" * 10_000)
    assert [len(line["text"]) for line in lines(stream)] == [2003]


def test_what_a_database_says_about_a_row_is_not_logged(stream, factory):
    """PostgreSQL's message names the key that is taken, and SQLAlchemy's the statement with its parameters."""
    taken = ApiKey(id="key_a", name="CANARY-NAME", hash="CANARY-HASH", scopes=[], created_at=datetime.now(UTC))
    taken.project_id = "prj_default"
    with transaction(factory) as session:
        session.add(taken)
    with pytest.raises(IntegrityError) as refused, transaction(factory) as session:
        session.execute(insert(ApiKey).values({c.key: getattr(taken, c.key) for c in ApiKey.__table__.columns}))
    assert "CANARY" not in str(refused.value)
    get_logger("t").error("failed", exc_info=refused.value)
    logging.getLogger("library").error("failed too", exc_info=refused.value)
    first, second = (line for line in lines(stream) if line["logger"] in ("t", "library"))
    assert first["exception"][0]["exc_type"] == second["exception"][0]["exc_type"] == "IntegrityError"
    assert first["exception"][0]["frames"]
    assert "CANARY" not in stream.getvalue()
    assert "key_a" not in stream.getvalue()


def test_a_line_that_cannot_be_written_shows_nothing_elsewhere(stream, capsys):
    stream.close()
    try:
        raise ValueError("patient smith")
    except ValueError:
        get_logger("obscura.test").error("training_failed")
    assert capsys.readouterr() == ("", "")
