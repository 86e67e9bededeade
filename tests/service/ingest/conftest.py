"""Real crafted files, and a way to hand them to the readers."""

import io
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from PIL import Image

from service.datasets.vault import SealedArray
from service.ingest.__main__ import answer
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME
from service.ingest.formats import FORMATS
from service.ingest.request import IngestLimits, IngestRequest

Ingest = Callable[..., str]
DATASET, KEY = "ds_" + "a2" * 10, bytes(range(32))
SHARED = hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20
)


def request_of(**changes: Any) -> IngestRequest:
    """A declaration of 4 x 6 (height x width) grayscale pictures in two classes, with any fact replaced."""
    limits = IngestLimits(**changes.pop("limits", {}))
    facts: dict[str, Any] = {"dataset_id": DATASET, "source_key": bytes(32), "target_key": KEY, "format": "zip"}
    facts |= {"classes": ("cat", "dog"), "height": 4, "width": 6, "channels": 1, "records_declared": 100}
    return IngestRequest(**{"source": Path("source"), "target": Path("target"), **facts, **changes}, limits=limits)


@pytest.fixture
def declare(tmp_path: Path) -> Callable[..., IngestRequest]:
    return partial(request_of, source=tmp_path / "source", target=tmp_path)


@pytest.fixture
def ingest(declare: Callable[..., IngestRequest], tmp_path: Path) -> Ingest:
    """Return a function that reads a file and returns the reader's one-word answer."""

    def run(data: bytes, **changes: Any) -> str:
        for name in (IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME):
            (tmp_path / f"{name}{SEALED_SUFFIX}").unlink(missing_ok=True)
        request = declare(**changes)
        return answer(request, FORMATS[request.format].load(), lambda _: io.BytesIO(data))

    return run


@pytest.fixture
def stored_array(tmp_path: Path) -> Callable[[str], np.ndarray]:
    """Return a function that opens one of the arrays that a reader has written."""

    def load(name: str) -> np.ndarray:
        with SealedArray(tmp_path, DATASET, name, KEY) as array:
            return array.read()

    return load


@pytest.fixture
def stored(stored_array: Callable[[str], np.ndarray]) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return a function that loads what a reader has written."""
    return lambda: (stored_array(IMAGES_NAME), stored_array(LABELS_NAME))


def picture(
    kind: str = "PNG", mode: str = "L", size: tuple[int, int] = (6, 4), value: Any = 7, **options: Any
) -> bytes:
    """Encode a picture of the declared size."""
    buffer = io.BytesIO()
    Image.new(mode, size, value).save(buffer, kind, **options)
    return buffer.getvalue()


PICTURE = picture()


def archive(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Pack (name or ZipInfo, bytes) pairs into a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def pictures(*names: str) -> bytes:
    """A zip file of pictures with these names."""
    return archive(*((name, PICTURE) for name in names))


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def npy_header(descr: str, shape: tuple[int, ...], *, order: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": order, "shape": shape})
    return buffer.getvalue()


class Explosive:
    """What ends a process that unpickles it."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('pickle was loaded')",))


def pickled(count: int) -> bytes:
    """An array of so many objects."""
    array = np.empty(count, dtype=object)
    array[:] = [Explosive()] * count
    return npy(array, allow_pickle=True)
