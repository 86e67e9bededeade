"""What people took away after a backup stays away: keys, limits, and accounts that they froze or closed."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from obscura.wire.words import DecisionAction
from service import ledger, restrictions
from service.audit.restrictions import keep_restrictions
from service.backups.carrying import carry_forward
from service.backups.making import back_up
from service.backups.restoring import restore
from service.db.access_tables import Admin, ApiKey, SignIn
from service.db.audit_tables import AuditEvent
from service.db.schema import upgrade_schema
from service.db.session import transaction
from service.errors import Unauthorized
from service.identity import admins, auth, decisions
from service.identity.access import Principal
from service.inspection import inspect_at_start, inspect_ledger
from service.storage import storage_of
from service.storage.restrictions import read_ends, read_restrictions
from tests.service.audit.book import LedgerBook
from tests.service.backups.losing import codes, installed, lose_database, settings_of
from tests.service.people import make_key

FORGOTTEN = "restriction_forgotten"


@pytest.fixture
def book(database_url: str, tmp_path: Path, now) -> Iterator[LedgerBook]:
    """An installation on each database, which notes what it restricts, with accounts besides *patients*."""
    with installed(database_url, tmp_path / "var", now) as made:
        _begin(made)
        yield made
    upgrade_schema(database_url)  # the tests of PostgreSQL share one database, which may have been lost


@pytest.fixture
def lone(sqlite_url: str, tmp_path: Path, now) -> Iterator[LedgerBook]:
    with installed(sqlite_url, tmp_path / "var", now) as made:
        _begin(made)
        yield made


def _begin(book: LedgerBook) -> None:
    for name in ("visitors", "staff"):
        book.open(name)
    book.factory = restrictions.noting(book.factory, settings_of(book))


def key_of(book: LedgerBook, name: str, *scopes: str) -> tuple[str, str]:
    """The id and the token of a new key."""
    key, token = book.do(make_key, name=name, scopes=scopes)
    return key.id, token


def opens(book: LedgerBook, token: str) -> bool:
    try:
        return isinstance(book.read(auth.authenticate, token, now=book.now), Principal)
    except Unauthorized:
        return False


def account(book: LedgerBook, name: str) -> ledger.Account:
    found: ledger.Account = book.read(ledger.get_account, account_id=book.accounts[name])
    return found


def lower(book: LedgerBook, name: str, epsilon: float) -> None:
    book.do(ledger.lower_limit, account_id=book.accounts[name], epsilon=epsilon, reason="less")


def freeze(book: LedgerBook, name: str, *, frozen: bool = True) -> None:
    book.do(ledger.set_frozen, account_id=book.accounts[name], frozen=frozen, reason="stop")


def close(book: LedgerBook, name: str, *, closed: bool = True) -> None:
    storage = storage_of(settings_of(book))
    with transaction(book.factory) as session:
        restrictions.set_closed(session, storage, book.accounts[name], closed=closed)


def take_back(book: LedgerBook, backup: Path) -> set[tuple[str, str | None]]:
    """Lose the database and restore it beside its files; returns what was found, and of which accounts."""
    lose_database(book)
    restored = restore(settings_of(book, audit_log="on"), backup, keep_files=True, now=book.tick())
    return {(finding.code.value, finding.account_id) for finding in restored.report.findings}


def backed_up(book: LedgerBook, folder: Path) -> Path:
    back_up(settings_of(book), book.factory, folder, with_keys=False, now=book.now)
    return folder


def test_what_was_taken_away_after_a_backup_is_taken_from_the_database_that_comes_back(book, tmp_path):
    (_, kept), (gone_id, gone), (rotated_id, rotated), (admin_id, admin) = (
        key_of(book, name, *scopes)
        for name, scopes in (("kept", ["read"]), ("gone", ["read"]), ("rotated", ["read"]), ("boss", ["admin"]))
    )
    made_by_admin, made = book.do(auth.create_key, name="made", scopes=["read"], created_by=admin_id)
    with transaction(book.factory) as session:
        session.add(
            SignIn(token_sha256="0" * 64, key_id=admin_id, created_at=book.now, expires_at=book.now + timedelta(days=9))
        )
    backup = backed_up(book, tmp_path / "backup")
    book.do(auth.revoke_key, key_id=gone_id, admin_id=None)
    owner = book.read(lambda session: session.get_one(ApiKey, admin_id).admin_id)
    other_id, _ = key_of(book, "other", "admin")
    book.do(auth.rotate_key, key_id=rotated_id, overlap_seconds=3600, created_by=other_id, admin_id=None)
    book.do(auth.revoke_key, key_id=admin_id, admin_id=owner)
    lower(book, "patients", 2.0)
    freeze(book, "visitors")
    close(book, "staff")
    for again in (False, True):  # the same backup once more
        found = take_back(book, backup)
        assert found == {(FORGOTTEN, book.accounts[name]) for name in ("patients", "visitors")}
        assert set(book.stops()) == {(account_id, code) for code, account_id in found}
        assert [opens(book, token) for token in (kept, gone, admin, made)] == [True, False, False, False]
        assert opens(book, rotated) is not again, "it goes on for an hour"
        book.now += timedelta(hours=1)
        assert not opens(book, rotated)
        assert account(book, "staff").closed
        assert book.read(lambda session: session.scalars(select(SignIn)).all()) == []
        events = book.read(lambda session: session.scalars(select(AuditEvent)).all())
        revoked = {event.object_id for event in events if event.action == "key revoked"}
        assert {gone_id, admin_id, made_by_admin.id} <= revoked
        carried = carry_forward(settings_of(book), book.factory, now=book.tick())
        assert carried.report.clean, carried.report.findings
        assert carried.limits == {book.accounts["patients"]: 2.0, book.accounts["visitors"]: 8.0}
        assert (account(book, "patients").epsilon, account(book, "patients").frozen) == (2.0, False)
        assert (account(book, "visitors").epsilon, account(book, "visitors").frozen) == (8.0, True)
        assert codes(book) == set()
    texts = [path.read_text() for path in (book.data_dir / "restrictions").iterdir()]
    hashes = book.read(lambda session: session.scalars(select(ApiKey.hash)).all())
    assert not [text for text in texts for secret in (*hashes, gone, rotated, admin, made) if secret in text]


def test_what_was_given_back_later_is_not_taken_away_again(lone, tmp_path):
    settings = settings_of(lone)
    backup = backed_up(lone, tmp_path / "backup")
    assert take_back(lone, backup) == set(), "the control"
    lower(lone, "patients", 2.0)
    freeze(lone, "visitors")
    close(lone, "staff")
    lone.raise_limit("patients", 6.0)
    freeze(lone, "visitors", frozen=False)
    close(lone, "staff", closed=False)

    def given_back() -> bool:
        restrictions.recall(settings, lone.factory, now=lone.now)
        assert inspect_at_start(settings, lone.factory, now=lone.now) is None
        epsilon, frozen = account(lone, "patients").epsilon, account(lone, "visitors").frozen
        return (epsilon, frozen, account(lone, "staff").closed) == (6.0, False, False)

    assert given_back()
    newer = backed_up(lone, tmp_path / "newer")
    assert take_back(lone, newer) == set()
    assert given_back()
    # Of what two people raised again the older database knows nothing, but neither is it held to what was lower once.
    assert take_back(lone, backup) == {(FORGOTTEN, lone.accounts["patients"])}
    assert carry_forward(settings, lone.factory, now=lone.tick()).limits == {lone.accounts["patients"]: 6.0}
    lone.raise_limit("patients", 7.0)  # by an entry of a lower number than that of the note that was lost with its log
    assert inspect_at_start(settings, lone.factory, now=lone.now) is None
    assert account(lone, "patients").epsilon == 7.0


def test_what_is_given_back_after_carrying_forward_was_interrupted_stays(lone, tmp_path, monkeypatch):
    settings, plain = settings_of(lone), lone.factory
    backup = backed_up(lone, tmp_path / "backup")
    lower(lone, "patients", 2.0)
    assert take_back(lone, backup)
    with monkeypatch.context() as patched:
        patched.setattr("service.backups.carrying.keep_restrictions", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            carry_forward(settings, plain, now=lone.tick())
    assert carry_forward(settings, plain, now=lone.tick()).report.clean
    lone.raise_limit("patients", 5.0)
    assert inspect_at_start(settings, lone.factory, now=lone.now) is None


def test_a_crash_between_a_decision_and_its_note_is_made_up_for_at_the_next_start(lone, tmp_path, monkeypatch):
    settings, storage = settings_of(lone), storage_of(settings_of(lone))
    key_id, token = key_of(lone, "gone", "read")
    backup = backed_up(lone, tmp_path / "backup")

    def decide(*, taken: bool) -> None:
        lower(lone, "patients", 2.0) if taken else lone.raise_limit("patients", 3.0)
        freeze(lone, "visitors", frozen=taken)
        close(lone, "staff", closed=taken)

    for taken in (True, False):
        with monkeypatch.context() as crash:
            crash.setattr(restrictions, "keep_restrictions", lambda *_: None)
            crash.setattr(restrictions, "keep_ends", lambda *_: None)
            decide(taken=taken)
            lone.do(auth.revoke_key, key_id=key_id, admin_id=None)
        restrictions.recall(settings, lone.factory, now=lone.now)
        assert inspect_at_start(settings, lone.factory, now=lone.now) is None
        assert (account(lone, "visitors").frozen, account(lone, "staff").closed) == (taken, taken)
        noted = {name: read_restrictions(storage)[lone.accounts[name]] for name in ("patients", "visitors", "staff")}
        assert noted["patients"].epsilon == (2.0 if taken else 3.0)
        assert (noted["visitors"].frozen, noted["staff"].closed) == (taken, taken)
    assert key_id in read_ends(storage)
    assert take_back(lone, backup) == {(FORGOTTEN, lone.accounts["patients"])}
    assert not opens(lone, token)


def test_a_disk_that_refuses_a_note_lets_all_be_taken_away_and_no_account_be_reopened(lone, monkeypatch):
    def full(*_: object) -> None:
        raise OSError("full")

    freeze(lone, "staff")
    close(lone, "patients")
    monkeypatch.setattr("service.audit.restrictions.write_restriction", full)
    monkeypatch.setattr(restrictions, "write_restriction", full)
    freeze(lone, "visitors")
    assert account(lone, "visitors").frozen
    with pytest.raises(OSError, match="full"):  # if it were lost once it is reopened, the next start would close it
        close(lone, "patients", closed=False)
    assert account(lone, "patients").closed


def test_by_hand_is_as_good_and_a_raise_that_comes_later_stays(lone, tmp_path):
    """Where the service was started on the older database, its admins take away again what they had."""
    settings = settings_of(lone)
    backup = backed_up(lone, tmp_path / "backup")
    lower(lone, "patients", 2.0)
    freeze(lone, "patients")
    assert take_back(lone, backup)
    lower(lone, "patients", 2.0)
    assert not inspect_ledger(settings, lone.factory).clean, "it is not frozen yet"
    freeze(lone, "patients")
    assert inspect_ledger(settings, lone.factory).clean
    freeze(lone, "patients", frozen=False)
    lone.raise_limit("patients", 4.0)
    assert inspect_ledger(settings, lone.factory).clean


def test_an_admin_who_was_removed_stays_removed(lone, tmp_path):
    keys = [key_of(lone, name, "admin")[0] for name in ("one", "two", "three")]
    going = lone.read(lambda session: session.get_one(ApiKey, keys[2]).admin_id)
    backup = backed_up(lone, tmp_path / "backup")
    asked = lone.do(admins.ask_removal, admin_id=going, reason="left", asked_with=keys[0])
    with transaction(lone.factory) as session:
        decisions.decide(session, asked.id, keys[1], lone.tick(), admins.EFFECTS, approved=True)
    assert asked.action is DecisionAction.REMOVE
    assert take_back(lone, backup) == set()
    gone, key = lone.read(lambda session: (session.get_one(Admin, going), session.get_one(ApiKey, keys[2])))
    assert gone.removed_at is not None
    assert key.revoked_at is not None


def test_notes_that_cannot_be_read(lone, tmp_path):
    """A line that a crash tore is passed over; an account's note is there as a whole, or something is wrong."""
    settings, folder = settings_of(lone), lone.data_dir / "restrictions"
    key_id, token = key_of(lone, "gone", "read")
    backup = backed_up(lone, tmp_path / "backup")
    freeze(lone, "visitors")
    lone.do(auth.revoke_key, key_id=key_id, admin_id=None)
    ends = folder / "ends.jsonl"
    ends.write_bytes(b'{"key_' + ends.read_bytes() + b'\n["key"]\n{"key_a": "soon"}\n{"key_b')
    assert set(read_ends(storage_of(settings))) == {key_id}
    assert take_back(lone, backup) == {(FORGOTTEN, lone.accounts["visitors"])}
    assert not opens(lone, token)
    note = folder / f"{lone.accounts['visitors']}.json"
    note.write_bytes(note.read_bytes()[:-9])
    (finding,) = inspect_ledger(settings, lone.factory).findings
    assert "cannot be read" in finding.message
    with transaction(lone.factory, read_only=True) as session:
        keep_restrictions(session, storage_of(settings))
    assert not inspect_ledger(settings, lone.factory).clean, "it is evidence, and stays"
    note.unlink()
    assert inspect_ledger(settings, lone.factory).clean


def test_a_backup_holds_the_notes_and_they_go_where_everything_goes(lone, tmp_path):
    key_id, _ = key_of(lone, "gone", "read")
    freeze(lone, "visitors")
    lone.do(auth.revoke_key, key_id=key_id, admin_id=None)
    backup = backed_up(lone, tmp_path / "backup")
    before = read_restrictions(storage_of(settings_of(lone)))
    lose_database(lone)
    shutil.copytree(lone.data_dir / "keys", tmp_path / "new" / "keys")
    new = settings_of(lone, data_dir=tmp_path / "new")
    assert restore(new, backup, keep_files=False, now=lone.tick()).report.clean
    assert read_restrictions(storage_of(new)) == before
    assert set(read_ends(storage_of(new))) == {key_id}
