"""When keys were last used: to the hour, once an hour for each, and never in the way of a request."""

from datetime import timedelta

from sqlalchemy import event, select

from service.db.access_tables import ApiKey
from service.db.project_tables import DEFAULT_PROJECT
from service.db.schema import upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction
from service.identity.access import Scope
from service.identity.auth import KeyUses, add_key, create_key
from service.times import to_the_hour
from tests.together import wait_until


def test_a_use_is_written_once_an_hour_and_never_put_back(factory, now):
    with transaction(factory) as session:
        key_id = create_key(session, name="k", scopes=["read"], now=now)[0].id
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
    with transaction(factory) as session:
        key_id = create_key(session, name="k", scopes=["read"], now=now)[0].id
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
    engine = make_engine(url)
    factory = make_session_factory(engine)
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
    engine.dispose()
