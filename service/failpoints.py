"""Places where a test may kill this process, so that what a crash leaves behind can be looked at.

`failpoint("charge.after")` does nothing at all unless the environment of the process names the place when it starts:

    OBSCURA_FAILPOINT=charge.after:kill        the first time that the process gets there
    OBSCURA_FAILPOINT=charge.after:kill@3      the third time
    OBSCURA_FAILPOINT=charge.after:kill@3;once=FILE     and only where FILE can be created by that

Nothing else switches one on: no setting, no request, no row. The last form is for places that a restarted process, or
the next attempt of a job, would pass again. `before` and `after` are those of a commit, a rename or a message.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import dataclass

VARIABLE = "OBSCURA_FAILPOINT"
# All there are; docs/crashes.md says what each leaves behind.
NAMES = frozenset(
    {
        "accept.before",
        "accept.after",
        "hold.after",
        "ring.before",
        "ring.after",
        "upload.before",
        "upload.after",
        "delete.after",
        "shred.after",
        "withdraw.after",
        "anew.before",
        "anew.after",
        "ack.after",
        "claim.before",
        "claim.after",
        "spawn.after",
        "arm.before",
        "arm.after",
        "charge.before",
        "charge.after",
        "journal.after",
        "checkpoint.before",
        "checkpoint.after",
        "trained.before",
        "trained.after",
        "artifact.before",
        "artifact.after",
        "publish.before",
        "publish.after",
        "sample.before",
        "sample.after",
        "drawn.before",
        "drawn.after",
        "evaluated.before",
        "evaluated.after",
        "settle.before",
        "settle.after",
    }
)
_FORM = re.compile(r"(?P<name>[a-z]+\.[a-z]+):kill(?:@(?P<hit>[1-9][0-9]{0,5}))?(?:;once=(?P<once>.+))?")


@dataclass
class _Armed:
    """The one place of this process at which it dies, and how often it is yet to be passed alive."""

    name: str
    left: int
    once: str | None

    def pass_by(self, name: str) -> None:
        if name != self.name:
            return
        self.left -= 1
        if self.left == 0 and self._first():
            os.kill(os.getpid(), signal.SIGKILL)

    def _first(self) -> bool:
        """Tell whether no process has died for this value of the variable yet."""
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True


def _read(text: str) -> _Armed | None:
    """Read the variable; a value that says nothing understandable must not pass for a crash that was survived.

    Raises:
        ValueError: neither empty nor of the form above, or it names no place of ours.
    """
    if not text:
        return None
    given = _FORM.fullmatch(text)
    if given is None or given["name"] not in NAMES:
        raise ValueError(
            f"{VARIABLE} is NAME:kill, NAME:kill@HIT or either with ;once=FILE, and NAME one of {sorted(NAMES)}"
        )
    sys.stderr.write(f"{VARIABLE} is set: this process kills itself at {text}. Never set it in production.\n")
    return _Armed(given["name"], int(given["hit"] or 1), given["once"])


_armed = _read(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """Die here by SIGKILL if the environment asked for it when the process started.

    Args:
        name: one of NAMES, written out where it stands.
    """
    if _armed is not None:
        _armed.pass_by(name)
