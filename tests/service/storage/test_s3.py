"""The bucket keeps the contract, on a real server (OpenStack Swift); and what it adds: machines, faults, refusals.

On a bucket in memory, a process dies before each of its requests in turn, and lists are behind.
"""

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service.dependencies import Dependencies
from service.errors import Conflict, InvalidInput, NotFound
from service.logs import configure_logging
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import StorageUnavailable, digest_directory
from service.storage.journals import Journal, Journalled, all_journalled, journalled
from tests.service.storage.contract import BIG, KEY, PART, RELEASE, SMALL, StorageContract, content_of, publish
from tests.service.storage.faulty_proxy import HALF, LOST, PASS, SILENT, SLOW_DOWN, faulty
from tests.service.test_dependencies import in_request
from tests.together import status_of

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from service.storage.s3.bucket import PATIENCE, WEB_PATIENCE, Bucket, Listed, Patience
from service.storage.s3.entries import KEYS, PARTS
from service.storage.s3.storage import SMALL_BYTES, S3Storage
from tests.service.storage.memory_bucket import Dead, MemoryBucket

ONE_TRY = Patience(seconds=0, tries=1, connect_seconds=5, read_seconds=20)


@pytest.fixture
def storage(bucket_url: str, tmp_path: Path) -> S3Storage:
    return S3Storage(bucket_url, tmp_path / "var")


class TestS3(StorageContract):
    """The contract, kept by a bucket."""


@pytest.fixture
def divided(bucket_url: str, tmp_path: Path) -> S3Storage:
    return S3Storage(bucket_url, tmp_path / "var", part_bytes=PART, small_bytes=SMALL)


def objects(storage: S3Storage) -> list[str]:
    return [listed.name for listed in storage.bucket.list("")]


def another(storage: S3Storage, folder: Path) -> S3Storage:
    return S3Storage(storage.url, folder)


class _Counted(Bucket):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked = Counter[str]()

    def get(self, name: str) -> bytes | None:
        self.asked["get"] += 1
        return super().get(name)

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        self.asked["list"] += 1
        return super().list(prefix, deep=deep)


def test_every_journal_is_read_by_one_request_and_one_list(bucket_url, tmp_path):
    bucket = _Counted(bucket_url)
    storage = S3Storage(bucket_url, tmp_path / "var", bucket=bucket)
    for number in range(12):
        Journal(storage, f"job_{number}", 1, "acc_a").write(stage="steps", count=1, cost_nano=number)
    bucket.asked.clear()
    assert sorted(shown.cost_nano for shown in all_journalled(storage).values()) == list(range(12))
    assert bucket.asked == {"get": 12, "list": 1}


def test_what_one_machine_publishes_another_reads_and_compares(divided, tmp_path):
    publish(divided, BIG)
    there = another(divided, tmp_path / "there")
    assert content_of(there.open(KEY)) == BIG
    assert content_of(there.open(f"{KEY}/inner")) == {"b.bin": BIG["inner/b.bin"]}
    assert digest_directory(there.open(KEY)) == digest_directory(divided.open(KEY))
    parts = [name for name in objects(divided) if name.startswith(PARTS)]
    assert len(parts) == 5  # of a few bytes, of three and of one
    divided.bucket.put(parts[1], os.urandom(PART))
    with pytest.raises(NotFound, match="damaged"):
        another(divided, tmp_path / "third").open(KEY)
    divided.bucket.delete(parts[1])
    with pytest.raises(NotFound, match="damaged"):
        there.open(KEY)  # although it has a copy


def test_what_was_sent_ahead_is_seen_when_it_is_published_and_leaves_no_more(divided):
    with divided.stage(KEY, mark="3") as staging:
        (staging / "b").write_bytes(BIG["c"])
        divided.send(staging, KEY)
        assert divided.list("releases") == [f"{RELEASE}.3.tmp"]
        sent = objects(divided)
        with pytest.raises(NotFound):
            divided.open(KEY)
        divided.publish(staging, KEY)
        assert not staging.exists()
    assert divided.list("releases") == [RELEASE]
    assert {name for name in objects(divided) if name.startswith(PARTS)} <= set(sent)
    divided.remove(KEY)
    assert objects(divided) == []


def test_a_file_that_is_replaced_leaves_nothing_of_the_one_before(divided):
    for content in (BIG["c"], BIG["inner/b.bin"], b"1"):
        divided.write("work/job_a/checkpoint", content)
        assert divided.open("work/job_a", "checkpoint").read_bytes() == content
    assert objects(divided) == [f"{KEYS}work/job_a/checkpoint"]


