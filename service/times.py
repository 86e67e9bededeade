"""Rounding of published times, and checks of this machine's clock.

The duration of a training or an upload depends on the number of records, and programs act when one ends. So all times
that are shown or kept are rounded, whoever caused them:

* entries of the ledger, receipts, checkpoints, and the files of a release or a sample have the hour, never one before
  the newest entry's; entries that a running training writes have that entry's time;
* answers and pages show the minute.

Only the kinds of entry in `EXACT` have exact times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]  # returns the time, aware

EXACT = frozenset({"open"})  # an account is opened before there is anything private in it

# A wrong time stays in the log forever, and leases end too early or never.
CLOCK_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
CLOCK_LATEST = datetime(2050, 1, 1, tzinfo=UTC)
CLOCK_BEHIND_MAX = timedelta(days=1)  # clocks of several machines differ
CLOCK_DRIFT_MAX = timedelta(minutes=1)
ACCEPT_CLOCK = "obscura ledger accept-clock"
SETTLED = timedelta(days=1)  # a clock must run steadily for this long before it decides what is old


def _uptime_seconds() -> float:
    # CLOCK_BOOTTIME includes the time for which the machine was suspended.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_STARTED = time.time(), _uptime_seconds()  # shared with forked processes


def to_the_hour(moment: datetime) -> datetime:
    """Return the beginning of the hour in UTC, for what is signed or kept forever.

    If one record makes something end d seconds later, that changes its hour with probability d / 3600.
    """
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def wrong_clock(now: datetime, newest: datetime | None) -> str | None:
    """Return why a clock is wrong; None if it seems right. `newest` has certainly passed, such as a newest entry."""
    if not CLOCK_EARLIEST <= now < CLOCK_LATEST:
        return f"it shows a time before {CLOCK_EARLIEST.year} or after {CLOCK_LATEST.year - 1}"
    moved = timedelta(seconds=(time.time() - _STARTED[0]) - (_uptime_seconds() - _STARTED[1]))  # the clock, since then
    if abs(moved) > CLOCK_BEHIND_MAX:
        days, way = abs(moved) / timedelta(days=1), "ahead" if moved > timedelta(0) else "back"
        return f"it was set {days:.1f} days {way} while this process ran; if that is right, restart the process"
    if newest is not None and now < newest - CLOCK_BEHIND_MAX:
        return (
            f"it shows {now:%Y-%m-%d %H:%M} UTC, and is more than a day behind the newest entry of the ledger, of "
            f"{newest:%Y-%m-%d %H:%M}. If it is right, and was ahead when that entry was written, run "
            f"`{ACCEPT_CLOCK}`"
        )
    return None


class WatchedClock:
    """Checks that a clock has run steadily for a day. After a jump ahead everything would be old, and be removed."""

    def __init__(self, now: datetime, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._since = monotonic, (monotonic(), now)

    def is_proved(self, now: datetime) -> bool:
        """Return whether it has. A change of the clock restarts the day."""
        seconds, then = self._since
        passed = timedelta(seconds=self._monotonic() - seconds)
        if abs(now - then - passed) > CLOCK_DRIFT_MAX:
            self._since = self._monotonic(), now
            return False
        return passed >= SETTLED
