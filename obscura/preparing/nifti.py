"""NIfTI volumes: slices along an axis of the body, stood as radiologists see them.

Axes are those of the body (nibabel's closest canonical orientation): the patient's right is on the left of a slice, and
the front or the head above. Voxels that are longer in one direction are not stretched.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from obscura.extras import extras
from obscura.preparing.choices import Axis
from obscura.preparing.depth import Numbers, Window
from obscura.preparing.errors import Unreadable
from obscura.preparing.sources import PIXELS_MAX

SUFFIXES = (".nii", ".nii.gz")
_WHAT = "Reading NIfTI files"
_VOLUME_BYTES_MAX = 2**30  # unpacked
_ACROSS = {"sagittal": 0, "coronal": 1, "axial": 2}  # of (right, front, head)
_NIFTI_2_HEADER = 540  # what its first four bytes say; those of NIfTI-1 say 348


@dataclass(frozen=True)
class Volume:
    """One series.

    Attributes:
        values: (right, front, head).
        limits: As of `Numbers`.
        own: The window that its header states, where it does.
        volumes: How many there are, of which this is the first.
    """

    values: np.ndarray[Any, Any]
    limits: Window | None
    own: Window | None
    volumes: int

    def count(self, axis: Axis) -> int:
        """How many slices there are along an axis."""
        return int(self.values.shape[_ACROSS[axis]])

    def slice(self, axis: Axis, number: int) -> Numbers:
        """One slice, counted from the patient's left, back or feet."""
        flat = np.take(self.values, number, axis=_ACROSS[axis])[::-1, ::-1].T
        own = None if self.own is None else Numbers(flat, self.own)
        return Numbers(flat, self.limits, own, integers=self.limits is not None and self.values.dtype.kind == "u")


def require_reader() -> None:
    """Let pass where NIfTI can be read.

    Raises:
        MissingExtra: What reads it is not installed.
    """
    with extras(_WHAT):
        import nibabel  # noqa: F401  # slow to import, and wanted for these files alone


def open_volume(data: bytes) -> Volume:
    """Read a NIfTI file, gzipped or not.

    Raises:
        Unreadable: It is damaged, too large, or no volume of numbers.
    """
    try:
        return _volume(_unpacked(data))
    except Unreadable:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise Unreadable(f"it is damaged ({type(error).__name__})") from None


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data
    with gzip.open(io.BytesIO(data)) as file:
        plain = file.read(_VOLUME_BYTES_MAX + 1)
    if len(plain) > _VOLUME_BYTES_MAX:
        raise Unreadable(f"it is larger than {_VOLUME_BYTES_MAX // 2**20} MiB unpacked")
    return plain


def _volume(data: bytes) -> Volume:
    with extras(_WHAT):
        import nibabel as untyped

    nibabel: Any = untyped
    second = _NIFTI_2_HEADER in (int.from_bytes(data[:4], order) for order in ("little", "big"))
    image = (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(data)
    if image.get_data_dtype().kind not in "iuf":
        raise Unreadable("its voxels are colours or complex numbers, which are not taken")
    shape = (*image.shape, 1, 1)[: max(3, len(image.shape))]
    if sorted(shape[:3])[1] * sorted(shape[:3])[2] > PIXELS_MAX:
        raise Unreadable(f"its slices have more than {PIXELS_MAX:,} pixels")
    first = (slice(None),) * min(3, len(image.shape)) + (0,) * (len(image.shape) - 3)
    # Read before it is turned: of several volumes the others are not scaled.
    spatial = nibabel.Nifti1Image(np.asarray(image.dataobj[first]).reshape(shape[:3]), image.affine)
    values = np.asarray(nibabel.as_closest_canonical(spatial).dataobj)
    whole = values.dtype.kind == "u"
    low, high = float(image.header["cal_min"]), float(image.header["cal_max"])
    limits = (0, 2 ** (8 * values.dtype.itemsize) - 1) if whole else None
    return Volume(values, limits, (low, high) if low < high else None, int(np.prod(shape[3:], initial=1)))