def test_faults_on_the_way_change_nothing_but_the_time(bucket_url, s3_url, tmp_path, monkeypatch):
    with faulty(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        bucket = Bucket(bucket_url, replace(PATIENCE, read_seconds=1.0))
        storage = S3Storage(bucket_url, tmp_path / "var", part_bytes=PART, small_bytes=SMALL, bucket=bucket)
        faults = (SLOW_DOWN, PASS, LOST, PASS, HALF, PASS)  # botocore's pauses grow with faults in a row
        proxy.faults.extend((LOST, SLOW_DOWN, PASS, SILENT, *faults))
        publish(storage, BIG)
        proxy.faults.extend(faults)
        assert content_of(another(storage, tmp_path / "there").open(KEY)) == BIG
        proxy.faults.extend(faults)
        journal = Journal(storage, "job_a", 1, "acc_a")
        for _ in range(6):
            journal.write(stage="votes", count=1, cost_nano=10)
        assert journalled(storage, "job_a") == Journalled(60, Counter(votes=6), "acc_a")
        proxy.faults.extend(faults)
        storage.move(KEY, "trash/x")
        proxy.faults.extend(faults)
        storage.remove("trash/x")
        assert {SLOW_DOWN, LOST, HALF, SILENT} <= set(proxy.met)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_url)
    storage = another(storage, tmp_path / "third")
    assert storage.list("") == ["journals"]
    assert not [name for name in objects(storage) if name.startswith(PARTS)]


