"""How exactly it is told when something happened that takes longer the more records there are."""

from __future__ import annotations

from datetime import UTC, datetime


def to_the_hour(moment: datetime) -> datetime:
    """Return the beginning of the hour, in UTC: how what a training does is dated where it is signed or kept for ever.

    How long a training takes depends on how many records there are. If one record makes it d seconds longer, it changes
    an hour with probability d / 3600.
    """
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def to_the_minute(moment: datetime) -> datetime:
    """Return the beginning of the minute, in UTC: how the service shows when a job ran to those who may read it."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)
