"""Failpoints: places where a test can kill this process, to examine the state after a crash.

`failpoint("charge.after")` does nothing unless the process starts with this place in its environment:

    OBSCURA_FAILPOINT=charge.after:kill                 the first time that the process reaches the place
    OBSCURA_FAILPOINT=charge.after:kill@3               the third time
    OBSCURA_FAILPOINT=charge.after:kill@3;once=FILE     only if FILE can be created, for restarted processes

No setting, request or database row enables a failpoint. `before` and `after` refer to a commit, a rename or a message.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from itertools import count

VARIABLE = "OBSCURA_FAILPOINT"
# docs/contribute/architecture.md describes the state after a crash at each.
_AROUND = {"accept", "ring", "upload", "anew", "claim", "arm", "charge", "checkpoint", "trained", "artifact", "publish"}
_AROUND |= {"sample", "drawn", "evaluated", "settle"}
_AFTER = {"hold", "delete", "shred", "withdraw", "ack", "spawn", "journal"}
NAMES = frozenset({f"{place}.before" for place in _AROUND} | {f"{place}.after" for place in _AROUND | _AFTER})
_FORM = re.compile(r"(?P<name>[a-z]+\.[a-z]+):kill(?:@(?P<hit>[1-9][0-9]{0,5}))?(?:;once=(?P<once>.+))?")


def _read(text: str) -> re.Match[str] | None:
    if not text:
        return None
    form = _FORM.fullmatch(text)
    if form is None or form["name"] not in NAMES:  # a typo would look like a survived crash
        raise ValueError(
            f"{VARIABLE} must be NAME:kill or NAME:kill@HIT, perhaps followed by ;once=FILE; NAMES: {sorted(NAMES)}"
        )
    sys.stderr.write(f"{VARIABLE} is set: this process kills itself at {text}. Never set it in production.\n")
    return form


_armed = _read(os.environ.get(VARIABLE, ""))
_hits = count(1)  # how often this process has reached the place


def failpoint(name: str) -> None:
    """Kill the process with SIGKILL if its environment at the start names this place (one of NAMES)."""
    if _armed is None or name != _armed["name"] or next(_hits) != int(_armed["hit"] or 1):
        return
    if _armed["once"] is not None:
        try:
            os.close(os.open(_armed["once"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
