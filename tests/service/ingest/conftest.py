"""Real crafted files, and a way to hand them to the readers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.datasets.vault import SealedArray
from service.ingest.__main__ import answer
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME
from service.ingest.formats import FORMATS
from service.ingest.request import IngestLimits, IngestRequest

Ingest = Callable[..., str]
DATASET, KEY = "ds_" + "a2" * 10, bytes(range(32))


@pytest.fixture
def declare(tmp_path: Path) -> Callable[..., IngestRequest]:
    """Return a declaration of 4 x 6 (height x width) grayscale pictures in two classes, with any fact replaced."""

    def build(**changes: Any) -> IngestRequest:
        limits = IngestLimits(**changes.pop("limits", {}))
        facts: dict[str, Any] = {
            "dataset_id": DATASET,
            "source_key": bytes(32),
            "target_key": KEY,
            "source": tmp_path / "source",
            "target": tmp_path,
            "format": "zip",
            "classes": ("cat", "dog"),
            "height": 4,
            "width": 6,
            "channels": 1,
            "records_declared": 100,
        }
        return IngestRequest(**facts | changes, limits=limits)

    return build


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


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """Return a function that encodes a picture of the declared size."""

    def encode(
        kind: str = "PNG", mode: str = "L", size: tuple[int, int] = (6, 4), value: Any = 7, **options: Any
    ) -> bytes:
        buffer = io.BytesIO()
        Image.new(mode, size, value).save(buffer, kind, **options)
        return buffer.getvalue()

    return encode


@pytest.fixture
def archive() -> Callable[..., bytes]:
    """Return a function that packs (name or ZipInfo, bytes) pairs into a zip file."""

    def pack(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as file:
            for name, data in members:
                file.writestr(name, data)
        return buffer.getvalue()

    return pack
