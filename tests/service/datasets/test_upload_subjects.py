"""Subjects through the real reader process."""

from __future__ import annotations

import numpy as np
import pytest

from service.datasets.reading import Upload, UploadRefused
from service.datasets.vault import open_dataset, open_subjects
from service.errors import NotFound
from service.ingest.faults import Fault
from service.settings import Settings
from tests.service.datasets.uploading import npz, receive

DATASET = "ds_" + "a2" * 10
FACTS = Upload(DATASET, ("cat", "dog"), 4, 6, 1, records_declared=100, subjects_declared=3)
CANARY = "CANARY7f3a"
NAMES = [f"{CANARY}-{name}" for name in ("anna", "bert", "anna", "carl", "bert")]


def of(names: list[str] | None) -> bytes:
    subjects = {} if names is None else {"subjects": np.array(names)}
    return npz(np.zeros((5, 4, 6), np.uint8), [0, 1, 1, 0, 1], **subjects)


def test_subjects_are_stored_beside_images_and_labels_as_numbers(settings: Settings) -> None:
    receive(settings, FACTS, iter([of(NAMES)]), None, "npz")
    numbers = open_subjects(settings, DATASET)
    assert numbers.dtype == np.int64
    assert [np.flatnonzero(numbers == number).tolist() for number in dict.fromkeys(numbers.tolist())] == [
        [0, 2],
        [1, 4],
        [3],
    ]
    assert len(open_dataset(settings, DATASET)[1]) == 5
    assert not [path for path in settings.data_dir.rglob("*") if path.is_file() and CANARY in path.name]


@pytest.mark.parametrize(("names", "fault"), [(None, Fault.SUBJECTS_ABSENT), ([*NAMES[:4], "dora"], None)])
def test_refusals_name_the_rule_and_no_subject(
    settings: Settings, capfd: pytest.CaptureFixture[str], names: list[str] | None, fault: Fault | None
) -> None:
    with pytest.raises(UploadRefused) as refused:
        receive(settings, FACTS, iter([of(names)]), None, "npz")
    assert refused.value.fault is (fault or Fault.SUBJECTS_TOO_MANY)
    told = " ".join([refused.value.message, repr(refused.value), str(refused.value.numbers), *capfd.readouterr()])
    assert CANARY not in told
    assert "dora" not in told
    with pytest.raises(NotFound):
        open_subjects(settings, DATASET)
