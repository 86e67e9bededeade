"""API keys: tokens are shown once and kept as hashes; revocation; the first admin key; the last use of a key."""

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import OperationalError

from service.db.access_tables import DEFAULT_PROJECT, ApiKey
from service.db.schema import upgrade_schema
from service.db.session import SessionFactory, open_sessions, transaction
from service.errors import InvalidInput, NotFound, Unauthorized
from service.identity.access import Principal, Scope
from service.identity.admins import bootstrap_admin
from service.identity.auth import (
    KeyUses,
    add_key,
    authenticate,
    create_key,
    is_usable,
    principal_of,
    revoke,
    revoke_key,
)
from service.times import to_the_hour
from tests.service import steps
from tests.service.steps import Steps
from tests.together import at_once, wait_until


class Keys(Steps):
    def __init__(self, factory: SessionFactory, now: datetime) -> None:
        self.factory, self.now = factory, now

    def make(self, *scopes: str) -> tuple[str, str]:
        key, token = self.do(steps.make_key, name="a key", scopes=scopes)
        return key.id, token

    def made_by(self, key_id: str) -> str:
        return self.do(create_key, name="made", scopes=["admin"], by=principal_of(self.row(ApiKey, key_id)))[0].id

    def who(self, token: str) -> Principal:
        return self.read(authenticate, token, now=self.now)


@pytest.fixture
def keys(factory: SessionFactory, now: datetime) -> Keys:
    return Keys(factory, now)


def test_a_token_is_new_finds_its_principal_and_is_stored_nowhere(keys):
    key_id, token = keys.make("train", "read", "train")
    secret = token.rsplit("_", 1)[1]
    assert token == f"obs_{key_id.removeprefix('key_')}_{secret}"
    assert len(secret) == 64  # 256 bits
    assert keys.who(token) == Principal(key_id, frozenset({Scope.TRAIN, Scope.READ}), project_id="prj_default")
    stored = keys.read(lambda session: tuple(session.execute(text("SELECT * FROM api_keys")).one()))
    assert secret not in repr(stored)
    key = keys.row(ApiKey, key_id)
    assert key.hash not in repr(key)
    assert keys.make("read")[1].rsplit("_", 1)[1] != secret


def test_every_other_token_is_refused_alike(keys):
    key_id, token = keys.make("admin")
    last = "0" if token[-1] != "0" else "1"
    near = [token[:-1] + last, token + "0", token.upper(), " " + token]
    other = ["", "obs_", key_id, f"obs_{'a' * 20}_{'0' * 64}", "\ud800", "é" * 50, "x" * 100_000]
    messages = set()
    for wrong in near + other:
        with pytest.raises(Unauthorized) as caught:
            keys.who(wrong)
        messages.add(caught.value.message)
        assert token not in str(caught.value)
    assert len(messages) == 1


def test_a_revoked_key_opens_nothing(keys, now):
    key_id, token = keys.make("admin")
    owner = keys.row(ApiKey, key_id).admin_id
    for later in (0, 5):
        when = now + timedelta(days=later)
        revoked, others = keys.do(revoke_key, key_id=key_id, admin_id=owner, now=when)
        assert (revoked.revoked_at, others) == (now, 0)
    with pytest.raises(Unauthorized):
        keys.who(token)
    with pytest.raises(NotFound):
        keys.do(revoke_key, key_id="key_none", admin_id=None)


@pytest.mark.parametrize(
    ("name", "scopes"), [("k", []), ("k", ["root"]), ("", ["read"]), ("x" * 201, ["read"]), ("nobody's", ["admin"])]
)
def test_a_key_without_name_or_scope_is_refused(keys, name, scopes):
    with pytest.raises(InvalidInput):
        keys.do(create_key, name=name, scopes=scopes)


