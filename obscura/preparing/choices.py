"""What the owner of the pictures has chosen, in the words of the command line and of the SDK."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Unpack, cast, get_args

from obscura.preparing.depth import FORMAT_SCALE, Scale, read_scale
from obscura.preparing.errors import PackingError
from obscura.preparing.tables import read_lines, read_renames

SIDE_MIN, SIDE_MAX = 8, 256  # of the images that generators are made for
# Where none is named, whatever the pictures are. Noise is added to every number that is learned: at 32 an epsilon of 1
# still shows what is in a picture, and two cores train in minutes.
SIDE_USUAL = 32

Size = tuple[int, int]  # width, height
Frames = Literal["first", "all"]
Axis = Literal["axial", "coronal", "sagittal"]
SECRET_BYTES_MIN = 32
SUBJECT_TAG_USUAL, NO_TAG = "PatientID", "none"


class Wishes(TypedDict, total=False):
    """What the owner of the pictures may choose, as people write it, each told here once with what it does.

    `datasets.push`, `train` and `read_choices` take these as keyword arguments, `obscura datasets push` and
    `quickstart` as flags of the same names.
    """

    classes: Annotated[
        str | Sequence[str] | None,
        "Class names in label order: separated by commas, or a .txt or .csv file with one on each line.",
    ]
    split: Annotated[
        str | None, "Which part of what comes in parts, e.g. train, test or t10k; train where nothing is said."
    ]
    size: Annotated[
        str | int | Size | None,
        f"Bring every picture to 64 x 64 (64) or to width x height (64x48), {SIDE_MIN} to {SIDE_MAX}; {SIDE_USUAL} "
        "where the pictures are files.",
    ]
    grey: Annotated[bool, "Give colours up."]
    labels: Annotated[
        str | Path | None,
        "A table that names pictures and their classes, instead of class folders: CSV or lines of JSON.",
    ]
    attribute: Annotated[
        str | None,
        "What a picture has or has not, where it may have several labels: Male, or several of which it has one: "
        "Black_Hair,Blond_Hair,Brown_Hair.",
    ]
    file_column: Annotated[str | None, "Of the table: the column that names the pictures, where it has no usual name."]
    label_column: Annotated[str | None, "Of the table: the column that holds the classes."]
    subject_column: Annotated[str | None, "Of the table: the column that tells whose each picture is."]
    combinations: Annotated[bool, "Where pictures have several labels: make a class of every combination."]
    skip_unlabelled: Annotated[bool, "Leave out pictures that have no label."]
    used_classes: Annotated[bool, "Where labels are numbers: those that no picture has are no classes."]
    table_encoding: Annotated[str | None, "Of tables and lists, where they are not in UTF-8: latin-1, cp1250, ..."]
    zip_encoding: Annotated[str | None, "Of the names in a zip that does not say: cp850, cp936, ..."]
    skip_broken: Annotated[bool, "Leave out pictures that cannot be read."]
    depth: Annotated[
        str | int | None, "Of grey pictures: how many bits their device stores, such as 12 in 16-bit files."
    ]
    window: Annotated[
        str | Sequence[float] | None,
        "Of grey pictures: the number that becomes black and the one that becomes white, such as -160,240; auto: the "
        "window in each DICOM or NIfTI file.",
    ]
    frames: Annotated[str | None, "Of DICOM files with several frames: first (usual), or all."]
    subject_tag: Annotated[
        str | None,
        f"Of DICOM files: the tag that says whose a picture is ({SUBJECT_TAG_USUAL} usually); {NO_TAG}: no tag does.",
    ]
    label_tag: Annotated[str | None, "Of DICOM files: the tag whose value is the class, instead of class folders."]
    slices: Annotated[str | None, "Of NIfTI volumes: the axis along which they are cut, axial, coronal or sagittal."]
    every: Annotated[int | None, "Of NIfTI volumes: one slice of so many is taken; the middle one if nothing is said."]
    rename_classes: Annotated[
        str | Path | None, "A table with the columns old and new: what each class is called from now on."
    ]
    join_subjects: Annotated[
        bool, "Take subject ids for one person's that differ in case, spaces, zeros or how characters are stored alone."
    ]
    subjects_key: Annotated[
        str | Path | None,
        "A file with a secret of yours: subjects are known again in all that was pushed with it. Their ids stay here.",
    ]


@dataclass(frozen=True)
class Choices:
    """How the pictures of a folder become the images of a dataset.

    Attributes:
        size: (width, height) that every picture is brought to; None for that of the arrays of a file, and for 32 x 32
            where the pictures are files of their own.
        grey: Whether colours are given up. Without it pictures are colour, but those of arrays that have none.
        classes: Their names in label order, as their owner states them; None takes those of the files.
        labels: A table with the columns file and label, instead of class folders.
        attributes: One makes two classes, several make one class each.
        split: Which part of a dataset that comes in parts: train, test, t10k, ...
        skip_broken: Whether pictures that cannot be read are left out.
        file_column: Of the table, the column that names the pictures; None takes one of a usual name.
        label_column: Of the table, the column that holds the classes.
        subject_column: Of the table, the column that tells whose each picture is.
        combinations: Whether every combination of several labels is a class.
        skip_unlabelled: Whether pictures without a label are left out.
        used_classes: Whether numbers that no picture has are no classes.
        table_encoding: Of the table's letters, where it is not UTF-8.
        zip_encoding: Of the names in a zip that does not say.
        scale: What black and white are in pictures of more than eight bits.
        frames: Of files with several frames, the first or all of them.
        subject_tag: Of DICOM files: the tag that says whose a picture is; NO_TAG where none does.
        label_tag: Of DICOM files: the tag whose value is the class, instead of class folders.
        slices: Of NIfTI volumes: the axis of the body along which they are cut.
        every: Which slices: every so many; None for the middle one.
        renamed: What each class is called from now on.
        join_subjects: Whether ids that look alike are one subject's.
        subjects_key: The secret under which ids become the same numbers each time; None for numbers in random order.
    """

    size: Size | None = None
    grey: bool = False
    classes: tuple[str, ...] | None = None
    labels: Path | None = None
    attributes: tuple[str, ...] = ()
    split: str | None = None
    skip_broken: bool = False
    file_column: str | None = None
    label_column: str | None = None
    subject_column: str | None = None
    combinations: bool = False
    skip_unlabelled: bool = False
    used_classes: bool = False
    table_encoding: str | None = None
    zip_encoding: str | None = None
    scale: Scale = FORMAT_SCALE
    frames: Frames = "first"
    subject_tag: str = SUBJECT_TAG_USUAL
    label_tag: str | None = None
    slices: Axis | None = None
    every: int | None = None
    renamed: Mapping[str, str] | None = None
    join_subjects: bool = False
    subjects_key: bytes | None = field(default=None, repr=False)

    @property
    def touch_every_picture(self) -> bool:
        """Whether even pictures that are all alike must be made anew."""
        changed = self.size is not None or self.grey or self.renamed is not None
        return changed or self.join_subjects or self.subjects_key is not None


def read_choices(**wishes: Unpack[Wishes]) -> Choices:
    """Read choices as people write them: `size="64x48"` (width x height).

    Raises:
        PackingError: A word is not understood.
    """
    renames = wishes.get("rename_classes")
    frames, slices, every = wishes.get("frames") or "first", wishes.get("slices"), wishes.get("every")
    if frames not in get_args(Frames):
        raise PackingError(f"--frames is first or all, not {frames!r}.")
    if slices is not None and slices not in get_args(Axis):
        raise PackingError(f"--slices is axial, coronal or sagittal, not {slices!r}.")
    if every is not None and every < 1:
        raise PackingError(f"--every is 1 or more, not {every}.")
    size, labels, attribute = wishes.get("size"), wishes.get("labels"), wishes.get("attribute")
    return Choices(
        size=None if size is None else _size(size),
        grey=wishes.get("grey", False),
        classes=_classes(wishes.get("classes"), wishes.get("table_encoding")),
        labels=None if labels is None else Path(labels),
        attributes=tuple(name.strip() for name in attribute.split(",")) if attribute else (),
        split=wishes.get("split"),
        skip_broken=wishes.get("skip_broken", False),
        file_column=wishes.get("file_column"),
        label_column=wishes.get("label_column"),
        subject_column=wishes.get("subject_column"),
        combinations=wishes.get("combinations", False),
        skip_unlabelled=wishes.get("skip_unlabelled", False),
        used_classes=wishes.get("used_classes", False),
        table_encoding=wishes.get("table_encoding"),
        zip_encoding=wishes.get("zip_encoding"),
        scale=read_scale(wishes.get("depth"), wishes.get("window")),
        frames=cast(Frames, frames),
        subject_tag=wishes.get("subject_tag") or SUBJECT_TAG_USUAL,
        label_tag=wishes.get("label_tag"),
        slices=cast(Axis | None, slices),
        every=every,
        renamed=None if renames is None else read_renames(Path(renames), wishes.get("table_encoding")),
        join_subjects=wishes.get("join_subjects", False),
        subjects_key=read_secret(wishes.get("subjects_key")),
    )


def read_secret(path: str | Path | None) -> bytes | None:
    """Read a secret; none is made here, for another one would let known subjects pass for new."""
    if path is None:
        return None
    try:
        data = Path(path).read_bytes()
    except OSError:
        data = b""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        with suppress(UnicodeError):  # an editor that saved the file anew must not change the secret
            data = data.decode(encoding).encode("ascii") if data.startswith(mark) else data
    secret = data.strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise PackingError(
            f"--subjects-key is a file with a secret of at least {SECRET_BYTES_MIN} bytes. Make it once, such as with "
            f"openssl rand -hex 32 > {path}, and keep it: with another one, subjects that are known pass for new."
        )
    return secret


def fits(width: int, height: int) -> bool:
    """Whether images may have this size."""
    return min(width, height) >= SIDE_MIN and max(width, height) <= SIDE_MAX


def _size(size: str | int | Size) -> Size:
    text = "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
    found = re.fullmatch(r"\s*(\d{1,6})(?:\s*[xX×]\s*(\d{1,6}))?\s*", text)
    if found is None:
        raise PackingError(f"--size is a number of pixels such as 64, or width x height such as 64x48, not {text!r}.")
    width, height = int(found[1]), int(found[2] or found[1])
    if not fits(width, height):
        raise PackingError(f"--size takes sides of {SIDE_MIN} to {SIDE_MAX} pixels, not {width} x {height}.")
    return width, height


def _classes(names: str | Sequence[str] | None, encoding: str | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str):
        names = read_lines(Path(names), encoding) if names.endswith((".txt", ".csv")) else names.split(",")
    stated = tuple(name.strip() for name in names)
    if not stated or len(set(stated)) < len(stated):
        raise PackingError("--classes names each class once, in label order, separated by commas.")
    return stated
