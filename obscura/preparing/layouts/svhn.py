"""SVHN, format 2 (cropped digits): train_32x32.mat, test_32x32.mat and extra_32x32.mat.

A file is read as a whole, for that is how SciPy reads it: the training part takes 226 MB, the extra part 1.7 GB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from obscura.extras import extras
from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.layouts.parts import choose_part, no_subjects, title_of
from obscura.preparing.sources import Pixels, Record, Source, Tally

_SUFFIX = "_32x32.mat"
_NUMBERS_MAX = 2**31  # the largest part, extra, has 1.6 billion
_DIGITS = tuple("0123456789")
_SHAPE = (32, 32, 3)


def find(folder: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise the folder.

    Raises:
        PackingError: The part that was asked for is not there.
    """
    files = {path.name.removesuffix(_SUFFIX): path for path in sorted(folder.glob(f"*{_SUFFIX}")) if path.is_file()}
    if not files:
        return None
    no_subjects("SVHN", subjects)
    chosen = choose_part("SVHN", list(files), choices.split)
    return Source(title_of("SVHN", list(files), chosen), partial(_walk, files[chosen]), _DIGITS, shape=_SHAPE)


def find_file(path: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise one of the files."""
    del choices  # there is nothing to choose
    if path.suffix != ".mat":
        return None
    no_subjects("SVHN", subjects)
    return Source(f"SVHN, {path.name}", partial(_walk, path), _DIGITS, shape=_SHAPE)


def _walk(path: Path, tally: Tally) -> Iterator[Record]:
    with extras():
        from scipy.io import loadmat, whosmat  # slow to import, and wanted for this layout alone

    del tally  # nothing is passed over
    try:
        if any(math.prod(shape) > _NUMBERS_MAX for _, shape, _ in whosmat(path)):
            raise ValueError("it is larger than the largest part")
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"].ravel()
    except Exception as error:  # SciPy fails on damaged files in many ways
        raise PackingError(f"{path.name} cannot be read as a part of SVHN ({type(error).__name__}).") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2:] != (3, len(labels)):
        raise PackingError(f"{path.name} is no part of SVHN: it must hold 'X' (h, w, 3, n), bytes, and 'y' (n).")
    if labels.dtype.kind not in "iu" or not np.isin(labels, range(11)).all():
        raise PackingError(f"{path.name} is no part of SVHN: 'y' must hold the digits, with 10 for zero.")
    for number, label in enumerate(labels):
        pixels: Pixels = np.ascontiguousarray(images[..., number])
        digit = str(int(label) % 10)  # zero is written as 10
        yield Record(digit, None, f"{path.name} number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]
