"""The parent's check of a reading process that was taken over: whatever it leaves behind breaks no declared rule.

Such a process can lie about which pixels the upload held. It cannot give more records or subjects than were declared,
other shapes, types or labels, a record without a subject, or a file that is not its own.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from obscura.wire.faults import Fault
from service.datasets import reading
from service.datasets.reading import UploadFailed
from service.datasets.vault import Vault, fingerprint_key_path
from service.db.dataset_tables import Dataset
from service.errors import NotFound
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME, create_array
from service.ingest.request import IngestRequest
from service.sealing import new_key
from tests.service.datasets.uploading import DATASET, begun, receive, stored_subjects
from tests.service.ingest.conftest import npy

FACTS = begun(subjects_declared=3)
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
    receive(settings, FACTS, [b"anything"])
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
    **{wrong: (FACTS, partial(store, arrays=arrays)) for wrong, arrays in STORED.items()},
    **{wrong: (FACTS, partial(tampered, tamper=tamper)) for wrong, tamper in TAMPERED.items()},
    "another key": (FACTS, lambda request: store(replace(request, target_key=new_key()), GOOD)),
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
    left = [path for path in settings.data_dir.rglob("*") if path.is_file()]
    assert left == [fingerprint_key_path(settings)], "no key, no array and no quarantined file is left"
