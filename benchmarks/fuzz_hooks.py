"""Loaded by Schemathesis: puts ids that exist where it has made ids up, so that requests meet what is stored.

FUZZ_IDS is a JSON object: for each name of a parameter or field the ids to choose from. Every fourth made-up id stays.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any

import schemathesis

IDS: dict[str, list[str]] = json.loads(os.environ.get("FUZZ_IDS", "{}"))
_OWN_KEY = os.environ.get("FUZZ_OWN_KEY", "")
_MADE_UP = re.compile(r"[a-z0-9_]{1,64}")


def _existing(name: str, value: Any) -> Any:
    """Return an id in place of one that is well formed; which one depends on the value alone."""
    if name in IDS and isinstance(value, str) and _MADE_UP.fullmatch(value):
        dice = zlib.crc32(value.encode())
        if dice % 4 or value == _OWN_KEY:
            return IDS[name][dice // 4 % len(IDS[name])]
    return value


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:  # noqa: ARG001 - its signature
    """Change a case before it is sent. The key that it is sent with is not among the keys that may be revoked."""
    for part in (case.path_parameters, case.body):
        if isinstance(part, dict):
            for name, value in part.items():
                part[name] = _existing(name, value)
