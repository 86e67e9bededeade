"""People of a sign-in provider: their roles, keys and sessions, and the thread that regularly confirms them.

A role is a key without a creator, whose token is thrown away. The person's sessions and keys are created with it, and
revoking the role revokes them all. A person has one role in each project where their groups grant a role.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from obscura.wire.ids import make_token
from obscura.wire.texts import NAME_CHARACTERS_MAX, clean_text
from service.background import Background
from service.db.access_tables import ApiKey, Person, Project, SignIn
from service.db.base import new_id
from service.db.session import SessionFactory, transaction
from service.errors import ObscuraError, Unauthorized
from service.identity.access import ROLES, Scope, covers
from service.identity.admins import admit_person, dismiss_person
from service.identity.auth import add_key, revoke
from service.identity.recording import Act, record
from service.logs import get_logger
from service.settings import Settings

if TYPE_CHECKING:
    from service.identity.provider import Provider

EMAIL_CHARACTERS_MAX = 320
PENDING_SECONDS = 600  # from the first step of a sign-in to the last
LAPSED_KEPT = timedelta(days=7)  # after this, the keys of a lapsed person are revoked
ROUND_SECONDS_MAX = 5.0
ASKING = timedelta(seconds=45)  # lease of the process that asks about a person; longer than any request
PEOPLE_PER_ROUND_MAX = 1000
ASKED_AT_ONCE_MAX = 8
IS_ROLE = ApiKey.person_id.is_not(None), ApiKey.created_by.is_(None), ApiKey.revoked_at.is_(None)


class SignInRefused(Unauthorized):
    """The sign-in was not begun in this browser, or the provider did not confirm it."""


class NotVouchedFor(SignInRefused):
    """The provider no longer vouches for a person."""


class ProviderUnavailable(ObscuraError):
    """The provider does not answer, or its answer is invalid. If it `answered`, other people may still be confirmed."""

    def __init__(self, *, answered: bool = False) -> None:
        self.answered, self.dependency_failed = answered, not answered
        super().__init__(
            "The sign-in provider does not answer, or its answer is invalid. Try again in a minute; keys of the "
            "installation's own admins still work."
        )


@dataclass(frozen=True)
class Claims:
    """The provider's claims about a person: a permanent id, and display names in order of preference."""

    subject: str
    names: Sequence[str]
    email: str | None
    groups: frozenset[str]


def roles_of(settings: Settings, groups: Collection[str]) -> dict[str | None, frozenset[Scope]]:
    """Return the scopes that groups grant, by project id; None is the installation."""
    found: dict[str | None, frozenset[Scope]] = {}
    for group in groups:
        for project_id, role in settings.oidc_groups.get(group, {}).items():
            found[project_id] = found.get(project_id, frozenset()) | frozenset(ROLES[role])
    if settings.oidc_admin_group and settings.oidc_admin_group in groups:
        found[None] = frozenset({Scope.ADMIN})
    return found


def unknown_projects(session: Session, settings: Settings) -> list[str]:
    """Return the projects in the settings that do not exist."""
    named = {project_id for roles in settings.oidc_groups.values() for project_id in roles}
    return sorted(project_id for project_id in named if session.get(Project, project_id) is None)


def sign_in(session: Session, settings: Settings, claims: Claims, refresh_token: str, *, now: datetime) -> Person:
    """Record that the provider has just vouched for a person. The first sign-in creates the person's row."""
    person = _find(session, settings.oidc_issuer, claims.subject)
    if person is None:
        person = Person(id=new_id("per"), issuer=settings.oidc_issuer, subject=claims.subject, name="", created_at=now)
        person.confirmed_at = person.keys_until = now
        try:
            with session.begin_nested():
                session.add(person)
        except IntegrityError:  # a concurrent sign-in of the same person
            person = _find(session, settings.oidc_issuer, claims.subject)
            assert person is not None
        else:
            record(session, Act.PERSON_MADE, person.id, project_id=None)
    person.lapsed_at = None
    confirm(session, settings, person, claims, refresh_token, now=now)
    return person


def confirm(
    session: Session, settings: Settings, person: Person, claims: Claims, refresh_token: str, *, now: datetime
) -> None:
    """Record the provider's current claims about a person, and grant, extend and end roles accordingly."""

    def readable(text: str, characters_max: int) -> str | None:
        try:
            return clean_text(text.strip(), characters_max)
        except ValueError:
            return None

    names = filter(None, (readable(name, NAME_CHARACTERS_MAX) for name in claims.names))
    person.name = next(names, person.id)
    person.email = readable(claims.email or "", EMAIL_CHARACTERS_MAX)
    person.refresh_token, person.asked_until = refresh_token, None
    person.confirmed_at, person.keys_until = now, now + timedelta(seconds=settings.oidc_key_grace_seconds)
    _apply(session, person, roles_of(settings, claims.groups), now)


def roles(session: Session, person: Person) -> Sequence[ApiKey]:
    """Return a person's current roles, with the installation's role last."""
    mine = select(ApiKey).where(ApiKey.person_id == person.id, *IS_ROLE).execution_options(populate_existing=True)
    return sorted(session.scalars(mine).all(), key=lambda key: (key.project_id is None, key.project_id))


