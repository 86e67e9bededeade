"""What a training does is dated by the hour where it is kept for ever, and shown to the minute while it is shown."""

import os
from datetime import UTC, datetime, timedelta, timezone

from service import artifacts, ledger
from service.api import views
from service.artifacts import directory_of, publish_directory, staged_directory
from service.db.base import new_id
from service.db.session import transaction
from service.db.words import EntryKind
from service.times import to_the_hour, to_the_minute
from tests.service.holds import hold_at_present_rate

ASKED = datetime(2030, 1, 2, 3, 50, 7, 123456, tzinfo=UTC)


def test_moments_lose_their_minutes_or_seconds():
    east = ASKED.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert to_the_hour(east) == datetime(2030, 1, 2, 3, tzinfo=UTC)
    assert to_the_minute(east) == datetime(2030, 1, 2, 3, 50, tzinfo=UTC)


def test_entries_of_a_training_do_not_tell_how_long_its_steps_took(factory, open_account):
    """Two trainings of other pace leave the same times; within a hold they never go back."""
    logs = []
    for pace in (timedelta(seconds=20), timedelta(seconds=21)):
        account_id = open_account(factory, name=f"pace {pace}")
        now = ASKED
        with transaction(factory) as session:
            facts = {"account_id": account_id, "job_id": new_id("job"), "amount_nano": 100, "now": now}
            held = hold_at_present_rate(session, **facts)
            ledger.fence(session, hold_id=held.id, attempt=1, now=now)
        with transaction(factory) as session:
            ledger.arm(session, hold_id=held.id, attempt=1, now=now + pace)
        for step in range(2, 40):
            with transaction(factory) as session:
                ledger.charge(session, hold_id=held.id, attempt=1, amount_nano=1, stage="steps", now=now + step * pace)
        with transaction(factory) as session:
            ledger.capture(
                session, hold_id=held.id, attempt=1, artifact_sha256="0" * 64, reason="published", now=now + 50 * pace
            )
        with transaction(factory, read_only=True) as session:
            rows = ledger.entries(session, account_id, 0, 100)
        logs.append([row.created_at for row in rows if row.kind is not EntryKind.OPEN])
    for times in logs:
        assert times == sorted(times)
        assert set(times) == {ASKED, datetime(2030, 1, 2, 4, tzinfo=UTC)}
    changes = [times.index(datetime(2030, 1, 2, 4, tzinfo=UTC)) for times in logs]
    assert abs(changes[0] - changes[1]) <= 2  # all that is left of the pace: which charge began a new hour


def test_files_of_a_release_are_dated_by_the_hour(tmp_path):
    identifier = new_id("rel")
    with staged_directory(tmp_path, identifier) as staging:
        (staging / "generator.json").write_text("{}")
        publish_directory(staging, directory_of(tmp_path, identifier))
    written = os.stat(artifacts.find_file(tmp_path, identifier, "generator.json")).st_mtime
    assert written == to_the_hour(datetime.fromtimestamp(written, UTC)).timestamp()


def test_a_job_shows_the_minutes_in_which_it_ran():
    assert views.minute(None) is None
    assert views.minute(ASKED) == datetime(2030, 1, 2, 3, 50, tzinfo=UTC)
