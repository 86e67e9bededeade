"""What groups give and take, without a provider: it is played by what it says. Both databases."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.access_tables import DEFAULT_PROJECT, Admin, ApiKey, Person
from service.db.session import SessionFactory, transaction
from service.errors import Forbidden, Unauthorized
from service.identity import auth, people, projects
from service.identity.access import ROLES, Principal, Scope
from service.identity.auth import SESSION_CONFIRMED, find_session, open_session
from service.identity.decisions import voice_of
from service.identity.people import due
from service.settings import Settings
from tests.together import at_once

INTERVAL = timedelta(seconds=20)


def settings_for(folder: Path, heart: str = "prj_" + "a" * 20) -> Settings:
    """Each role is a group of the first project; owners of the heart are another, and admins of the installation."""
    groups = {role: {DEFAULT_PROJECT: role} for role in ROLES} | {"heart": {heart: "owner"}}
    return Settings(
        data_dir=folder,
        public_url="https://obscura.example.org",
        oidc_issuer="https://provider.example.org",
        oidc_client_id="obscura",
        oidc_client_secret="a secret",  # type: ignore[arg-type]  # pydantic makes one of a text
        oidc_groups=groups,  # type: ignore[arg-type]  # words of roles
        oidc_admin_group="platform",
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The heart is a project that is not there."""
    return settings_for(tmp_path)


@pytest.fixture
def session(sqlite_factory: SessionFactory) -> Iterator[Session]:
    """A transaction of a test to which the kind of database makes no difference."""
    with transaction(sqlite_factory) as session:
        yield session


def signs_in(
    session: Session, settings: Settings, now: datetime, groups: Iterable[str], subject: str = "ana", name: str = "Ana"
) -> Person:
    claims = people.Claims(subject, [name], None, frozenset(groups))
    return people.sign_in(session, settings, claims, "sealed", now=now)


def made_by(session: Session, key: ApiKey, scope: str, now: datetime) -> ApiKey:
    asked = {"by": auth.principal_of(key), "project_id": key.project_id}
    return auth.create_key(session, name="made", scopes=[scope], now=now, **asked)[0]


def test_from_the_first_sign_in_to_the_end(factory, settings, now):
    with transaction(factory) as session:
        person = signs_in(session, settings, now, ["analyst", "owner"])
        (role,) = people.roles(session, person)
        assert (role.project_id, set(role.scopes)) == (DEFAULT_PROJECT, {"admin", "read", "train"})
        first = made_by(session, role, "read", now)
        second = made_by(session, made_by(session, role, "admin", now), "train", now)
        cookie = open_session(session, role.id, now=now)
    assert {first.person_id, second.person_id} == {person.id}
    later = now + INTERVAL
    with transaction(factory, read_only=True) as session:
        assert due(session, now + INTERVAL / 2, INTERVAL) == []
        assert due(session, later, INTERVAL) == [person.id]
        assert find_session(session, cookie, now=later) is not None
        with pytest.raises(Unauthorized, match="a session stays valid"):
            find_session(session, cookie, now=now + SESSION_CONFIRMED)
        assert auth.find_usable(session, second.id, now=now + SESSION_CONFIRMED) is not None
        assert auth.find_usable(session, second.id, now=now + timedelta(seconds=900)) is None
    with transaction(factory) as session:
        people.lapse(session, session.get_one(Person, person.id), now=later)
    with transaction(factory, read_only=True) as session:
        assert find_session(session, cookie, now=later) is None
        assert auth.find_usable(session, second.id, now=later) is None
        assert due(session, later + INTERVAL, INTERVAL) == []
        assert people.long_lapsed(session, now=later + timedelta(days=6)) == []
    with transaction(factory) as session:
        people.end_lapsed(session, now=later + people.LAPSED_KEPT)
    with transaction(factory, read_only=True) as session:
        valid = select(ApiKey).where(ApiKey.person_id == person.id, ApiKey.revoked_at.is_(None))
        assert session.scalars(valid).all() == []
        assert session.scalars(select(Admin.removed_at).where(Admin.person_id == person.id)).one() is not None
        assert people.long_lapsed(session, now=later + 2 * people.LAPSED_KEPT) == []


def test_whoever_signs_in_twice_at_the_same_moment_is_one_person(factory, settings, now):
    def once() -> str:
        with transaction(factory) as session:
            return signs_in(session, settings, now, ["owner"]).id

    assert len(set(at_once(*[once] * 4))) == 1
    with transaction(factory, read_only=True) as session:
        assert len(session.scalars(select(ApiKey).where(ApiKey.person_id.is_not(None))).all()) == 1
        assert len(session.scalars(select(Admin)).all()) == 1


GROUPS = ((), ("viewer",), ("analyst",), ("steward",), ("auditor",), ("steward", "analyst"), ("owner",))


