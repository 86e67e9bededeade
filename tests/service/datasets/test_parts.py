"""Uploads in parts: what is stored and by whom it can be read, what a repeated request finds, and what is removed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from obscura.wire.schemas import DatasetRequest
from obscura.wire.words import DatasetState
from service.datasets import parts, receiving, states
from service.datasets.parts import IDLE_SECONDS_MAX, PART_BYTES_MAX, PER_PROJECT_MAX, Parts, UploadLost
from service.datasets.reading import Sent, UploadFailed, UploadRefused
from service.db.dataset_tables import KEY_MISSING, Dataset
from service.db.session import transaction
from service.errors import Conflict, NotFound, TooLarge
from service.identity.auth import create_key
from service.sealing import SealBroken
from tests.service.datasets.world import npz, pictures

pytestmark = pytest.mark.usefixtures("read_here")

BODY = npz(pictures(10), np.zeros(10, np.int64))
PROJECT = "prj_default"


class Uploader:
    """A key of a project, which uploads by one clock."""

    def __init__(self, settings: Any, key_id: str = "key_a") -> None:
        self.settings, self.key_id, self.now = settings, key_id, datetime.now(UTC)

    def begin(self) -> str:
        return parts.begin(self.settings, self.key_id, PROJECT)

    def opened(self, secret: str) -> Any:
        return parts.opened(self.settings, secret, self.key_id, PROJECT)

    def send(self, secret: str, offset: int, *blocks: bytes, bytes_max: int = 10**9) -> int:
        with self.opened(secret) as upload:
            return upload.append(offset, iter(blocks), bytes_max=bytes_max)


@pytest.fixture
def uploader(settings) -> Uploader:
    return Uploader(settings)


def files(settings: Any) -> list[Path]:
    return [path for path in settings.quarantine_path.rglob("*") if path.is_file()]


def test_parts_are_read_as_one_body_in_their_order(uploader):
    secret = uploader.begin()
    sent = [bytes([number]) * size for number, size in enumerate((PART_BYTES_MAX, 1, 70_000))]
    at = 0
    for part in sent:
        at = uploader.send(secret, at, part[: len(part) // 2], part[len(part) // 2 :])
    assert uploader.send(secret, 0) == at == PART_BYTES_MAX + 70_001, "an empty part asks how much has arrived"
    with uploader.opened(secret) as upload:
        assert b"".join(upload.blocks()) == b"".join(sent)


def test_a_part_that_breaks_off_or_does_not_follow_is_not_stored(settings, uploader):
    secret = uploader.begin()
    assert uploader.send(secret, 0, b"first") == 5

    def breaks_off() -> Iterator[bytes]:
        yield b"sec"
        raise ConnectionError

    with pytest.raises(ConnectionError), uploader.opened(secret) as upload:
        upload.append(5, breaks_off(), bytes_max=100)
    for offset in (0, 4, 6):
        with pytest.raises(Conflict):
            uploader.send(secret, offset, b"second")
    assert uploader.send(secret, 5, b"second") == 11
    with pytest.raises(TooLarge):
        uploader.send(secret, 11, bytes(PART_BYTES_MAX), b"x")
    with pytest.raises(TooLarge):
        uploader.send(secret, 11, b"third", bytes_max=15)
    with uploader.opened(secret) as upload:
        assert b"".join(upload.blocks()) == b"firstsecond"


def test_only_the_uploader_can_read_parts_and_nothing_of_them_is_in_a_file(settings, uploader):
    secret = uploader.begin()
    uploader.send(secret, 0, b"a canary in the parts" * 9000)
    stored = files(settings)
    assert stored
    assert not any(word in path.read_bytes() for path in stored for word in (b"canary", secret.encode(), b"key_a"))
    for other in (Uploader(settings, "key_b").opened(secret), uploader.opened("0" * 64)):
        with pytest.raises(UploadLost), other:
            pass
    with pytest.raises(SealBroken):
        list(Parts(stored[0].parent, bytes(32)).blocks())


def test_a_changed_part_is_noticed(settings, uploader):
    secret = uploader.begin()
    uploader.send(secret, 0, b"first")
    uploader.send(secret, 5, b"other")
    first, second = sorted(files(settings), key=lambda path: int(path.name.partition("-")[0]))
    second.write_bytes(first.read_bytes())
    with pytest.raises(SealBroken), uploader.opened(secret) as upload:
        list(upload.blocks())


def test_one_request_at_a_time_uses_an_upload(uploader):
    secret = uploader.begin()
    with uploader.opened(secret), pytest.raises(Conflict, match="in progress"):
        uploader.send(secret, 0, b"x")
    assert uploader.send(secret, 0, b"x") == 1


def test_the_uploads_of_a_project_are_bounded_and_the_idle_ones_go_first(settings, uploader):
    others = Uploader(settings, "key_b")
    secrets = [(uploader if number % 2 else others).begin() for number in range(PER_PROJECT_MAX)]
    assert others.send(secrets[0], 0, b"x") == 1
    uploader.begin()
    assert len(list(settings.quarantine_path.iterdir())) == PER_PROJECT_MAX
    with pytest.raises(UploadLost):
        uploader.send(secrets[1], 0, b"x")
    assert others.send(secrets[2], 0, b"x") == 1


class Declared:
    """Uploads of one body that declare a public dataset, by a valid key."""

    def __init__(self, settings: Any, world: Any, factory: Any) -> None:
        self.factory, self.context, self.settings = factory, world.context, settings
        with transaction(factory) as session:
            self.key_id = create_key(session, name="k", scopes=["data"], now=datetime.now(UTC))[0].id
        self.uploader = Uploader(settings, self.key_id)
        self.secret = self.uploader.begin()

    def request(self, **changes: Any) -> DatasetRequest:
        facts: dict[str, Any] = {"name": "faces", "classes": ["a", "b"], "height": 4, "width": 4, "channels": 1}
        return DatasetRequest(**facts | {"visibility": "public", "records_declared": 500} | changes)

    def finish(self, declared: DatasetRequest | str | None = None) -> Dataset:
        with self.uploader.opened(self.secret) as upload:
            sent = Sent(upload.blocks(), "npz")
            return receiving.receive_parts(self.context, upload, sent, declared or self.request(), by=self.key_id)

    @property
    def kept(self) -> list[Dataset]:
        with transaction(self.factory, read_only=True) as session:
            return [row for row in session.query(Dataset).all() if row.erased_at is None]


@pytest.fixture
def declared(settings, world, factory) -> Declared:
    return Declared(settings, world, factory)


def test_a_repeated_end_of_an_upload_gets_the_same_dataset(settings, declared):
    declared.uploader.send(declared.secret, 0, BODY)
    first = declared.finish()
    assert (first.state, declared.finish().id) == (DatasetState.READY, first.id)
    assert [row.id for row in declared.kept] == [first.id]
    assert [path.name for path in files(settings)] == ["dataset"], "no image is left"


def test_a_repeated_end_never_deletes_a_received_dataset(declared):
    declared.uploader.send(declared.secret, 0, BODY)
    received = declared.finish()
    with transaction(declared.factory) as session:  # its key is missing, because a disk is not mounted
        states.move(session, received.id, DatasetState.FAILED, failure_code=KEY_MISSING)
    assert declared.finish().state is DatasetState.FAILED
    assert [(row.id, row.state) for row in declared.kept] == [(received.id, DatasetState.FAILED)]


def test_a_rejected_upload_leaves_neither_parts_nor_declaration(settings, declared):
    declared.uploader.send(declared.secret, 0, b"nothing that can be read")
    with pytest.raises(UploadRefused):
        declared.finish()
    assert (declared.kept, files(settings)) == ([], [])
    with pytest.raises(UploadLost):
        declared.finish()


def test_a_wrong_declaration_keeps_the_parts_for_its_correction(declared):
    declared.uploader.send(declared.secret, 0, BODY)
    with pytest.raises(NotFound):
        declared.finish(declared.request(visibility="private", account_id="acc_" + "a" * 20))
    assert declared.kept == []
    assert declared.finish().state is DatasetState.READY


def test_a_failure_of_the_service_keeps_the_parts(settings, declared, world):
    dataset_id, in_the_way = world.declare(), settings.quarantine_path
    declared.uploader.send(declared.secret, 0, BODY)
    in_the_way /= f"{dataset_id}.1"
    in_the_way.write_bytes(b"")
    with pytest.raises(UploadFailed):
        declared.finish(dataset_id)
    assert declared.finish(dataset_id).state is DatasetState.READY


def kill(declared: Declared) -> str:
    """Leave what a process leaves that is killed while it reads; return the id of the dataset that it has declared."""
    now, context = datetime.now(UTC), declared.context
    with declared.uploader.opened(declared.secret) as upload, transaction(declared.factory) as session:
        dataset_id = states.declare(session, context.settings, declared.request(), now=now).id
        upload.note(dataset_id)
    with transaction(declared.factory) as session:
        states.begin_upload(session, dataset_id, now=now, lease_seconds=context.settings.lease_seconds)
    return dataset_id


def test_after_a_crash_the_same_request_goes_on_once_the_lease_has_expired(settings, declared, factory):
    declared.uploader.send(declared.secret, 0, BODY)
    crashed = kill(declared)
    with pytest.raises(Conflict):
        declared.finish()
    receiving.clean_up(settings, factory, now=datetime.now(UTC) + timedelta(seconds=settings.lease_seconds + 1))
    ready = declared.finish()
    assert ([row.id for row in declared.kept], ready.state) == ([ready.id], DatasetState.READY)
    assert ready.id != crashed


def test_what_nobody_goes_on_with_is_removed_with_its_declaration(settings, declared, factory):
    declared.uploader.send(declared.secret, 0, BODY)
    kill(declared)
    soon = declared.uploader.now + timedelta(seconds=IDLE_SECONDS_MAX - 60)
    receiving.clean_up(settings, factory, now=soon)
    assert [row.state for row in declared.kept] == [DatasetState.DECLARED]
    later = soon + timedelta(seconds=120)
    with declared.uploader.opened(declared.secret):
        receiving.clean_up(settings, factory, now=later)
        assert files(settings), "nothing in use is removed"
    receiving.clean_up(settings, factory, now=later)
    assert (declared.kept, files(settings)) == ([], [])


def test_a_declared_dataset_receives_parts_and_stays_declared_after_a_rejection(settings, declared, world, factory):
    dataset_id = world.declare()
    declared.uploader.send(declared.secret, 0, b"nothing that can be read")
    with pytest.raises(UploadRefused):
        declared.finish(dataset_id)
    receiving.clean_up(settings, factory, now=declared.uploader.now + timedelta(seconds=IDLE_SECONDS_MAX + 1))
    assert world.state(dataset_id) is DatasetState.DECLARED
    declared.secret = declared.uploader.begin()
    declared.uploader.send(declared.secret, 0, BODY)
    assert declared.finish(dataset_id).id == dataset_id == declared.finish(dataset_id).id
    assert world.state(dataset_id) is DatasetState.READY
