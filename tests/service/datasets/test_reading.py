"""Receiving a body: limits hold, the reader is a process of its own, also if taken over, and faults leave nothing.

A new format is a module that reads it and a line in the registry; nothing else needs to change.
"""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from obscura.wire import formats as wire
from obscura.wire.uploads import Fault
from service.api.problems import STATUSES
from service.datasets import reading
from service.datasets.reading import UploadFailed, UploadRefused, UploadsStopped, sweep
from service.datasets.vault import Vault, fingerprint_key_path, make_fingerprint_key
from service.db.dataset_tables import Dataset
from service.errors import InvalidInput, NotFound, ObscuraError, TooLarge
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME, create_array
from service.ingest.faults import explain
from service.ingest.request import FORMATS, IngestRequest, UploadFormat, titles
from service.sealing import new_key
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import key_of
from tests.pictures import archive, picture
from tests.service.datasets.world import DATASET, begun, receive, stored_subjects
from tests.service.datasets.world import npz as pack
from tests.service.ingest.conftest import npy, request_of

FACTS = begun()
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CANARY = "CANARY7f3a"


def npz(count: int = 3, labels: list[int] | None = None) -> bytes:
    return pack(np.arange(count * 24, dtype=np.uint8).reshape(count, 4, 6), labels or [0] * count)


def in_chunks(data: bytes, size: int = 100) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def files_of(settings: Settings) -> list[str]:
    """All files below the data folder but the secret of the installation."""
    found = [path.relative_to(settings.data_dir).as_posix() for path in settings.data_dir.rglob("*") if path.is_file()]
    return [name for name in found if name != "keys/fingerprints.key"]


def assert_refused(
    settings: Settings, fault: Fault, body: Iterable[bytes], announced: int | None = None, **changes: Any
) -> UploadRefused:
    with pytest.raises(UploadRefused) as refused:
        receive(settings, changes.get("facts", FACTS), body, announced, changes.get("format", "npz"))
    assert refused.value.numbers == {"fault": fault}
    assert files_of(settings) == []
    return refused.value


def test_content_is_stored_and_described_without_its_count(settings):
    receive(settings, FACTS, in_chunks(npz(2)))  # as left by a crash of an earlier attempt
    data = npz(labels=[0, 1, 1])
    received = receive(settings, FACTS, in_chunks(data), len(data))
    assert (received.dataset, received.sent.format, received.bytes) == (FACTS, "npz", len(data))
    assert len(received.sha256) == 64
    images, labels = Vault.of(settings).open_dataset(DATASET)
    assert images.shape == (3, 4, 6)
    assert labels.tolist() == [0, 1, 1]
    assert not images.flags.writeable
    assert sorted(files_of(settings)) == [
        f"datasets/{DATASET}/images.npy.sealed",
        f"datasets/{DATASET}/labels.npy.sealed",
        f"keys/datasets/{DATASET}.key",
    ]
    assert 3 not in [getattr(received, name) for name in received.__slots__]


def test_a_refused_upload_changes_nothing_and_may_be_tried_again(settings):
    assert_refused(settings, Fault.LABEL_RANGE, in_chunks(npz(labels=[0, 1, 2])))
    assert list((settings.data_dir / "datasets").iterdir()) == []
    receive(settings, FACTS, in_chunks(npz()))


def test_a_service_without_its_key_of_fingerprints_takes_nothing_and_says_what_mends_that(settings):
    fingerprint_key_path(settings).unlink()
    with pytest.raises(UploadsStopped, match=r"`obscura ledger verify`.*sent again") as stopped:
        receive(settings, FACTS, in_chunks(npz()))
    assert STATUSES[stopped.value.code] == 503
    make_fingerprint_key(settings)
    receive(settings, FACTS, in_chunks(npz()))


@pytest.mark.parametrize("announced", [1, -1, 1000])
def test_a_body_of_another_length_than_announced_is_refused(settings, announced):
    assert_refused(settings, Fault.INCOMPLETE, in_chunks(npz()), len(npz()) + announced)


