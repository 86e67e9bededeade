"""Whether the sign-in provider still vouches for a person: what each use of their keys and sessions depends on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import BindParameter, ColumnElement, exists
from sqlalchemy.orm import Session

from service.db.access_tables import ApiKey, Person
from service.errors import Unauthorized

SESSION_CONFIRMED = timedelta(minutes=1)  # how long a session in a browser goes on without the provider's word


def is_confirmed(now: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """The condition that a key is of no person, or of one whose keys go on."""
    goes_on = exists().where(Person.id == ApiKey.person_id, Person.lapsed_at.is_(None), Person.keys_until > now)
    return ApiKey.person_id.is_(None) | goes_on.correlate(ApiKey)


def require_confirmed(session: Session, person_id: str | None, now: datetime, *, in_browser: bool = False) -> None:
    """Let whoever is no person of a provider pass, and somebody for whom it vouched a short while ago.

    Args:
        in_browser: whether a session asks, which goes on for a shorter time than a key does.

    Raises:
        Unauthorized: it no longer does, or has not answered for too long; the message says which.
    """
    if person_id is None:
        return
    person = session.get_one(Person, person_id, populate_existing=True)
    if person.lapsed_at is not None:
        raise Unauthorized(
            f"The sign-in provider no longer vouches for {person.name}, since {_moment(person.lapsed_at)}. Sign in "
            "with it again: until then nothing of yours opens anything."
        )
    until = person.confirmed_at + SESSION_CONFIRMED if in_browser else person.keys_until
    if until <= now:
        what = "a session" if in_browser else "a key"
        raise Unauthorized(
            f"The sign-in provider does not answer. It last vouched for {person.name} at "
            f"{_moment(person.confirmed_at)}, and {what} goes on without its word until {_moment(until)}. What is "
            "yours opens again as soon as it answers."
        )


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