def test_patience_ends_and_a_line_that_was_given_up_cannot_undo_a_later_one(bucket_url, s3_url, tmp_path, monkeypatch):
    with faulty(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        storage = S3Storage(bucket_url, tmp_path / "var", bucket=Bucket(bucket_url, ONE_TRY))
        journal = Journal(storage, "job_a", 1, "acc_a")
        journal.write(stage="votes", count=1, cost_nano=10)
        proxy.faults.append(SLOW_DOWN)
        with pytest.raises(StorageUnavailable, match="Nothing was lost") as unavailable:
            journal.write(stage="votes", count=1, cost_nano=10)
        assert unavailable.value.numbers == {"why": "away"}
        before = set(objects(storage))
        journal.write(stage="votes", count=1, cost_nano=10)
        assert len(set(objects(storage)) - before) == 1  # a segment of its own
        assert journalled(storage, "job_a").cost_nano == 20


def test_tries_end_in_time_also_those_of_botocore(bucket_url, s3_url, monkeypatch):
    with faulty(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.faults.extend([SLOW_DOWN] * 9)
        with pytest.raises(StorageUnavailable, match="does not answer"):
            Bucket(bucket_url, replace(PATIENCE, seconds=0.0)).get("nothing")
        assert proxy.met == [SLOW_DOWN]
        monkeypatch.setattr("service.storage.s3.bucket.WEB_PATIENCE", replace(WEB_PATIENCE, seconds=0.0))
        with pytest.raises(StorageUnavailable, match="does not answer"):
            in_request(Dependencies(), lambda: Bucket(bucket_url).get("nothing"))
        assert proxy.met == [SLOW_DOWN] * 2


def test_a_machine_that_fails_between_sending_and_publishing_leaves_what_is_listed(storage, warm):
    assert status_of(warm, _send_and_die, storage) == -signal.SIGKILL
    (name,) = storage.list("releases")
    assert name == f"{RELEASE}.7.tmp"
    assert 0 <= storage.idle_seconds(f"releases/{name}") < 600
    with pytest.raises(NotFound):
        storage.open(KEY)
    storage.remove(f"releases/{name}")
    assert objects(storage) == []


def _send_and_die(storage: S3Storage) -> None:
    with storage.stage(KEY, mark="7") as staging:
        (staging / "model").write_bytes(os.urandom(2 * SMALL_BYTES))
        storage.send(staging, KEY)
        os.kill(os.getpid(), signal.SIGKILL)


class _Hasty(Patience):
    request_seconds, claim_seconds = 0.5, 2.5


def test_a_claim_that_a_crash_has_left_is_waited_for_and_removed(bucket_url, tmp_path):
    bucket = Bucket(bucket_url, _Hasty(60, 15, 5, 20))
    bucket.put(f"claims/{KEY}/0", b"")
    storage = S3Storage(bucket_url, tmp_path / "var", bucket=bucket)
    publish(storage)
    assert not [name for name in objects(storage) if name.startswith("claims/")]


def _refusal(url: str, folder: Path) -> StorageUnavailable:
    with pytest.raises(StorageUnavailable) as refused:
        S3Storage(url, folder, bucket=Bucket(url, ONE_TRY)).write("mark", b"1")
    return refused.value


@pytest.mark.parametrize(
    ("changed", "why", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "WrongSecret123"}, "key", "does not match"),
        ({"AWS_ACCESS_KEY_ID": "test:nobody"}, "key", "not"),
        ({"AWS_ACCESS_KEY_ID": "test:reader", "AWS_SECRET_ACCESS_KEY": "reading"}, "rights", "s3:PutObject"),
        ({"AWS_ENDPOINT_URL": "https://{at}"}, "tls", "AWS_CA_BUNDLE"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "away", "does not answer"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials", "AWS_ACCESS_KEY_ID"),
    ],
    ids=["secret", "key", "rights", "tls", "away", "none"],
)
def test_a_refusal_says_what_to_do_and_no_secret(bucket_url, s3_url, tmp_path, monkeypatch, stream, changed, why, says):
    configure_logging("DEBUG", stream)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name, value in changed.items():
        monkeypatch.setenv(name, value.format(at=s3_url.removeprefix("http://")))
    refusal = _refusal(bucket_url, tmp_path / "var")
    assert refusal.numbers["why"] == why
    assert says in refusal.message
    told = refusal.message + repr(refusal) + stream.getvalue()
    for secret in ("testing", "WrongSecret123", "reading", "test:reader", "test:tester", "test:nobody", "Signature="):
        assert secret not in told
    logging.getLogger().setLevel(logging.INFO)


def test_a_wrong_bucket_and_a_wrong_clock_are_told(bucket_url, tmp_path, monkeypatch):
    missing = _refusal("s3://missing-bucket/x", tmp_path / "var")
    assert (missing.numbers["why"], "missing-bucket does not exist" in missing.message) == ("bucket", True)
    later = datetime.now(UTC) + timedelta(days=1)
    for module in ("botocore.auth", "botocore.compat"):
        monkeypatch.setattr(f"{module}.get_current_datetime", lambda *_, **__: later, raising=False)
    skewed = _refusal(bucket_url, tmp_path / "var")
    assert (skewed.numbers["why"], "Set the clock" in skewed.message) == ("clock", True)


@pytest.mark.parametrize("url", ["s3://", "s3://UPPER", "s3://ok/a//b", "s3://ok/../b", "s3://user:secret@host/x"])
def test_an_address_that_is_none_is_refused(url, tmp_path):
    with pytest.raises(InvalidInput, match="OBSCURA_STORAGE") as refused:
        storage_of(Settings(data_dir=tmp_path, storage=url))
    assert "secret" not in refused.value.message


# --- a process that dies, and lists that are behind -------------------------------------------------------------------

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


def unclaimed(bucket: MemoryBucket) -> list[str]:
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
            assert unclaimed(bucket) == []
        publish(there, BIG)  # the next attempt, to which another content would be as good
        assert content_of(there.open(KEY)) == BIG
        there.remove(KEY)
        assert unclaimed(bucket) == []


def test_a_file_that_is_replaced_at_any_moment_is_the_old_one_or_the_new(over):
    old, new, key = BIG["c"], BIG["inner/b.bin"], "work/job_a/checkpoint"
    replaced = moments(over, lambda here: here.write(key, new), least=5, prepare=lambda here: here.write(key, old))
    for bucket, there in replaced:
        assert there.open("work/job_a", "checkpoint").read_bytes() in (old, new)
        there.move("work/job_a", "trash/x")
        assert there.open("trash/x", "checkpoint").read_bytes() in (old, new)
        there.remove("trash/x")
        assert unclaimed(bucket) == []


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
        assert unclaimed(bucket) == []


def test_a_removal_of_any_moment_can_be_finished(over):
    for bucket, there in moments(over, lambda here: here.remove(KEY), least=7, prepare=lambda here: publish(here, BIG)):
        if there.holds(KEY):
            assert content_of(there.open(KEY)) == BIG
        for name in there.list("releases"):
            there.remove(f"releases/{name}")
        assert unclaimed(bucket) == []


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


def test_a_name_that_is_listed_without_its_object_leaves_the_list_when_it_is_moved(over):
    bucket = MemoryBucket()
    bucket._names.append({f"{KEYS}work/job_a/checkpoint"})  # as Swift does when its object server dies while deleting
    assert over(bucket).list("work") == ["job_a"]
    with pytest.raises(NotFound):
        over(bucket).move("work/job_a", "trash/x")
    assert unclaimed(bucket) == []