def test_the_byte_limit_holds_whatever_is_announced(settings):
    settings, taken = settings.model_copy(update={"upload_bytes_max": 1000}), []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(100)

    for announced in (None, 10**9):
        with pytest.raises(TooLarge) as refused:
            receive(settings, FACTS, endless(), announced)
        assert refused.value.numbers["limit_bytes"] == 1000
    assert len(taken) == 11  # the second body, announced too large, was not read at all
    assert_refused(settings, Fault.INCOMPLETE, endless(), 500)  # announced small, sent endless


def test_an_empty_body_is_refused(settings):
    for chunks in ([], [b""]):
        assert_refused(settings, Fault.EMPTY, chunks, format="zip")


def test_a_connection_that_breaks_leaves_nothing_and_keeps_its_own_error(settings):
    def broken() -> Iterator[bytes]:
        yield npz()[:50]
        raise ConnectionResetError("the client went away")

    with pytest.raises(ConnectionResetError):
        receive(settings, FACTS, broken())
    assert files_of(settings) == []


@pytest.mark.parametrize("identifier", ["../../etc", "ds_" + "A" * 20, "acc_" + "a" * 20, f"{DATASET}/..", ""])
def test_foreign_identifiers_are_refused(settings, identifier):
    with pytest.raises(InvalidInput, match="identifier"):
        receive(settings, begun(id=identifier), [b"x"])
    with pytest.raises(InvalidInput):
        Vault.of(settings).open_dataset(identifier)


def test_a_reader_that_exceeds_its_memory_is_stopped(settings):
    settings = settings.model_copy(update={"ingest_memory_bytes_max": 32 * 2**20})
    data = archive(*((f"cat/{n}", b"") for n in range(30_000)))
    assert_refused(settings, Fault.TOO_COSTLY, in_chunks(data, 2**20), format="zip")


def test_a_reader_that_takes_too_long_is_stopped(settings):
    settings = settings.model_copy(update={"ingest_seconds_max": 1})
    facts = begun(height=1000, width=1000, records_declared=2000)
    large = picture(size=(1000, 1000))
    data = archive(*((f"cat/{number}.png", large) for number in range(2000)))
    assert_refused(settings, Fault.TOO_COSTLY, in_chunks(data, 2**20), facts=facts, format="zip")


def test_a_disk_that_fails_is_reported_without_its_paths(settings):
    (settings.data_dir / "quarantine").write_text("not a folder")
    with pytest.raises(UploadFailed) as failed:
        receive(settings, FACTS, in_chunks(npz()))
    assert failed.value.numbers == {"fault": Fault.STORAGE}
    assert str(settings.data_dir) not in failed.value.message


def test_a_sweep_and_a_deletion_at_once_do_not_get_into_each_others_way(settings):
    """Sweeps run all the time, in every process."""
    over = threading.Event()

    def sweep_on_and_on() -> None:
        while not over.is_set():
            sweep(settings, frozenset)

    folder = settings.data_dir / "datasets" / DATASET
    with ThreadPoolExecutor(2) as pool:
        sweeping = [pool.submit(sweep_on_and_on) for _ in range(2)]
        try:
            for _ in range(30):
                folder.mkdir(parents=True)
                for number in range(30):
                    (folder / str(number)).write_bytes(b"x")
                storage_of(settings).remove(key_of(DATASET))
        finally:
            over.set()
        for done in sweeping:
            done.result()
    assert list(settings.data_dir.glob("datasets/*")) == []


CANARY_UPLOADS = {
    "class name": archive((f"{CANARY}/1.png", picture())),
    "file name": archive(("cat/1.png", picture()), (f"cat/{CANARY}.png", b"no picture")),
    "path": archive((f"../{CANARY}.png", picture())),
    "duplicate": archive((f"cat/{CANARY}.png", picture()), (f"cat/{CANARY.lower()}.png", picture())),
    "size": archive((f"cat/{CANARY}.png", picture(size=(7, 7)))),
    "loose": archive((f"{CANARY}.png", picture())),
    "broken": archive(("cat/1.png", picture()[:40] + CANARY.encode())),
    "too many": archive(*((f"cat/{CANARY}{number}.png", picture()) for number in range(101))),
}