def test_the_first_admin_key_is_written_for_its_owner_alone(keys, tmp_path):
    path = tmp_path / "data" / "admin.key"
    assert keys.do(bootstrap_admin, path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.who(path.read_text().strip()).scopes == {Scope.ADMIN}
    written = path.read_text()
    assert not keys.do(bootstrap_admin, path=path)
    assert path.read_text() == written
    assert [file.name for file in path.parent.iterdir()] == ["admin.key"]


def test_a_bootstrap_that_was_not_committed_is_done_again(keys, now, tmp_path):
    path = tmp_path / "admin.key"
    with keys.factory() as session:
        bootstrap_admin(session, path=path, now=now)
        session.rollback()
    dead = path.read_text().strip()
    path.chmod(0o644)
    assert keys.do(bootstrap_admin, path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.who(path.read_text().strip()).scopes == {Scope.ADMIN}
    with pytest.raises(Unauthorized):
        keys.who(dead)


def test_a_key_that_is_being_made_goes_with_its_maker(keys, now):
    """A thief makes keys as fast as they can while the stolen one is revoked: none is left."""
    key_id, _token = keys.make("admin")

    def steal() -> None:
        last = key_id
        for _ in range(10):
            last = keys.made_by(last)

    ends = at_once(steal, steal, lambda: keys.do(revoke, ApiKey.id == key_id), steal)
    assert isinstance(ends.pop(2), int), ends
    assert all(end is None or isinstance(end, Unauthorized) for end in ends), ends
    assert keys.read(lambda session: session.scalars(select(ApiKey.id).where(is_usable(now))).all()) == []
    with pytest.raises(Unauthorized):
        keys.made_by(key_id)


def test_an_open_making_is_waited_for(keys, now):
    """The worst moment: the new key is written and not yet committed when its maker is revoked."""
    if keys.sqlite:
        pytest.skip("SQLite's writers take turns")
    key_id, token = keys.make("admin")
    with ThreadPoolExecutor(1) as pool:
        with transaction(keys.factory) as session:
            create_key(session, name="made", scopes=["admin"], by=keys.who(token), now=now)
            stopping = pool.submit(keys.do, revoke, ApiKey.id == key_id)
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            wait_until(lambda: bool(session.scalar(waiting)), "nobody waits")
        assert stopping.result() == 2


@pytest.mark.parametrize("ends", ["expired", "revoked"])
def test_a_start_after_all_admin_keys_have_ended_makes_one(keys, now, tmp_path, ends):
    keys.make("read")
    key_id, _token = keys.make("admin")
    path, end = tmp_path / "admin.key", now + timedelta(days=1)
    with transaction(keys.factory) as session:
        if ends == "expired":
            session.get_one(ApiKey, key_id).expires_at = end
        assert not bootstrap_admin(session, path=path, now=end - timedelta(seconds=1))
        if ends == "revoked":
            revoke(session, ApiKey.id == key_id, now=now)
        assert bootstrap_admin(session, path=path, now=end)


# --- when keys were last used: to the hour, once an hour for each, and never in the way of a request ---


def test_a_use_is_written_once_an_hour_and_never_put_back(keys, now):
    key_id, _token = keys.make("read")
    written: list[str] = []
    event.listen(keys.factory.kw["bind"], "before_cursor_execute", lambda *said: written.append(said[2]))
    uses, later = KeyUses(keys.factory), now + timedelta(hours=1)
    uses.note(key_id, now)
    uses.write()
    assert keys.row(ApiKey, key_id).last_used_at == to_the_hour(now)
    for moment, count in ((now + timedelta(minutes=10), 1), (later, 2), (later, 2)):
        uses.note(key_id, moment)
        uses.write()
        assert sum(statement.startswith("UPDATE") for statement in written) == count
    assert keys.row(ApiKey, key_id).last_used_at == to_the_hour(later)
    slow = KeyUses(keys.factory)
    slow.note(key_id, now)
    slow.write()
    assert keys.row(ApiKey, key_id).last_used_at == to_the_hour(later), "what another process has written since stays"


def test_a_note_is_written_beside_whoever_makes_it(keys, now):
    key_id, _token = keys.make("read")
    uses, later = KeyUses(keys.factory), now + timedelta(hours=1)
    uses.start()
    with transaction(keys.factory):  # on SQLite nobody else writes meanwhile
        uses.note(key_id, later)
    wait_until(lambda: keys.row(ApiKey, key_id).last_used_at == to_the_hour(later), "not written")
    uses.stop()


def test_what_cannot_be_written_is_kept_for_the_next_time(tmp_path, now):
    url = f"sqlite:///{tmp_path / 'obscura.db'}"
    with open_sessions(url) as factory:
        uses = KeyUses(factory)
        uses.note("key_x", now)
        with pytest.raises(OperationalError):  # there is no table
            uses.write()
        uses.note("key_y", now)
        upgrade_schema(url)
        with transaction(factory) as session:
            for key_id in ("key_x", "key_y"):
                key = ApiKey(id=key_id, hash="0" * 64, name="k", scopes=[Scope.READ], project_id=DEFAULT_PROJECT)
                add_key(session, key, now)
        uses.write()
        with transaction(factory, read_only=True) as session:
            assert set(session.scalars(select(ApiKey.last_used_at))) == {to_the_hour(now)}
