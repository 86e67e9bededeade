"""How exactly it is told when something happened, and which clocks are believed.

How long a training or an upload takes depends on how many records there are, and programs that wait for one act at the
moment it ends: whoever asks for samples of a release may have waited for its publication. So the coarseness below holds
for all that is shown or kept for ever, whoever has caused it, and not only for what training processes write:

* entries of the ledger, receipts, checkpoints, and the files of a release or a sample bear the hour, and never one
  before the newest entry's; what a training writes on its way bears that entry's time itself;
* answers and pages show the minute.

`EXACT` is all that is told more exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]  # returns the time, aware

# By the kind of entry: an account is opened before there is anything private in it, and is the first entry of its log.
EXACT = frozenset({"open"})

# A wrong time stays in the log for ever, and leases end too early or never. No entry is older than this software, and a
# clock that shows the other year is more likely to be wrong than an installation to be so old.
CLOCK_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
CLOCK_LATEST = datetime(2050, 1, 1, tzinfo=UTC)
CLOCK_BEHIND_MAX = timedelta(days=1)  # clocks of several machines differ, and summer time is not asked for
CLOCK_DRIFT_MAX = timedelta(minutes=1)
ACCEPT_CLOCK = "obscura ledger accept-clock"
SETTLED = timedelta(days=1)  # for which a clock has gone on as it should, where what is old is removed by it


def _uptime_seconds() -> float:
    """Return seconds of a monotonic clock, which includes suspended time where the system supports that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_STARTED = time.time(), _uptime_seconds()  # of this process; processes that are forked off it share it


def clock_moved() -> timedelta:
    """Return by how much this machine's clock was set, ahead or back, while this process ran."""
    return timedelta(seconds=(time.time() - _STARTED[0]) - (_uptime_seconds() - _STARTED[1]))


def to_the_hour(moment: datetime) -> datetime:
    """Return the beginning of the hour, in UTC: how what is signed or kept for ever is dated.

    If one record makes something end d seconds later, that changes its hour with probability d / 3600.
    """
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def wrong_clock(now: datetime, newest: datetime | None) -> str | None:
    """Say why a clock is not to be believed; None where nothing is known against it.

    Args:
        now: what it shows, aware.
        newest: a time that has certainly passed, such as that of the newest entry of a log.
    """
    if not CLOCK_EARLIEST <= now < CLOCK_LATEST:
        return f"it shows a time before {CLOCK_EARLIEST.year} or after {CLOCK_LATEST.year - 1}"
    moved = clock_moved()
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
    """Tells whether a clock has gone on for a day as one does that nobody sets.

    By one that has just jumped ahead everything would be old, and gone for good.

    Args:
        now: what it shows, aware.
    """

    def __init__(self, now: datetime) -> None:
        self._since = time.monotonic(), now

    def is_proved(self, now: datetime) -> bool:
        """Return whether it has; the day begins anew where the clock was set."""
        seconds, then = self._since
        passed = timedelta(seconds=time.monotonic() - seconds)
        if abs(now - then - passed) > CLOCK_DRIFT_MAX:
            self._since = time.monotonic(), now
            return False
        return passed >= SETTLED
