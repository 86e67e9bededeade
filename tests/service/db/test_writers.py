"""SQLite writers take turns, and nobody waits for ever."""

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.db.writers import NestedTransaction, WriterQueue
from tests.together import PATIENCE_SECONDS, at_once, wait_until


def queue_of(folder: Path) -> WriterQueue:
    return WriterQueue(folder / "a.db", seconds_max=PATIENCE_SECONDS)


def locked(path: Path) -> bool:
    """Tell whether anybody has locked the file."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_writers_of_one_process_come_in_their_order(tmp_path):
    queue, came = queue_of(tmp_path), []

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
        thread.join(PATIENCE_SECONDS)
    assert came == list(range(8))


def test_two_queues_of_one_database_exclude_each_other(tmp_path):
    inside = [0, 0]  # now, at most

    def write(queue: WriterQueue) -> None:
        for _ in range(30):
            with queue.turn():
                inside[0] += 1
                inside[1] = max(inside)
                inside[0] -= 1

    queues = [queue_of(tmp_path) for _ in range(2)] * 2
    assert at_once(*(lambda queue=queue: write(queue) for queue in queues)) == [None] * 4
    assert inside == [0, 1]


def test_a_turn_within_a_turn_is_refused_instead_of_waiting_for_itself(tmp_path):
    queue = queue_of(tmp_path)
    with queue.turn():
        with pytest.raises(NestedTransaction), queue.turn():
            pass
        assert len(queue._waiting) == 1
    with queue.turn():
        assert len(queue._waiting) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_turn_ends_with_the_error_that_ends_it(tmp_path, error):
    one, other = (queue_of(tmp_path) for _ in range(2))
    with pytest.raises(error), one.turn():
        raise error
    assert not one._waiting
    with other.turn():  # the lock file is free, too
        assert locked(tmp_path / "a.db-writers")


def test_whoever_is_interrupted_in_the_queue_leaves_it(tmp_path, monkeypatch):
    one, other = (queue_of(tmp_path) for _ in range(2))

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


def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path):
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
    with queue_of(tmp_path).turn():
        assert locked(tmp_path / "a.db-writers")


def test_whoever_waited_too_long_goes_ahead(tmp_path):
    queue = WriterQueue(tmp_path / "a.db", seconds_max=0.05)
    with (tmp_path / "a.db-writers").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with queue.turn():
            assert len(queue._waiting) == 1
    wait_until(lambda: not locked(tmp_path / "a.db-writers"))  # what waited for it in vain has let go of it


@pytest.fixture
def factory(tmp_path) -> Iterator[SessionFactory]:
    """Sessions on a database without a table."""
    engine = make_engine(f"sqlite:///{tmp_path}/a.db")
    yield make_session_factory(engine)
    engine.dispose()


def test_without_a_lock_file_sqlite_decides(tmp_path, factory):
    (tmp_path / "a.db-writers").mkdir()
    for statement in ("CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)"):
        with transaction(factory) as session:
            session.execute(text(statement))


def test_readers_do_not_queue(factory):
    def look() -> None:
        with transaction(factory, read_only=True) as session:
            session.execute(text("SELECT 1"))

    with ThreadPoolExecutor(1) as pool, transaction(factory) as session:
        session.execute(text("CREATE TABLE t (a INTEGER)"))
        pool.submit(look).result(PATIENCE_SECONDS)
