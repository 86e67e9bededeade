"""SQLite writers take turns, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from service.db.session import make_engine, make_session_factory, transaction
from service.db.writers import NestedTransaction, WriterQueue

SECONDS_MAX = 60


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def locked(path: Path) -> bool:
    """Tell whether anybody has locked the file."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_writers_of_one_process_come_in_their_order(tmp_path: Path) -> None:
    queue, came = WriterQueue(tmp_path / "a.db", seconds_max=SECONDS_MAX), []

    def write(number: int) -> None:
        with queue.turn():
            came.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    with queue.turn():
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda number=number: len(queue._waiting) == number + 2)
        assert came == []
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert came == list(range(8))


def test_two_queues_of_one_database_exclude_each_other(tmp_path: Path) -> None:
    one, other = (WriterQueue(tmp_path / "a.db", seconds_max=SECONDS_MAX) for _ in range(2))
    inside = [0, 0]  # now, at most

    def write(queue: WriterQueue) -> None:
        for _ in range(30):
            with queue.turn():
                inside[0] += 1
                inside[1] = max(inside)
                inside[0] -= 1

    threads = [threading.Thread(target=write, args=(queue,)) for queue in (one, other, one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert inside == [0, 1]


def test_a_turn_within_a_turn_is_refused_instead_of_waiting_for_itself(tmp_path: Path) -> None:
    queue = WriterQueue(tmp_path / "a.db", seconds_max=SECONDS_MAX)
    with queue.turn():
        with pytest.raises(NestedTransaction), queue.turn():
            pass
        assert len(queue._waiting) == 1
    with queue.turn():
        assert len(queue._waiting) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_turn_ends_with_the_error_that_ends_it(tmp_path: Path, error: type[BaseException]) -> None:
    one, other = (WriterQueue(tmp_path / "a.db", seconds_max=SECONDS_MAX) for _ in range(2))
    with pytest.raises(error), one.turn():
        raise error
    assert not one._waiting
    with other.turn():  # the lock file is free, too
        assert locked(tmp_path / "a.db-writers")


def test_whoever_is_interrupted_in_the_queue_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (WriterQueue(tmp_path / "a.db", seconds_max=SECONDS_MAX) for _ in range(2))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with other.turn():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", interrupt)
            turn = one.turn()
            with pytest.raises(KeyboardInterrupt):
                turn.__enter__()
        assert not one._waiting
    wait_until(lambda: not locked(tmp_path / "a.db-writers"))  # not even what waited for it has it now


def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from service.db.writers import WriterQueue\n"
        "with WriterQueue(Path(sys.argv[1]), seconds_max=60).turn():\n"
        "    print('has it', flush=True)\n"
        "    sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has it\n"
        assert locked(tmp_path / "a.db-writers")
        process.kill()
    with WriterQueue(tmp_path / "a.db", seconds_max=SECONDS_MAX).turn():
        assert locked(tmp_path / "a.db-writers")


def test_whoever_waited_too_long_goes_ahead(tmp_path: Path) -> None:
    queue = WriterQueue(tmp_path / "a.db", seconds_max=0.05)
    with (tmp_path / "a.db-writers").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with queue.turn():
            assert len(queue._waiting) == 1
    wait_until(lambda: not locked(tmp_path / "a.db-writers"))  # what waited for it in vain has let go of it


def test_without_a_lock_file_sqlite_decides(tmp_path: Path) -> None:
    (tmp_path / "a.db-writers").mkdir()
    engine = make_engine(f"sqlite:///{tmp_path}/a.db")
    factory = make_session_factory(engine)
    with transaction(factory) as session:
        session.execute(text("CREATE TABLE t (a INTEGER)"))
    with transaction(factory) as session:
        session.execute(text("INSERT INTO t VALUES (1)"))
    engine.dispose()


def test_readers_do_not_queue(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path}/a.db")
    factory, read = make_session_factory(engine), threading.Event()

    def look() -> None:
        with transaction(factory, read_only=True) as session:
            session.execute(text("SELECT 1"))
        read.set()

    with transaction(factory) as session:
        session.execute(text("CREATE TABLE t (a INTEGER)"))
        reader = threading.Thread(target=look)
        reader.start()
        assert read.wait(SECONDS_MAX)
    reader.join(SECONDS_MAX)
    engine.dispose()