@pytest.mark.parametrize("data", CANARY_UPLOADS.values(), ids=CANARY_UPLOADS)
def test_no_error_says_what_was_in_the_upload(settings, data, capfd):
    with pytest.raises(ObscuraError) as refused:
        receive(settings, FACTS, in_chunks(data), None, "zip")
    error = refused.value
    told = " ".join([error.message, repr(error), str(error.numbers), *map(str, capfd.readouterr())])
    assert CANARY.lower() not in told.lower()
    assert "101" not in told
    assert error.__cause__ is None
    assert all(CANARY.lower() not in name.lower() for name in files_of(settings))


def test_no_name_or_metadata_of_an_accepted_upload_is_stored(settings):
    exif = Image.Exif()
    exif[0x010E] = CANARY
    data = archive((f"cat/{CANARY}.png", picture(exif=exif) + CANARY.encode()))
    receive(settings, FACTS, in_chunks(data), None, "zip")
    for name in files_of(settings):
        assert CANARY not in name
        assert CANARY.encode() not in (settings.data_dir / name).read_bytes()


def test_every_fault_has_a_message_of_public_facts(tmp_path):
    request = request_of(classes=(CANARY, "dog"), source=tmp_path, target=tmp_path)
    messages = {fault: explain(fault, request) for fault in Fault}
    assert len(set(messages.values())) == len(Fault)
    assert all(len(text) > 30 and str(tmp_path) not in text for text in messages.values())
    assert "6 x 4 pixels" in messages[Fault.IMAGE_SIZE]


