"""API keys: tokens are shown once and kept as hashes; revocation; the first admin key; the last use of a key."""

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select, text

from service.db.access_tables import ApiKey
from service.db.project_tables import DEFAULT_PROJECT
from service.db.schema import upgrade_schema
from service.db.session import SessionFactory, open_sessions, transaction
from service.errors import InvalidInput, NotFound, Unauthorized
from service.identity.access import Principal, Scope
from service.identity.admins import bootstrap_admin
from service.identity.auth import KeyUses, add_key, authenticate, create_key, is_usable, revoke, revoke_key
from service.times import to_the_hour
from tests.conftest import NOW
from tests.service import people
from tests.together import at_once, wait_until


def make_key(factory: SessionFactory, now: datetime, *scopes: str) -> tuple[str, str]:
    with transaction(factory) as session:
        key, token = people.make_key(session, name="a key", scopes=scopes, now=now)
        return key.id, token


def who(factory: SessionFactory, token: str, *, now: datetime = NOW) -> Principal:
    with transaction(factory, read_only=True) as session:
        return authenticate(session, token, now=now)


def test_a_token_is_new_finds_its_principal_and_is_stored_nowhere(factory, now):
    key_id, token = make_key(factory, now, "train", "read", "train")
    secret = token.rsplit("_", 1)[1]
    assert token == f"obs_{key_id.removeprefix('key_')}_{secret}"
    assert len(secret) == 64  # 256 bits
    assert who(factory, token) == Principal(key_id, frozenset({Scope.TRAIN, Scope.READ}), project_id="prj_default")
    with transaction(factory, read_only=True) as session:
        assert secret not in repr(tuple(session.execute(text("SELECT * FROM api_keys")).one()))
        key = session.scalars(select(ApiKey)).one()
    assert key.hash not in repr(key)
    assert make_key(factory, now, "read")[1].rsplit("_", 1)[1] != secret


def test_every_other_token_is_refused_alike(factory, now):
    key_id, token = make_key(factory, now, "admin")
    last = "0" if token[-1] != "0" else "1"
    near = [token[:-1] + last, token + "0", token.upper(), " " + token]
    other = ["", "obs_", key_id, f"obs_{'a' * 20}_{'0' * 64}", "\ud800", "é" * 50, "x" * 100_000]
    messages = set()
    for wrong in near + other:
        with pytest.raises(Unauthorized) as caught:
            who(factory, wrong)
        messages.add(caught.value.message)
        assert token not in str(caught.value)
    assert len(messages) == 1


def test_a_revoked_key_opens_nothing(factory, now):
    key_id, token = make_key(factory, now, "admin")
    for later in (0, 5):
        with transaction(factory) as session:
            owner = session.get_one(ApiKey, key_id).admin_id
            revoked, others = revoke_key(session, key_id=key_id, admin_id=owner, now=now + timedelta(days=later))
            assert (revoked.revoked_at, others) == (now, 0)
    with pytest.raises(Unauthorized):
        who(factory, token)
    with pytest.raises(NotFound), transaction(factory) as session:
        revoke_key(session, key_id="key_none", admin_id=None, now=now)


@pytest.mark.parametrize(
    ("name", "scopes"), [("k", []), ("k", ["root"]), ("", ["read"]), ("x" * 201, ["read"]), ("nobody's", ["admin"])]
)
def test_a_key_without_name_or_scope_is_refused(factory, now, name, scopes):
    with pytest.raises(InvalidInput), transaction(factory) as session:
        create_key(session, name=name, scopes=scopes, now=now)


def test_the_first_admin_key_is_written_for_its_owner_alone(factory, now, tmp_path):
    path = tmp_path / "data" / "admin.key"
    with transaction(factory) as session:
        assert bootstrap_admin(session, path=path, now=now)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert who(factory, path.read_text().strip()).scopes == {Scope.ADMIN}
    written = path.read_text()
    with transaction(factory) as session:
        assert not bootstrap_admin(session, path=path, now=now)
    assert path.read_text() == written
    assert [file.name for file in path.parent.iterdir()] == ["admin.key"]


def test_a_bootstrap_that_was_not_committed_is_done_again(factory, now, tmp_path):
    path = tmp_path / "admin.key"
    with factory() as session:
        bootstrap_admin(session, path=path, now=now)
        session.rollback()
    dead = path.read_text().strip()
    path.chmod(0o644)
    with transaction(factory) as session:
        assert bootstrap_admin(session, path=path, now=now)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert who(factory, path.read_text().strip()).scopes == {Scope.ADMIN}
    with pytest.raises(Unauthorized):
        who(factory, dead)


def made_by(factory: SessionFactory, now: datetime, key_id: str, admin_id: str | None) -> str:
    with transaction(factory) as session:
        made = create_key(session, name="made", scopes=["admin"], created_by=key_id, admin_id=admin_id, now=now)
        return made[0].id


