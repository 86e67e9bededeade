"""Logging: structlog, one JSON object per line on stderr, with a redaction rule for every event.

Never logged: fields whose name marks them as private or secret, tensors, arrays and bytes. Only the type and location
of an error are logged, because its message may quote a value: a database's error contains the rejected row.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO, cast

import structlog

from obscura.wire.wording import visible

REDACTED = "[redacted]"
TEXT_CHARACTERS_MAX = 2000
DEPTH_MAX = 6
FRAMES_MAX = 30
TALKATIVE = ("alembic", "uvicorn")  # verbose at the start of a service
AUDIT_LOGGER = "audit"  # logs events of the audit log at any level

# `private_*` and `released_*` follow the project's naming rule; the rest are credentials and contents of uploads.
_FORBIDDEN_NAME = re.compile(
    r"(^|_)(private|secret|token|password|passwd|authorization|cookie|credential|api_key|admin_key|noise_key"
    r"|image|images|label|labels|gradient|gradients|loss|losses|file_name|filename|exif)(_|$)"
)
_TOKEN = re.compile(r"\bobs_[a-z2-7]{20}_[0-9a-f]{8,}\b")
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values that must not be logged (a structlog processor)."""
    return cast("dict[str, Any]", _clean(event, -1))


def configure_logging(level: str = "INFO", stream: TextIO | None = None, *, for_people: bool = False) -> None:
    """Set up logging for this process, to stderr by default.

    `for_people`: write short lines for a terminal instead of JSON, and only warnings and errors of libraries.
    """
    target = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_types_and_places),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    # Otherwise `logging` would report a failed write on stderr, with the message of the current exception.
    logging.raiseExceptions = False
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                redact,
                _short_line if for_people else structlog.processors.JSONRenderer(sort_keys=True),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING if for_people else logging.NOTSET)


def _short_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Render an event as `12:03:04 warning: disk nearly full, free_bytes 1024`, in visible characters."""
    level, hidden = str(event.get("level", "")), ("timestamp", "level", "logger", "event")
    facts = [(name, value) for name, value in sorted(event.items()) if name not in hidden and value is not None]
    words = [
        f"{name.removesuffix('_id')} {value if isinstance(value, str) else json.dumps(value)}" for name, value in facts
    ]
    said = ", ".join([str(event.get("event", "")).replace("_", " "), *words])
    return visible(f"{str(event.get('timestamp', ''))[11:19]} {'' if level == 'info' else f'{level}: '}{said}")


def _types_and_places(exc_info: Any) -> list[dict[str, Any]]:
    # "file" instead of structlog's "filename", which `redact` treats as the name of an uploaded file.
    stacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=FRAMES_MAX)(exc_info)
    return [
        {
            "exc_type": stack["exc_type"],
            "is_cause": stack["is_cause"],
            "frames": [
                {"file": frame["filename"], "line": frame["lineno"], "function": frame["name"]}
                for frame in stack["frames"]
            ],
        }
        for stack in stacks
    ]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger; bind public context to it (`job_id`, `attempt`)."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def _clean(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        text = _URL_PASSWORD.sub(r"\1:***@", _TOKEN.sub(REDACTED, value))
        return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
    if depth < DEPTH_MAX and isinstance(value, Mapping):
        return {
            str(name): REDACTED if _FORBIDDEN_NAME.search(str(name).lower()) else _clean(item, depth + 1)
            for name, item in value.items()
        }
    if depth < DEPTH_MAX and isinstance(value, list | tuple | set | frozenset):
        return [_clean(item, depth + 1) for item in value]
    return f"[{type(value).__name__}]"  # tensors, arrays, bytes, rows: the type is enough