def test_a_narrower_role_takes_everything_with_it_and_a_wider_one_nothing(sqlite_factory, settings, now):
    kept = 0
    for number, (before, after) in enumerate(product(GROUPS[1:], GROUPS)):
        with transaction(sqlite_factory) as session:
            kept += changes(session, settings, now, f"person {number}", before, after)
    assert kept == 17  # of 42: all that stay as they are, all to owner, and what else is within another role


def changes(
    session: Session, settings: Settings, now: datetime, who: str, before: tuple[str, ...], after: tuple[str, ...]
) -> bool:
    """Let somebody's groups change, and tell whether what they have made is kept."""
    may = [{scope for group in groups for scope in ROLES[group]} for groups in (before, after)]
    (role,) = people.roles(session, signs_in(session, settings, now, before, who, who))
    made = made_by(session, role, sorted(role.scopes)[0], now)
    person = signs_in(session, settings, now + INTERVAL, after, who, who)
    session.refresh(made)
    caller = Principal(id="key_x", scopes=frozenset(may[1]))
    kept = all(allows(caller, scope) for scope in may[0])
    about = (before, after)
    assert (made.revoked_at is None) == kept, about
    mine = people.roles(session, person)
    assert [set(key.scopes) for key in mine] == ([may[1]] if after else []), about
    assert [key.id == role.id for key in mine] == ([kept] if after else []), about
    owner = session.scalars(select(Admin.removed_at).where(Admin.person_id == person.id)).all()
    assert owner == ([] if "owner" not in {*before, *after} else [None if "owner" in after else now + INTERVAL]), about
    return kept


def allows(caller: Principal, scope: Scope) -> bool:
    try:
        caller.require(scope)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
def test_nobody_makes_a_key_that_may_more_than_their_role(session, settings, now, role):
    (own,) = people.roles(session, signs_in(session, settings, now, [role]))
    for scope in Scope:
        if allows(auth.principal_of(own), scope):
            assert made_by(session, own, scope, now).scopes == [scope]
        else:
            with pytest.raises(Forbidden, match="needs a key with the scope"):
                made_by(session, own, scope, now)


def test_the_role_that_ends_in_one_project_takes_nothing_in_another(factory, tmp_path, now):
    with transaction(factory) as session:
        heart = projects.create(session, name="heart", now=now).id
        settings = settings_for(tmp_path, heart)
        person = signs_in(session, settings, now, ["heart", "owner", "platform"])
        mine = people.roles(session, person)
        assert [key.project_id for key in mine] == [*sorted([heart, DEFAULT_PROJECT]), None]
        keys = {key.project_id: made_by(session, key, "read" if key.project_id else "admin", now) for key in mine}
        signs_in(session, settings, now, ["heart", "platform"])
        for key in keys.values():
            session.refresh(key)
        assert {project_id: key.revoked_at is None for project_id, key in keys.items()} == {
            heart: True,
            DEFAULT_PROJECT: False,
            None: True,
        }
        owns = {admin.project_id: admin.removed_at is None for admin in session.scalars(select(Admin))}
        assert owns == {heart: True, DEFAULT_PROJECT: False, None: True}
        voices = {voice_of(session, admin) for admin in session.scalars(select(Admin))}
        assert voices == {person.id}


def test_whoever_becomes_an_owner_again_was_not_one_meanwhile(session, settings, now):
    for groups, moment in ((["owner"], now), (["viewer"], now + INTERVAL), (["owner"], now + 2 * INTERVAL)):
        signs_in(session, settings, moment, groups)
    admin = session.scalars(select(Admin)).one()
    assert (admin.admitted_at, admin.removed_at) == (now + 2 * INTERVAL, None)


def test_a_project_that_is_not_there_gives_nobody_a_role(session, settings, now):
    assert people.roles(session, signs_in(session, settings, now, ["heart"])) == []
    assert session.scalars(select(Admin)).all() == []
    assert people.unknown_projects(session, settings) == ["prj_" + "a" * 20]  # which the operator is told


def test_two_people_of_one_name_are_two_admins(session, settings, now):
    for subject in ("one", "two", "three"):
        signs_in(session, settings, now, ["owner"], subject)
    names = [admin.name for admin in session.scalars(select(Admin).order_by(Admin.name))]
    assert len(set(names)) == 3
    assert [name[:5] for name in names] == ["Ana", "Ana (", "Ana ("]
    assert len({voice_of(session, admin) for admin in session.scalars(select(Admin))}) == 3


@pytest.mark.parametrize("names", [["\u202eevil"], ["", " "], ["a" * 500], []])
def test_a_name_that_could_deceive_is_not_shown(session, settings, now, names):
    claims = people.Claims("odd", names, None, frozenset({"viewer"}))
    person = people.sign_in(session, settings, claims, "sealed", now=now)
    assert person.name == person.id