def test_a_key_that_is_being_made_goes_with_its_maker(factory, now):
    """A thief makes keys as fast as they can while the stolen one is revoked: none is left."""
    key_id, _token = make_key(factory, now, "admin")
    with transaction(factory, read_only=True) as session:
        owner = session.get_one(ApiKey, key_id).admin_id

    def steal() -> None:
        last = key_id
        for _ in range(10):
            last = made_by(factory, now, last, owner)

    def stop() -> None:
        with transaction(factory) as session:
            revoke(session, ApiKey.id == key_id, now=now)

    ends = at_once(steal, steal, stop, steal)
    assert ends[2] is None, ends
    assert all(end is None or isinstance(end, Unauthorized) for end in ends), ends
    with transaction(factory, read_only=True) as session:
        assert session.scalars(select(ApiKey.id).where(is_usable(now))).all() == []
    with pytest.raises(Unauthorized):
        made_by(factory, now, key_id, owner)


def test_an_open_making_is_waited_for(factory, now):
    """The worst moment: the new key is written and not yet committed when its maker is revoked."""
    if factory.kw["bind"].dialect.name == "sqlite":
        pytest.skip("SQLite's writers take turns")
    key_id, _token = make_key(factory, now, "admin")

    def stop() -> int:
        with transaction(factory) as session:
            return revoke(session, ApiKey.id == key_id, now=now)

    with ThreadPoolExecutor(1) as pool:
        with transaction(factory) as session:
            owner = session.get_one(ApiKey, key_id).admin_id
            create_key(session, name="made", scopes=["admin"], created_by=key_id, admin_id=owner, now=now)
            stopping = pool.submit(stop)
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            wait_until(lambda: bool(session.scalar(waiting)), "nobody waits")
        assert stopping.result() == 2


@pytest.mark.parametrize("ends", ["expired", "revoked"])
def test_a_start_after_all_admin_keys_have_ended_makes_one(factory, now, tmp_path, ends):
    make_key(factory, now, "read")
    key_id, _token = make_key(factory, now, "admin")
    path, end = tmp_path / "admin.key", now + timedelta(days=1)
    with transaction(factory) as session:
        if ends == "expired":
            session.get_one(ApiKey, key_id).expires_at = end
        assert not bootstrap_admin(session, path=path, now=end - timedelta(seconds=1))
        if ends == "revoked":
            revoke(session, ApiKey.id == key_id, now=now)
        assert bootstrap_admin(session, path=path, now=end)


# --- when keys were last used: to the hour, once an hour for each, and never in the way of a request ---


def test_a_use_is_written_once_an_hour_and_never_put_back(factory, now):
    key_id, _token = make_key(factory, now, "read")
    written: list[str] = []
    event.listen(factory.kw["bind"], "before_cursor_execute", lambda *said: written.append(said[2]))

    def last_used():
        with transaction(factory, read_only=True) as session:
            return session.scalar(select(ApiKey.last_used_at).where(ApiKey.id == key_id))

    def updates() -> int:
        return sum(statement.startswith("UPDATE") for statement in written)

    uses, later = KeyUses(factory), now + timedelta(hours=1)
    for moment, count in ((now, 1), (now + timedelta(minutes=40), 1), (later, 2), (later, 2)):
        uses.note(key_id, moment)
        assert uses.write()
        assert updates() == count
    assert last_used() == to_the_hour(later)
    slow = KeyUses(factory)
    slow.note(key_id, now)
    assert slow.write()
    assert last_used() == to_the_hour(later), "what another process has written since stays"


def test_a_note_is_written_beside_whoever_makes_it(factory, now):
    key_id, _token = make_key(factory, now, "read")
    uses = KeyUses(factory)
    uses.start()
    with transaction(factory):  # on SQLite nobody else writes meanwhile
        uses.note(key_id, now)

    def is_written() -> bool:
        with transaction(factory, read_only=True) as session:
            return session.get_one(ApiKey, key_id).last_used_at == to_the_hour(now)

    wait_until(is_written, "not written")
    uses.stop()


def test_what_cannot_be_written_is_kept_for_the_next_time(tmp_path, now):
    url = f"sqlite:///{tmp_path / 'obscura.db'}"
    with open_sessions(url) as factory:
        uses = KeyUses(factory)
        uses.note("key_x", now)
        assert not uses.write(), "there is no table"
        uses.note("key_y", now)
        upgrade_schema(url)
        with transaction(factory) as session:
            for key_id in ("key_x", "key_y"):
                key = ApiKey(id=key_id, hash="0" * 64, name="k", scopes=[Scope.READ], project_id=DEFAULT_PROJECT)
                add_key(session, key, now)
        assert uses.write()
        with transaction(factory, read_only=True) as session:
            assert set(session.scalars(select(ApiKey.last_used_at))) == {to_the_hour(now)}