def lapse(session: Session, person: Person, *, now: datetime) -> None:
    """Record that the provider no longer vouches for a person. Their keys are unusable until they sign in again."""
    person.lapsed_at, person.refresh_token, person.asked_until = now, None, None
    theirs = select(ApiKey.id).where(ApiKey.person_id == person.id)
    session.execute(delete(SignIn).where(SignIn.key_id.in_(theirs)))
    record(session, Act.PERSON_LAPSED, person.id, project_id=None)


def long_lapsed(session: Session, *, now: datetime, lock: bool = False) -> Sequence[Person]:
    """Return the people with roles who lapsed at least LAPSED_KEPT ago and have not signed in since."""
    role = select(ApiKey.id).where(ApiKey.person_id == Person.id, *IS_ROLE)
    gone = select(Person).where(Person.lapsed_at <= now - LAPSED_KEPT, role.exists())
    return session.scalars(gone.with_for_update() if lock else gone).all()


def end_lapsed(session: Session, *, now: datetime) -> None:
    """End the roles of people who lapsed long ago, and revoke all their keys."""
    for person in long_lapsed(session, now=now, lock=True):
        _apply(session, person, {}, now)


def _find(session: Session, issuer: str, subject: str) -> Person | None:
    this = select(Person).where(Person.issuer == issuer, Person.subject == subject)
    return session.scalar(this.with_for_update().execution_options(populate_existing=True))


def _apply(session: Session, person: Person, granted: dict[str | None, frozenset[Scope]], now: datetime) -> None:
    granted = {
        project_id: scopes
        for project_id, scopes in granted.items()
        if project_id is None or session.get(Project, project_id) is not None
    }
    owned = {project_id for project_id, scopes in granted.items() if Scope.ADMIN in scopes}
    admins = {project_id: admit_person(session, person, project_id, now=now).id for project_id in owned}
    for key in roles(session, person):
        held, scopes = frozenset(map(Scope, key.scopes)), granted.get(key.project_id, frozenset())
        if not all(covers(scopes, scope) for scope in held):
            revoke(session, ApiKey.id == key.id, now=now)
            record(session, Act.ROLE_ENDED, person.id, project_id=key.project_id)
            continue
        del granted[key.project_id]
        if scopes != held:
            key.scopes, key.admin_id = sorted(scopes), admins.get(key.project_id)
            record(session, Act.ROLE_WIDENED, person.id, project_id=key.project_id)
    for project_id, scopes in granted.items():
        key_id, _token, digest = make_token()
        key = ApiKey(id=key_id, hash=digest, name=person.name, scopes=sorted(scopes), person_id=person.id)
        key.admin_id, key.project_id = admins.get(project_id), project_id
        add_key(session, key, now)
        record(session, Act.ROLE_GIVEN, person.id, project_id=project_id)
    dismiss_person(session, person, except_in=owned, now=now)
    session.flush()


class Confirming(Background):
    """Asks the provider, at least every minute, whether it still vouches for each person who may use the service.

    Several processes share this work by leases. The settings must have an issuer.
    """

    def __init__(
        self, settings: Settings, factory: SessionFactory, provider: Provider, clock: Callable[[], datetime]
    ) -> None:
        super().__init__("obscura-people")
        self._settings, self._factory, self._provider, self._clock = settings, factory, provider, clock
        self._interval = timedelta(seconds=settings.oidc_confirm_seconds)

    def round(self) -> int:
        """Ask the provider about each person who is due; return the number of answers."""
        now, away = self._clock(), threading.Event()
        with transaction(self._factory, read_only=True) as session:
            waiting = due(session, now, self._interval)
            gone = long_lapsed(session, now=now)

        with ThreadPoolExecutor(ASKED_AT_ONCE_MAX) as pool:
            answered = sum(pool.map(partial(self._ask, away), waiting))
        if gone:
            with transaction(self._factory) as session:
                end_lapsed(session, now=now)
        return answered

    def _work(self) -> None:
        with transaction(self._factory, read_only=True) as session:
            unknown = unknown_projects(session, self._settings)
        for project_id in unknown:
            message = f"OBSCURA_OIDC_GROUPS names the project {project_id}, which does not exist: correct the setting."
            get_logger(__name__).error("operator_needed", code="unknown_project", message=message)
        while not self._stopping.wait(min(ROUND_SECONDS_MAX, self._interval.total_seconds() / 4)):
            self.round()

    def _ask(self, away: threading.Event, person_id: str) -> bool:
        if away.is_set():
            return False
        now = self._clock()
        free = Person.asked_until.is_(None) | (Person.asked_until <= now)
        old = Person.confirmed_at <= now - self._interval  # checked again, because another process may have asked since
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
                elif person is not None:  # an invalid answer says nothing about the person
                    person.asked_until = None
            if isinstance(error, ProviderUnavailable) and not error.answered:
                away.set()  # one timeout is enough: skip the other people
            return isinstance(error, NotVouchedFor)
        with transaction(self._factory) as session:
            person = session.scalar(same)
            if person is None:  # the person has signed in again since
                return False
            confirm(session, self._settings, person, claims, next_sealed, now=now)
        return True


def due(session: Session, now: datetime, interval: timedelta) -> Sequence[str]:
    """Return the ids of people with a session or a usable key whose last confirmation is at least an interval old."""
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