def test_the_reader_sees_no_secret_of_the_service(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("OBSCURA_DATABASE_URL", "sqlite:////nowhere/secret.db")
    monkeypatch.setenv("PYTHONSTARTUP", "/nowhere")
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(f"import os; open({str(spy / 'seen')!r}, 'w').write(repr(dict(os.environ)))")
    monkeypatch.setenv("PYTHONPATH", str(spy))
    environments, run = [], subprocess.run

    def watched(*arguments, **options):
        environments.append(options["env"])
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    receive(settings, FACTS, in_chunks(npz()))
    assert not (spy / "seen").exists(), "the reader ran with the service's own environment"
    names = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LC_ALL"}
    assert [set(environment) for environment in environments] == [names]
    assert "OBSCURA_DATABASE_URL" in os.environ


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_read_as_it_is_distributed(settings):
    names = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    data = archive(*((name, (FASHION_MNIST / name).read_bytes()) for name in names))
    facts = begun(classes=list("abcdefghij"), height=28, width=28, records_declared=60_000)
    receive(settings, facts, in_chunks(data, 2**16), len(data), "idx")
    images, labels = Vault.of(settings).open_dataset(DATASET)
    assert images.shape == (60_000, 28, 28)
    assert np.bincount(labels).tolist() == [6_000] * 10


# --- subjects -------------------------------------------------------------------------------------------------------

OF_SUBJECTS = begun(subjects_declared=3)
NAMES = [f"{CANARY}-{name}" for name in ("anna", "bert", "anna", "carl", "bert")]


def of(names: list[str] | None) -> bytes:
    subjects = {} if names is None else {"subjects": np.array(names)}
    return pack(np.zeros((5, 4, 6), np.uint8), [0, 1, 1, 0, 1], **subjects)


def test_subjects_are_stored_beside_images_and_labels_as_numbers(settings):
    receive(settings, OF_SUBJECTS, [of(NAMES)])
    numbers = stored_subjects(settings, DATASET)
    assert numbers.dtype == np.int64
    owned = [np.flatnonzero(numbers == number).tolist() for number in dict.fromkeys(numbers.tolist())]
    assert owned == [[0, 2], [1, 4], [3]]
    assert len(Vault.of(settings).open_dataset(DATASET)[1]) == 5
    assert not [path for path in settings.data_dir.rglob("*") if path.is_file() and CANARY in path.name]


@pytest.mark.parametrize(
    ("names", "fault"), [(None, Fault.SUBJECTS_ABSENT), ([*NAMES[:4], "dora"], Fault.SUBJECTS_TOO_MANY)]
)
def test_refusals_name_the_rule_and_no_subject(settings, capfd, names, fault):
    refused = assert_refused(settings, fault, [of(names)], facts=OF_SUBJECTS)
    told = " ".join([refused.message, repr(refused), str(refused.numbers), *capfd.readouterr()])
    assert CANARY not in told
    assert "dora" not in told
    with pytest.raises(NotFound):
        stored_subjects(settings, DATASET)


# --- a reader that was taken over -------------------------------------------------------------------------------------


Arrays = dict[str, npt.NDArray[Any]]
IMAGES = np.arange(5 * 4 * 6, dtype=np.uint8).reshape(5, 4, 6)
LABELS = np.array([0, 1, 1, 0, 1])
SUBJECTS = np.array([7, 7, 8, 9, 9])
GOOD: Arrays = {IMAGES_NAME: IMAGES, LABELS_NAME: LABELS, SUBJECTS_NAME: SUBJECTS}


def store(request: IngestRequest, arrays: Arrays) -> None:
    for name, array in arrays.items():
        with create_array(request, name, array.shape, array.dtype) as stored:
            stored.append(array)


def test_honest_arrays_pass(settings, monkeypatch):
    """Control of everything below."""
    monkeypatch.setattr(reading, "_run_ingest", lambda request: store(request, GOOD))
    receive(settings, OF_SUBJECTS, [b"anything"])
    images, labels = Vault.of(settings).open_dataset(DATASET)
    for seen, stored in ((images, IMAGES), (labels, LABELS), (stored_subjects(settings, DATASET), SUBJECTS)):
        np.testing.assert_array_equal(seen, stored)


BROKEN: dict[str, Arrays] = {
    "images of another size": {IMAGES_NAME: IMAGES[:, :, :5]},
    "images in colour": {IMAGES_NAME: np.repeat(IMAGES[..., None], 3, axis=3)},
    "fewer images": {IMAGES_NAME: IMAGES[:4]},
    "more images": {IMAGES_NAME: np.concatenate([IMAGES, IMAGES])},
    "images as floats": {IMAGES_NAME: IMAGES.astype(np.float32)},
    "images as signed bytes": {IMAGES_NAME: IMAGES.astype(np.int8)},
    "no records": {IMAGES_NAME: IMAGES[:0], LABELS_NAME: LABELS[:0], SUBJECTS_NAME: SUBJECTS[:0]},
    "more records than declared": {
        IMAGES_NAME: np.zeros((101, 4, 6), np.uint8),
        LABELS_NAME: np.zeros(101, np.int64),
        SUBJECTS_NAME: np.zeros(101, np.int64),
    },
    "a label that was not declared": {LABELS_NAME: np.array([0, 1, 2, 0, 1])},
    "a negative label": {LABELS_NAME: np.array([0, 1, -1, 0, 1])},
    "labels of another type": {LABELS_NAME: LABELS.astype(np.int32)},
    "labels in two columns": {LABELS_NAME: np.column_stack([LABELS, LABELS])},
    "more subjects than declared": {SUBJECTS_NAME: np.array([1, 2, 3, 4, 4])},
    "a record of nobody": {SUBJECTS_NAME: np.array([7, 7, 8, 9, -9])},
    "fewer subjects than records": {SUBJECTS_NAME: SUBJECTS[:4]},
    "more subjects than records": {SUBJECTS_NAME: np.append(SUBJECTS, 7)},
    "two subjects a record": {SUBJECTS_NAME: np.column_stack([SUBJECTS, SUBJECTS])},
    "subjects of another type": {SUBJECTS_NAME: SUBJECTS.astype(np.int32)},
    "subjects as floats": {SUBJECTS_NAME: SUBJECTS.astype(np.float64)},
    "subjects of nobody": {SUBJECTS_NAME: SUBJECTS[:0]},
}


STORED = {wrong: GOOD | changes for wrong, changes in BROKEN.items()}
STORED |= {f"no {name}": {key: GOOD[key] for key in GOOD if key != name} for name in GOOD}
ASIDE = "aside"
# What is done to the file of the images.
TAMPERED: dict[str, Callable[[Path], object]] = {
    "one more file": lambda path: path.with_name(ASIDE).write_text("for the other side"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": lambda path: (path.rename(path.with_name(ASIDE)), path.symlink_to(path.with_name(ASIDE))),
    "not sealed": lambda path: path.write_bytes(npy(IMAGES)),
    "another array": lambda path: shutil.copyfile(path.with_name(f"{LABELS_NAME}{SEALED_SUFFIX}"), path),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
}


def tampered(request: IngestRequest, tamper: Callable[[Path], object]) -> None:
    store(request, GOOD)
    tamper(request.target / f"{IMAGES_NAME}{SEALED_SUFFIX}")


# What the process does in place of reading, for a dataset with these facts; it says "ok".
ACTS: dict[str, tuple[Dataset, Callable[[IngestRequest], None]]] = {
    **{wrong: (OF_SUBJECTS, partial(store, arrays=arrays)) for wrong, arrays in STORED.items()},
    **{wrong: (OF_SUBJECTS, partial(tampered, tamper=tamper)) for wrong, tamper in TAMPERED.items()},
    "another key": (OF_SUBJECTS, lambda request: store(replace(request, target_key=new_key()), GOOD)),
    "subjects not declared": (begun(), lambda request: store(replace(request, subjects_declared=3), GOOD)),
}


@pytest.mark.parametrize(("facts", "act"), ACTS.values(), ids=ACTS)
def test_what_breaks_a_declared_rule_is_not_believed(settings, monkeypatch, facts, act):
    monkeypatch.setattr(reading, "_run_ingest", act)
    with pytest.raises(UploadFailed) as failed:
        receive(settings, facts, [b"anything"])
    assert failed.value.numbers == {"fault": Fault.INTERNAL}
    assert failed.value.__cause__ is None
    with pytest.raises(NotFound):
        Vault.of(settings).open_dataset(DATASET)
    assert files_of(settings) == [], "no key, no array and no quarantined file is left"
    assert fingerprint_key_path(settings).exists()


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, read_here: None) -> None:
    """Register a format. The confined process has a registry of its own, so it is played in this one."""
    monkeypatch.setitem(FORMATS, "toy", UploadFormat("a toy", "tests.service.ingest.toy_format"))


@pytest.mark.usefixtures("toy")
def test_a_new_format_is_read_like_any_other(settings):
    receive(settings, begun(), [bytes(LABELS.tolist()), IMAGES.tobytes()], format="toy")
    images, labels = Vault.of(settings).open_dataset(DATASET)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert titles() == "zip of class folders, npz, a zip of IDX files, or a toy"


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (IMAGES.tobytes(), Fault.ARRAY_LENGTH),
        (b"\2" + IMAGES[:1].tobytes(), Fault.LABEL_RANGE),
        (bytes(101 * 25), Fault.RECORDS_TOO_MANY),
    ],
)
def test_a_new_format_is_held_to_the_declaration(settings, content, fault):
    assert_refused(settings, fault, [content], format="toy")


def test_the_formats_of_the_wire_can_be_read_and_no_others():
    assert tuple(FORMATS) == get_args(wire.UploadFormat)
    assert all(callable(known.load()) for known in FORMATS.values())
