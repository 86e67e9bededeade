"""Real crafted files, and ways to hand them to the readers."""

import gzip
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from service.datasets.vault import SealedArray
from service.ingest.__main__ import answer
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, QUARANTINE, SEALED_SUFFIX, SUBJECTS_NAME
from service.ingest.request import FORMATS, IngestLimits, IngestRequest
from service.sealing import SealedWriter
from tests.pictures import archive, idx_file, picture

Ingest = Callable[..., str]
DATASET, KEY = "ds_" + "a2" * 10, bytes(range(32))
SHARED = hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20
)
IMAGES = np.arange(6 * 24, dtype=np.uint8).reshape(6, 4, 6)
LABELS = np.array([0, 1, 1, 0, 0, 1], np.uint8)


IMAGES_FILE, LABELS_FILE = idx_file(IMAGES, 0x803), idx_file(LABELS, 0x801)


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
        with request.source.open("wb") as file:
            writer = SealedWriter(file, request.source_key, QUARANTINE)
            writer.write(data)
            writer.finish()
        return answer(request, FORMATS[request.format].load())

    return run


@pytest.fixture
def npz(ingest: Ingest) -> Ingest:
    """Return a function that reads an .npz of six records, of which arrays are replaced or left out (None).

    An array may be the bytes of a member. `facts` are those of the declaration.
    """

    def run(facts: dict[str, Any] | None = None, **arrays: Any) -> str:
        members = {"images": IMAGES, "labels": LABELS} | arrays
        files = (
            (f"{name}.npy", value if isinstance(value, bytes) else npy(np.asarray(value)))
            for name, value in members.items()
            if value is not None
        )
        return ingest(archive(*files), format="npz", **facts or {})

    return run


@pytest.fixture
def idx(ingest: Ingest) -> Ingest:
    """Return a function that reads IDX files of six records, in any order; subjects only where they are given."""

    def run(
        images: bytes = IMAGES_FILE,
        labels: bytes = LABELS_FILE,
        subjects: bytes | None = None,
        suffix: str = "",
        **facts: Any,
    ) -> str:
        files = {"subjects-idx1-int": subjects, "labels-idx1-ubyte": labels, "images-idx3-ubyte": images}
        members = ((f"train-{name}{suffix}", content) for name, content in files.items() if content is not None)
        return ingest(archive(*members), format="idx", **facts)

    return run


def packed(images: bytes = IMAGES_FILE, labels: bytes = LABELS_FILE) -> dict[str, Any]:
    return {"images": gzip.compress(images), "labels": gzip.compress(labels), "suffix": ".gz"}


def each_case(table: dict[str, tuple[str, list[Any]]]) -> pytest.MarkDecorator:
    """Parametrize `fault` and `case` with every input of a table, which lists them by what is wrong with them."""
    cases = {f"{wrong} {n}": (fault, case) for wrong, (fault, held) in table.items() for n, case in enumerate(held)}
    return pytest.mark.parametrize(("fault", "case"), cases.values(), ids=cases)


@pytest.fixture
def stored_array(tmp_path: Path) -> Callable[[str], np.ndarray]:
    """Return a function that opens one of the arrays that a reader has written."""

    def load(name: str) -> np.ndarray:
        with SealedArray(tmp_path, DATASET, name, KEY) as array:
            return array.read()

    return load


@pytest.fixture
def stored(stored_array: Callable[[str], np.ndarray]) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    return lambda: (stored_array(IMAGES_NAME), stored_array(LABELS_NAME))


PICTURE = picture()


def pictures(*names: str) -> bytes:
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
    array = np.empty(count, dtype=object)
    array[:] = [Explosive()] * count
    return npy(array, allow_pickle=True)
