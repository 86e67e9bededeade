"""NIfTI volumes in class folders, as slices along an axis that the owner names, oriented as radiologists view them.

Axes are those of the body (nibabel's closest canonical orientation): the patient's right is on the left of a slice, and
the front or the head is at the top. Non-cubic voxels are not rescaled. All slices of a file belong to one person. So do
files with the same BIDS name (`sub-01`), and files in the same folder inside a class folder.
"""

from __future__ import annotations

import gzip
import io
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from obscura.errors import ChoiceNeeded, PackingError, Unreadable
from obscura.extras import extras
from obscura.image_types import PIXELS_MAX, image_suffixes
from obscura.preparing.choices import Axis, Choices
from obscura.preparing.depth import Numbers, Window
from obscura.preparing.folders import LOOSE, base_of, require_no_masks
from obscura.preparing.sources import Record, Source, Tally, fail
from obscura.preparing.subjects import by_subject
from obscura.preparing.trees import Tree, all_files, below, folders, suffix_of

SUFFIXES = (".nii", ".nii.gz")
_WHAT = "Reading NIfTI files"
_VOLUME_BYTES_MAX = 2**30  # unpacked
_ACROSS = {"sagittal": 0, "coronal": 1, "axial": 2}  # axis in (right, front, head)
_NIFTI_2_HEADER = 540  # its first four bytes; those of NIfTI-1 are 348


@dataclass(frozen=True)
class Volume:
    """The first volume of a file."""

    values: np.ndarray[Any, Any]  # (right, front, head)
    limits: Window | None  # see `Numbers`
    own: Window | None  # the window in the header, if any
    volumes: int  # number of volumes in the file; this is the first

    def slice(self, axis: Axis, number: int) -> Numbers:
        """Return slice `number`, counted from the patient's left, back or feet."""
        flat = np.take(self.values, number, axis=_ACROSS[axis])[::-1, ::-1].T
        own = None if self.own is None else Numbers(flat, self.own)
        return Numbers(flat, self.limits, own, integers=self.limits is not None and self.values.dtype.kind == "u")


def open_volume(data: bytes) -> Volume:
    with extras(_WHAT):
        import nibabel as untyped  # slow to import, and needed only for these files

    nibabel: Any = untyped
    try:
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(_VOLUME_BYTES_MAX + 1)
            if len(data) > _VOLUME_BYTES_MAX:
                raise Unreadable(f"it is larger than {_VOLUME_BYTES_MAX // 2**20} MiB unpacked")
        second = _NIFTI_2_HEADER in (int.from_bytes(data[:4], order) for order in ("little", "big"))
        image = (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(data)
        if image.get_data_dtype().kind not in "iuf":
            raise Unreadable("its voxels are colours or complex numbers, which are not supported")
        shape = (*image.shape, 1, 1)[: max(3, len(image.shape))]
        if sorted(shape[:3])[1] * sorted(shape[:3])[2] > PIXELS_MAX:
            raise Unreadable(f"its slices have more than {PIXELS_MAX:,} pixels")
        first = (slice(None),) * min(3, len(image.shape)) + (0,) * (len(image.shape) - 3)
        # Select the first volume before turning it, so the others are not scaled.
        spatial = nibabel.Nifti1Image(np.asarray(image.dataobj[first]).reshape(shape[:3]), image.affine)
        values = np.asarray(nibabel.as_closest_canonical(spatial).dataobj)
    except Unreadable:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise Unreadable(f"it is damaged ({type(error).__name__})") from None
    low, high = float(image.header["cal_min"]), float(image.header["cal_max"])
    limits = (0, 2 ** (8 * values.dtype.itemsize) - 1) if values.dtype.kind == "u" else None
    return Volume(values, limits, (low, high) if low < high else None, int(np.prod(shape[3:], initial=1)))


BY_FILE = "of the images are from files that count as one subject each, because their paths name no person"
_BIDS = re.compile(r"(?:^|[/_])(sub-[0-9A-Za-z]+)(?=[/_.]|$)")


def find_tree(tree: Tree, choices: Choices, *, subjects: bool | None) -> Source | None:
    if not any(_is_nifti(path) for path in all_files(tree)):
        if choices.slices is not None or choices.every is not None:
            raise PackingError(f"--slices and --every are for NIfTI volumes, but {tree.name} has none.")
        return None
    with extras(_WHAT):
        import nibabel  # noqa: F401  # say now if it is missing
    axis, every = choices.slices, choices.every
    if axis is None:
        raise ChoiceNeeded(
            f"{tree.name} contains volumes, which must be cut into slices: name the axis, axial, coronal or sagittal. "
            "Only the middle slice of each volume is used, or with --every 5 every fifth slice.",
            ["--slices axial"],
        )
    if every is not None and subjects is False:
        raise by_subject("--every takes several slices of one person", "Or leave --every out, for the middle slice.")
    base, note = base_of(tree, choices, subjects=False, holds=lambda at: any(map(_is_nifti, tree.files(at))))
    if not folders(tree, base):
        raise PackingError(
            f"The volumes of {tree.name} are not in class folders: put them into one folder for each class. A table "
            "cannot label volumes."
        )
    for name in folders(tree, base):
        require_no_masks(tree, below(base, name), frozenset(SUFFIXES))

    def walk(tally: Tally) -> Iterator[Record]:
        known, others, used = set[str](), dict[str, None](), set[str]()
        for path in all_files(tree, base, tally):
            folder, _, inside = path.removeprefix(f"{base}/" if base else "").partition("/")
            label = unicodedata.normalize("NFC", folder)
            if suffix_of(path) in image_suffixes():
                raise PackingError(f"{tree.name} has volumes and other images ({path}): push them as two datasets.")
            if not _is_nifti(path):
                tally.leave_out(path)
                others |= {label: None} if inside else {}
                continue
            if not inside:
                tally.left_out[LOOSE] += 1
                continue
            used.add(label)
            bids = _BIDS.search(inside)
            named = bids[1] if bids else inside.rpartition("/")[0].partition("/")[0]
            owner = named or path
            if subjects is False and owner in known:
                raise by_subject("By their paths, several volumes are of one person")
            known.add(owner)
            try:
                volume = open_volume(tree.read(path))
            except Unreadable as error:
                yield Record(label, None, path, partial(fail, error))
                continue
            count = volume.values.shape[_ACROSS[axis]]
            first, step = (count // 2, max(count, 1)) if every is None else ((count - 1) % every // 2, every)
            numbers = range(first, count, step)
            tally.notes["of the images are from the first of several volumes"] += len(numbers) * (volume.volumes > 1)
            tally.notes[BY_FILE] += len(numbers) * (bool(subjects) and not named)
            for number in numbers:
                shown = f"{path} slice {number + 1}"
                yield Record(label, owner if subjects else None, shown, partial(volume.slice, axis, number))
        tally.lost += [name for name in others if name not in used]

    owned = "The paths of the volumes" if subjects else None
    return Source(f"{note + ', ' if note else ''}NIfTI, {axis} slices", walk, grey=True, folders=True, owned=owned)


def _is_nifti(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)
