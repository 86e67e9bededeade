"""What every storage must do. The tests of a storage inherit `StorageContract` and give it the fixture `storage`."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.errors import Conflict, InvalidInput, NotFound
from service.storage.interface import Storage, digest_directory, key_of, put_away, trashed_before
from service.storage.journals import Journal, Journalled, journalled, journalled_jobs, read_journal
from service.times import to_the_hour
from tests.together import at_once, status_of

RELEASE = "rel_" + "b3" * 10
KEY = key_of(RELEASE)
FILES = {"a.json": b"{}", "inner/b.bin": b"\0\1"}
PART, SMALL = 3000, 500  # bytes of a part, and of a file that is not divided
BIG = {"a.json": b"{}", "inner/b.bin": os.urandom(2 * PART + 7), "c": os.urandom(PART), "empty": b""}


def publish(storage: Storage, files: dict[str, bytes] = FILES, key: str = KEY) -> None:
    with storage.stage(key) as staging:
        for name, content in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(content)
        storage.publish(staging, key)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class StorageContract:
    def test_what_is_staged_is_private_and_nobody_sees_it(self, storage):
        with storage.stage(KEY) as staging:
            assert list(staging.iterdir()) == []
            assert staging.stat().st_mode & 0o777 == 0o700
            (staging / "a").write_bytes(b"1")
            assert RELEASE not in storage.list("releases")
            with pytest.raises(NotFound):
                storage.open(KEY)
        assert not staging.exists()
        assert storage.list("releases") == []

    def test_a_folder_that_was_published_is_read_as_it_was_written(self, storage):
        publish(storage)
        assert content_of(storage.open(KEY)) == FILES
        assert storage.open(KEY, "a.json").read_bytes() == b"{}"
        assert content_of(storage.open(f"{KEY}/inner")) == {"b.bin": b"\0\1"}
        assert (storage.list("releases"), storage.list(KEY)) == ([RELEASE], ["a.json", "inner"])

    def test_small_files_are_read_together(self, storage):
        written = {f"acc_{number}.json": bytes([number]) for number in range(3)}
        grown = {f"job_{number}.jsonl": b"begun" + bytes([number]) for number in range(3)}
        for name, content in written.items():
            storage.write(f"receipts/{name}", content)
        for name, content in grown.items():
            storage.append(f"receipts/{name}", b"begun")
            storage.append(f"receipts/{name}", content[5:])
        publish(storage, key="receipts/acc_folder")
        assert storage.read_all("receipts", "acc_") == {**written, "acc_folder": None}
        assert storage.read_all("receipts", "job_") == grown
        assert storage.read_all("receipts") == {**written, **grown, "acc_folder": None}
        assert storage.read_all("nothing") == {}
        storage.write("receipts/acc_1.json", bytes(8))
        assert storage.read_all("receipts", "acc_1", bytes_max=5) == {"acc_1.json": bytes(6)}
        assert storage.read_all("receipts", "job_1", bytes_max=6)["job_1.jsonl"] == grown["job_1.jsonl"]

    def test_publishing_again_is_harmless_and_other_content_is_a_conflict(self, storage):
        publish(storage)
        digest = digest_directory(storage.open(KEY))
        publish(storage)
        for other in ({"a.json": b"[]"}, {"a.json": b"{}"}, {**FILES, "more": b""}):
            with pytest.raises(Conflict):
                publish(storage, other)
        assert digest_directory(storage.open(KEY)) == digest
        assert storage.list("releases") == [RELEASE]

    def test_of_several_that_publish_at_once_one_is_published_whole(self, storage):
        contents = [{"a": bytes([number]), "b": bytes([number])} for number in range(8)]
        ends = at_once(*(lambda files=files: publish(storage, files) for files in contents))
        assert sorted(type(end).__name__ for end in ends) == ["Conflict"] * 7 + ["NoneType"]
        assert content_of(storage.open(KEY)) in contents

    def test_a_file_takes_the_place_of_the_one_before(self, storage):
        for content in (b"1", b"22", b""):
            storage.write("receipts/acc_x.json", content)
            assert storage.open("receipts", "acc_x.json").read_bytes() == content
        assert storage.list("receipts") == ["acc_x.json"]
        storage.write("mark", b"at the top")
        assert storage.open("", "mark").read_bytes() == b"at the top"
        assert {"mark", "receipts"} <= set(storage.list(""))

    def test_links_and_special_files_are_never_published(self, storage, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("x")
        with storage.stage(KEY) as staging:
            for make in (lambda path: path.symlink_to(secret), lambda path: path.symlink_to(tmp_path), os.mkfifo):
                make(staging / "x")
                with pytest.raises(InvalidInput):
                    storage.publish(staging, KEY)
                (staging / "x").unlink()
        assert storage.list("releases") == []

    def test_a_file_is_found_by_its_plain_name_alone(self, storage):
        publish(storage)
        inside = ["inner", "inner/b.bin", ".", "missing", "a.json\n"]
        for name in (*inside, "../a.json", "/etc/hostname", "..", f"../{KEY}"):
            with pytest.raises(NotFound):
                storage.open(KEY, name)

    @pytest.mark.parametrize("key", ["..", "../x", "/etc", "a/../x", "a//x", "a/", "a b", "x\n", "."])
    def test_nothing_but_plain_steps_is_a_key(self, storage, key):
        acts: list[Callable[[], Any]] = [
            lambda: publish(storage, key=key),
            lambda: storage.append(key, b"x"),
            lambda: storage.open(key),
            lambda: storage.move(key, "x"),
            lambda: storage.move("x", key),
            lambda: storage.remove(key),
        ]
        for act in acts:
            with pytest.raises(InvalidInput):
                act()

    def test_a_journal_grows_line_by_line_and_survives_a_torn_one(self, storage):
        assert (journalled_jobs(storage), journalled(storage, "job_a")) == ([], Journalled(0, Counter(), None))
        Journal(storage, "job_a", 1, "acc_a").write(stage="votes", count=5, cost_nano=70)
        storage.append("journals/job_a.jsonl", b'\n{"attempt": 1, "stage": "vo')
        Journal(storage, "job_a", 2, "acc_a").write(stage="votes", count=1, cost_nano=14)
        lines = [(line.attempt, line.count, line.cost_nano, line.account_id) for line in read_journal(storage, "job_a")]
        assert lines == [(1, 5, 70, "acc_a"), (2, 1, 14, "acc_a")]
        assert journalled(storage, "job_a") == Journalled(84, Counter(votes=6), "acc_a")
        Journal(storage, "job_b", 1, "acc_a")
        assert journalled_jobs(storage) == ["job_a", "job_b"]

    def test_what_was_appended_survives_the_death_of_its_process(self, storage, warm):
        assert status_of(warm, _append_and_die, storage) == -signal.SIGKILL
        assert journalled(storage, "job_a") == Journalled(300, Counter(votes=30), "acc_a")

    def test_moving_takes_everything_below_a_key_along(self, storage):
        publish(storage, {"model": b"1"}, "work/job_a/trained")
        storage.write("work/job_a/checkpoint", b"2")
        storage.write("work/job_ab/checkpoint", b"3")
        storage.move("work/job_a", "trash/work.job_a")
        assert (storage.list("work"), storage.list("trash")) == (["job_ab"], ["work.job_a"])
        assert content_of(storage.open("trash/work.job_a")) == {"trained/model": b"1", "checkpoint": b"2"}
        storage.move("trash/work.job_a", "work/job_a")  # whoever missed it
        assert content_of(storage.open("work/job_a/trained")) == {"model": b"1"}
        storage.write("mark.new", b"4")
        storage.move("mark.new", "mark")
        assert storage.open("", "mark").read_bytes() == b"4"
        with pytest.raises(NotFound):
            storage.move("mark.new", "mark")

    def test_removing_is_complete_and_repeatable(self, storage):
        publish(storage)
        storage.write("receipts/acc_x.json", b"1")
        for _ in range(2):
            storage.remove(KEY)
            storage.remove("receipts/acc_x.json")
            assert storage.list("releases") == storage.list("receipts") == []
            with pytest.raises(NotFound):
                storage.open(KEY)
        publish(storage, {"a": b"another"})
        assert content_of(storage.open(KEY)) == {"a": b"another"}

    def test_how_long_nobody_has_written_is_known(self, storage):
        storage.append("journals/job_a.jsonl", b"1")
        assert storage.idle_seconds("journals/job_a.jsonl") < 60
        assert storage.idle_seconds("journals/job_b.jsonl") == 0

    def test_the_trash_keeps_what_it_is_given_until_its_time_has_come(self, storage):
        publish(storage)
        now = to_the_hour(datetime(2030, 1, 2, tzinfo=UTC))
        assert put_away(storage, KEY, now=now)
        assert not put_away(storage, KEY, now=now)
        assert storage.list("releases") == []
        assert trashed_before(storage, now) == []
        (waiting,) = trashed_before(storage, now.replace(second=1))
        assert waiting == f"trash/20300102T000000Z.releases.{RELEASE}"
        assert content_of(storage.open(waiting)) == FILES
        storage.remove(waiting)
        assert storage.list("trash") == []


def _append_and_die(storage: Storage) -> None:
    journal = Journal(storage, "job_a", 1, "acc_a")
    for _ in range(30):
        journal.write(stage="votes", count=1, cost_nano=10)
    os.kill(os.getpid(), signal.SIGKILL)
