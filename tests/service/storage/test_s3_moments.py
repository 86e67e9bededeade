"""A process that works on a bucket dies before each of its requests in turn; and lists that are behind."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.errors import Conflict, NotFound
from tests.service.storage.contract import BIG, KEY, PART, RELEASE, SMALL, content_of, publish

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from service.storage.s3.entries import PARTS
from service.storage.s3.storage import S3Storage
from tests.service.storage.memory_bucket import Dead, MemoryBucket

MOMENTS_MAX = 100


@pytest.fixture
def over(tmp_path: Path) -> Callable[[MemoryBucket], S3Storage]:
    sizes = {"part_bytes": PART, "small_bytes": SMALL}
    return lambda bucket: S3Storage("s3://bucket", tmp_path / os.urandom(4).hex(), bucket=bucket, **sizes)


def moments(
    over: Callable[[MemoryBucket], S3Storage],
    act: Callable[[S3Storage], None],
    *,
    least: int,
    prepare: Callable[[S3Storage], None] = lambda _: None,
) -> Iterator[tuple[MemoryBucket, S3Storage]]:
    """Die before each request of an act in turn; yield the bucket then, and the storage of another machine over it."""
    for requests in range(MOMENTS_MAX):
        bucket = MemoryBucket()
        here = over(bucket)
        prepare(here)
        bucket.left = requests
        try:
            act(here)
        except Dead:
            bucket.left = None
            yield bucket, over(bucket)
        else:
            break
    assert least < requests < MOMENTS_MAX - 1


def objects(bucket: MemoryBucket) -> list[str]:
    return [listed.name for listed in bucket.list("") if not listed.name.startswith("claims/")]


def test_what_is_published_at_any_moment_is_there_whole_or_not_at_all(over):
    for bucket, there in moments(over, lambda here: publish(here, BIG), least=10):
        if there.holds(KEY):
            assert content_of(there.open(KEY)) == BIG
        for name in there.list("releases"):
            if name.endswith(".tmp"):
                there.remove(f"releases/{name}")
        if there.holds(KEY):
            assert content_of(over(bucket).open(KEY)) == BIG
            assert there.list("releases") == [RELEASE]
        else:
            assert objects(bucket) == []
        publish(there, BIG)  # the next attempt, to which another content would be as good
        assert content_of(there.open(KEY)) == BIG
        there.remove(KEY)
        assert objects(bucket) == []


def test_a_file_that_is_replaced_at_any_moment_is_the_old_one_or_the_new(over):
    old, new, key = BIG["c"], BIG["inner/b.bin"], "work/job_a/checkpoint"
    replaced = moments(over, lambda here: here.write(key, new), least=5, prepare=lambda here: here.write(key, old))
    for bucket, there in replaced:
        assert there.open("work/job_a", "checkpoint").read_bytes() in (old, new)
        there.move("work/job_a", "trash/x")
        assert there.open("trash/x", "checkpoint").read_bytes() in (old, new)
        there.remove("trash/x")
        assert objects(bucket) == []


def test_what_is_moved_at_any_moment_is_under_one_key_or_both_and_can_be_moved_again(over):
    def prepare(here: S3Storage) -> None:
        publish(here, BIG, "work/job_a/trained")
        here.write("work/job_a/checkpoint", BIG["c"])

    for bucket, there in moments(over, lambda here: here.move("work/job_a", "trash/x"), least=5, prepare=prepare):
        kept = {f"{key}/{name}" for key in ("work/job_a", "trash/x") for name in there.list(key)}
        for name in ("trained", "checkpoint"):
            assert kept & {f"work/job_a/{name}", f"trash/x/{name}"}
        if there.list("work"):
            there.move("work/job_a", "trash/y")
        for key in there.list("trash"):
            there.remove(f"trash/{key}")
        assert objects(bucket) == []


def test_a_removal_of_any_moment_can_be_finished(over):
    for bucket, there in moments(over, lambda here: here.remove(KEY), least=7, prepare=lambda here: publish(here, BIG)):
        if there.holds(KEY):
            assert content_of(there.open(KEY)) == BIG
        for name in there.list("releases"):
            there.remove(f"releases/{name}")
        assert objects(bucket) == []


def test_lists_that_are_behind_mislead_nobody_who_asks_for_a_key(over):
    bucket = MemoryBucket(behind=3)
    here, there = over(bucket), over(bucket)
    publish(here, BIG)
    assert there.holds(KEY)
    assert content_of(there.open(KEY)) == BIG
    with pytest.raises(Conflict):
        publish(there, {"a": b"another"})
    there.move(KEY, "trash/x")
    assert not here.holds(KEY)
    with pytest.raises(NotFound):
        here.move(KEY, "trash/y")  # although it is listed, perhaps
    assert content_of(here.open("trash/x")) == BIG
    here.remove("trash/x")
    assert [name for name in bucket._objects if name.startswith(PARTS)] == []
