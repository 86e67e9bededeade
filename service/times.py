"""Rounding of published times, and checks of this machine's clock.

The duration of a training or an upload depends on the number of records, and clients act as soon as it ends. So all
shown or stored times are rounded, even the times of clients' requests:

* ledger entries, receipts, checkpoints, and files of a release or a sample are rounded to the hour, but are not before
  the newest entry; entries that a running training writes have the newest entry's time;
* responses and pages are rounded to the minute.

Only entries of the kind `open` have exact times: an account is opened before it has private data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]  # returns the timezone-aware time

# A wrong time stays in the log forever, and leases would expire too early or never.
CLOCK_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)
CLOCK_LATEST = datetime(2050, 1, 1, tzinfo=UTC)
CLOCK_BEHIND_MAX = timedelta(days=1)  # clocks of several machines differ
CLOCK_DRIFT_MAX = timedelta(minutes=1)
ACCEPT_CLOCK = "obscura ledger accept-clock"
SETTLED = timedelta(days=1)  # a clock must run steadily for this long before it is used to delete old rows


def _uptime_seconds() -> float:
    # CLOCK_BOOTTIME includes the time during which the machine was suspended.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_STARTED = time.time(), _uptime_seconds()  # shared with forked processes


def to_the_hour(moment: datetime) -> datetime:
    """Round a time down to the hour in UTC, for values that are signed or stored forever.

    If one record delays the end of a job by d seconds, the hour changes with probability d / 3600.
    """
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def wrong_clock(now: datetime, newest: datetime | None) -> str | None:
    """Return why a clock is wrong; None if it seems right. `newest` is a past time, such as the newest entry's."""
    if not CLOCK_EARLIEST <= now < CLOCK_LATEST:
        return f"it shows a time before {CLOCK_EARLIEST.year} or after {CLOCK_LATEST.year - 1}"
    moved = timedelta(seconds=(time.time() - _STARTED[0]) - (_uptime_seconds() - _STARTED[1]))  # since the start
    if abs(moved) > CLOCK_BEHIND_MAX:
        days, way = abs(moved) / timedelta(days=1), "ahead" if moved > timedelta(0) else "back"
        return f"it was set {days:.1f} days {way} while this process ran; if it is right now, restart the process"
    if newest is not None and now < newest - CLOCK_BEHIND_MAX:
        return (
            f"it shows {now:%Y-%m-%d %H:%M} UTC, and is more than a day behind the newest entry of the ledger, of "
            f"{newest:%Y-%m-%d %H:%M}. If the clock is right now, and was ahead when that entry was written, run "
            f"`{ACCEPT_CLOCK}`"
        )
    return None


class WatchedClock:
    """Checks that a clock has run steadily for a day. After a jump ahead, every file would look old and be removed."""

    def __init__(self, now: datetime, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._since = monotonic, (monotonic(), now)

    def is_proved(self, now: datetime) -> bool:
        """Return whether the clock has run steadily for a day. A jump of the clock restarts the day."""
        seconds, then = self._since
        passed = timedelta(seconds=self._monotonic() - seconds)
        if abs(now - then - passed) > CLOCK_DRIFT_MAX:
            self._since = self._monotonic(), now
            return False
        return passed >= SETTLED
