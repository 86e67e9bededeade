"""Asks the sign-in provider, at least every minute, whether it still vouches for whoever may use the service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.background import Background
from service.db.access_tables import ApiKey, Person, SignIn
from service.db.session import SessionFactory, transaction
from service.logs import get_logger
from service.people.provider import NotVouchedFor, Provider, ProviderUnavailable, SignInRefused
from service.people.roles import confirm, end_lapsed, lapse, long_lapsed, unknown_projects
from service.settings import Settings

ROUND_SECONDS = 5.0
ASKING = timedelta(seconds=45)  # for which a process has a person to itself; longer than the provider may take
PEOPLE_PER_ROUND_MAX = 1000
ASKED_AT_ONCE_MAX = 8


class Confirming(Background):
    """Asks beside the requests. Several processes share the people: each asks about whom no other one asks.

    Args:
        settings: with an issuer.
        factory: where sessions come from.
        provider: whom it asks.
        clock: returns the time, aware.
    """

    def __init__(
        self, settings: Settings, factory: SessionFactory, provider: Provider, clock: Callable[[], datetime]
    ) -> None:
        super().__init__("obscura-people")
        self._settings, self._factory, self._provider, self._clock = settings, factory, provider, clock
        self._interval = timedelta(seconds=settings.oidc_confirm_seconds)

    def round(self) -> int:
        """Ask about everybody whose turn it is; return for how many the provider answered."""
        now, away = self._clock(), threading.Event()
        with transaction(self._factory, read_only=True) as session:
            waiting = due(session, now, self._interval)
            gone = long_lapsed(session, now=now)

        def ask(person_id: str) -> bool:
            try:
                return not away.is_set() and self._ask(person_id)
            except ProviderUnavailable as error:
                if not error.answered:  # nobody waits for as many time-outs as there are people
                    away.set()
                return False

        with ThreadPoolExecutor(ASKED_AT_ONCE_MAX) as pool:
            answered = sum(pool.map(ask, waiting))
        if gone:
            with transaction(self._factory) as session:
                end_lapsed(session, now=now)
        return answered

    def _work(self) -> None:
        self._try(self._name_unknown_projects)
        while not self._stopping.wait(ROUND_SECONDS):
            self._try(self.round)

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # whatever it is: everybody's sessions depend on the next round
            get_logger(__name__).error("people_not_confirmed", error=type(error).__name__)

    def _name_unknown_projects(self) -> None:
        with transaction(self._factory, read_only=True) as session:
            unknown = unknown_projects(session, self._settings)
        for project_id in unknown:
            what = f"OBSCURA_OIDC_GROUPS names {project_id}, and there is no such project."
            get_logger(__name__).error("operator_needed", code="unknown_project", message=what)

    def _ask(self, person_id: str) -> bool:
        now = self._clock()
        free = Person.asked_until.is_(None) | (Person.asked_until <= now)
        old = Person.confirmed_at <= now - self._interval  # still: another process may have asked since
        this = select(Person).where(Person.id == person_id, free, old, Person.refresh_token.is_not(None))
        with transaction(self._factory) as session:
            person = session.scalar(this.with_for_update(skip_locked=True))
            if person is None:
                return False
            person.asked_until = now + ASKING
            subject, sealed = person.subject, str(person.refresh_token)
        same = select(Person).where(Person.id == person_id, Person.refresh_token == sealed).with_for_update()
        try:
            claims, next_sealed = self._provider.confirm(subject, sealed)
        except (ProviderUnavailable, SignInRefused) as error:
            with transaction(self._factory) as session:
                person = session.scalar(same)
                if person is not None and isinstance(error, NotVouchedFor):
                    lapse(session, person, now=now)
                elif person is not None:  # what it says cannot be believed, which tells nothing of the person
                    person.asked_until = None
            if isinstance(error, ProviderUnavailable):
                raise
            return isinstance(error, NotVouchedFor)
        with transaction(self._factory) as session:
            person = session.scalar(same)
            if person is None:  # they have signed in again meanwhile
                return False
            confirm(session, self._settings, person, claims, next_sealed, now=now)
        return True


def due(session: Session, now: datetime, interval: timedelta) -> Sequence[str]:
    """Return whom the provider did not confirm for an interval, and who has a session or has made a key that goes on.

    Whoever has neither is asked about when they sign in again.
    """
    theirs = ApiKey.person_id == Person.id, ApiKey.revoked_at.is_(None)
    in_time = ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now)
    made = select(ApiKey.id).where(*theirs, ApiKey.created_by.is_not(None), in_time)
    here = select(ApiKey.id).join(SignIn, SignIn.key_id == ApiKey.id).where(*theirs, SignIn.expires_at > now)
    waiting = (
        select(Person.id)
        .where(Person.refresh_token.is_not(None), Person.confirmed_at <= now - interval, made.exists() | here.exists())
        .order_by(Person.confirmed_at)
        .limit(PEOPLE_PER_ROUND_MAX)
    )
    return session.scalars(waiting).all()
