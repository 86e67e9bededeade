"""CIFAR-10 as its "python version" is unpacked: data_batch_1 ... data_batch_5, test_batch and batches.meta.

The batches are pickles, which can run anything when they are opened. Here only arrays of numbers are let through.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.layouts.parts import choose_part, no_subjects, title_of
from obscura.preparing.sources import Pixels, Record, Source, Tally

_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE = 32
_ROW_BYTES = 3 * _SIDE * _SIDE
_BATCH_BYTES_MAX = 64 * 2**20  # an official one has 31 million
_INSIDE = (".", "cifar-10-batches-py")


def find(folder: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise the folder.

    Raises:
        PackingError: A batch is damaged or is not what it should be.
    """
    at = next((folder / inner for inner in _INSIDE if (folder / inner / "data_batch_1").is_file()), None)
    if at is None:
        return None
    no_subjects("CIFAR-10", subjects)
    batches = {"train": sorted(at.glob("data_batch_[1-5]")), "test": sorted(at.glob("test_batch"))}
    parts = [part for part, files in batches.items() if files]
    chosen = choose_part("CIFAR-10", parts, choices.split)
    names = _names(at / "batches.meta")
    return Source(
        title_of("CIFAR-10", parts, chosen), partial(_walk, batches[chosen], names), names, shape=(_SIDE, _SIDE, 3)
    )


def _walk(batches: list[Path], names: tuple[str, ...], tally: Tally) -> Iterator[Record]:
    del tally  # nothing is passed over
    for path in batches:
        batch = _load(path)
        rows, labels = batch.get("data"), batch.get("labels")
        if (
            not isinstance(rows, np.ndarray)
            or not isinstance(labels, list)
            or (rows.dtype, rows.shape) != (np.uint8, (len(labels), _ROW_BYTES))
            or not all(isinstance(label, int) and 0 <= label < len(names) for label in labels)
        ):
            raise PackingError(f"{path.name} is no batch of CIFAR-10: it must hold 'data' (n, 3072) and 'labels'.")
        images = rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)  # planes of red, green, blue -> (n, h, w, 3)
        for number, label in enumerate(labels):
            pixels: Pixels = np.ascontiguousarray(images[number])
            yield Record(names[label], None, f"{path.name} number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]


def _names(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return _NAMES
    names = _load(path).get("label_names")
    if not isinstance(names, list) or not names:
        raise PackingError(f"{path.name} must hold 'label_names'.")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)


def _load(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _BATCH_BYTES_MAX:
        raise PackingError(f"{path.name} is larger than a batch of CIFAR-10 can be.")
    try:
        content = _NumbersOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle fails in many ways
        raise PackingError(f"{path.name} cannot be read as a batch of CIFAR-10: {error}.") from error
    if not isinstance(content, dict):
        raise PackingError(f"{path.name} is no batch of CIFAR-10.")
    return {key.decode("ascii", "replace") if isinstance(key, bytes) else str(key): v for key, v in content.items()}


def _encode(text: str, encoding: str) -> bytes:
    """What a pickle of Python 3 calls for bytes, in its oldest protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("it asks for another encoding than latin1")
    return text.encode("latin1")


def _dtype(name: str | bytes, *_: object) -> np.dtype[Any]:
    text = name.decode("ascii") if isinstance(name, bytes) else name
    if text not in ("u1", "uint8", "|u1"):
        raise pickle.UnpicklingError("it holds other numbers than bytes")
    return np.dtype(np.uint8)


def _empty(*_: object) -> np.ndarray[Any, Any]:
    """What an array is before its content is read."""
    return np.ndarray((0,), np.uint8)


class _NumbersOnly(pickle.Unpickler):
    """Opens pickles of arrays of bytes, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the few things that such pickles name.

        Raises:
            UnpicklingError: It names anything else.
        """
        known: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): None,  # an argument of _reconstruct, and nothing to be called
            ("numpy", "dtype"): _dtype,
            ("_codecs", "encode"): _encode,
        }
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _empty
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and a batch is made of numbers alone")
        return known[module, name]
