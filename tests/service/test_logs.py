"""Logs: JSON lines on the stream, and nothing private, secret or large in them."""

import io
import json
import logging
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from service.db.access_tables import ApiKey
from service.db.session import transaction
from service.logs import REDACTED, configure_logging, get_logger


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
