"""A new way to send a dataset is a module that reads it and a line in the registry; nothing else need change."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from obscura.wire import formats as wire
from obscura.wire.uploads import Fault
from service.datasets.reading import UploadRefused
from service.datasets.vault import Vault, make_fingerprint_key
from service.errors import InvalidInput
from service.ingest.formats import FORMATS, UploadFormat, format_named, titles
from service.settings import Settings
from tests.service.datasets.world import DATASET, begun, receive
from tests.service.ingest.conftest import IMAGES, LABELS


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, read_here: None) -> None:
    """Register a format. The confined process has a registry of its own, so it is played in this one."""
    monkeypatch.setitem(FORMATS, "toy", UploadFormat("toy", "a toy", "tests.service.ingest.toy_format"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(data_dir=tmp_path)
    make_fingerprint_key(settings)
    return settings


@pytest.mark.usefixtures("toy")
def test_a_new_format_is_read_like_any_other(settings):
    receive(settings, begun(), [LABELS.tobytes(), IMAGES.tobytes()], format="toy")
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
    with pytest.raises(UploadRefused) as refused:
        receive(settings, begun(), [content], format="toy")
    assert refused.value.numbers == {"fault": fault}


def test_the_formats_of_the_wire_can_be_read_and_no_others():
    assert tuple(FORMATS) == get_args(wire.UploadFormat)
    for name in FORMATS:
        assert format_named(name).name == name
        assert callable(format_named(name).load())
    with pytest.raises(InvalidInput, match="zip, npz, idx"):
        format_named("tar")
