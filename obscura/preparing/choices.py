"""The options of a push: how images are read and converted."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Unpack, cast, get_args

from obscura.preparing.depth import read_scale
from obscura.preparing.errors import PackingError
from obscura.preparing.tables import read_lines, read_renames

SIDE_MIN, SIDE_MAX = 8, 256  # of the images that generators are made for
# The default, whatever the images are. Noise is added to every number that is learned: at 32 an epsilon of 1 still
# shows what is in an image, and two cores train in minutes.
SIDE_USUAL = 32

Size = tuple[int, int]  # width, height
Axis = Literal["axial", "coronal", "sagittal"]
SECRET_BYTES_MIN = 32
SUBJECT_TAG_USUAL, NO_TAG = "PatientID", "none"


class PushOptions(TypedDict, total=False):
    """Options of a push: name, type and help text.

    Keyword arguments of `datasets.push`, `train` and `Choices`, and flags of `obscura datasets push` and
    `obscura quickstart`, derive from this list. `Choices` validates them.
    """

    classes: Annotated[
        str | Sequence[str] | None,
        "Class names in label order, separated by commas; or a .txt or .csv file with one per line.",
    ]
    split: Annotated[str | None, "Part of a dataset that has several, such as train (default), test or t10k."]
    size: Annotated[
        str | int | Size | None,
        f"Scale and crop every image to 64 x 64 (64) or to width x height (64x48), {SIDE_MIN} to {SIDE_MAX} pixels "
        f"each. Default: {SIDE_USUAL} for image files, their own size for arrays.",
    ]
    grey: Annotated[bool, "Convert images to greyscale."]
    labels: Annotated[
        str | Path | None,
        "Table of images and their classes, used instead of class folders: CSV or JSON lines.",
    ]
    attribute: Annotated[
        str | None,
        "Labels to use as classes in multi-label data. One label: with and without it. Several, such as MEL,NV,BCC: "
        "one class each.",
    ]
    file_column: Annotated[str | None, "Column of the table that names the images."]
    label_column: Annotated[str | None, "Column of the table that contains the classes."]
    subject_column: Annotated[str | None, "Column of the table that contains the subject ids."]
    combinations: Annotated[bool, "Make a class of every combination of labels in multi-label data."]
    skip_unlabelled: Annotated[bool, "Leave out images without a label."]
    used_classes: Annotated[bool, "Leave out numeric classes that no image has."]
    table_encoding: Annotated[str | None, "Encoding of tables and lists that are not in UTF-8: latin-1, cp1250, ..."]
    zip_encoding: Annotated[str | None, "Encoding of file names in a ZIP that does not state one: cp850, cp936, ..."]
    skip_broken: Annotated[bool, "Leave out images that cannot be read."]
    depth: Annotated[str | int | None, "Bits that the device stores per grey pixel, such as 12 in 16-bit files."]
    window: Annotated[
        str | Sequence[float] | None,
        "Grey values that become black and white, such as -160,240; auto: the window in each DICOM or NIfTI file.",
    ]
    frames: Annotated[str | None, "Frames of a multi-frame DICOM file: first (default) or all."]
    subject_tag: Annotated[
        str | None, f"DICOM tag with the subject id, {SUBJECT_TAG_USUAL} by default; {NO_TAG}: no tag has it."
    ]
    label_tag: Annotated[str | None, "DICOM tag with the class, used instead of class folders."]
    slices: Annotated[str | None, "Axis along which NIfTI volumes are sliced: axial, coronal or sagittal."]
    every: Annotated[int | None, "Take every n-th slice of a NIfTI volume. Default: the middle slice only."]
    rename_classes: Annotated[str | Path | None, "Table with the columns old and new: new names of the classes."]
    join_subjects: Annotated[
        bool,
        "Treat ids that differ only in case, spacing, leading zeros or Unicode form as the same person.",
    ]
    subjects_key: Annotated[
        str | Path | None,
        "File with your own secret. Subjects are recognised in all that you push with it; their ids stay here.",
    ]


class Choices:
    """Parsed push options, each an attribute: `Choices(size="64x48", classes="cat,dog").classes`.

    Raises:
        PackingError: An option is invalid; the message names it and the accepted values.
        TypeError: There is no option of that name.
    """

    def __init__(self, **options: Unpack[PushOptions]) -> None:
        unknown = sorted(options.keys() - PushOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"Unknown option {unknown[0]!r}. The options are {', '.join(PushOptions.__annotations__)}.")
        self._options = options
        self.table_encoding = options.get("table_encoding")
        self.zip_encoding = options.get("zip_encoding")
        size, labels, attribute = options.get("size"), options.get("labels"), options.get("attribute")
        self.size = None if size is None else _size(size)
        self.grey = options.get("grey", False)
        self.classes = _classes(options.get("classes"), self.table_encoding)
        self.labels = None if labels is None else Path(labels)
        self.attributes = tuple(name.strip() for name in attribute.split(",")) if attribute else ()
        self.split = options.get("split")
        self.file_column, self.label_column = options.get("file_column"), options.get("label_column")
        self.subject_column = options.get("subject_column")
        self.combinations = options.get("combinations", False)
        self.skip_unlabelled = options.get("skip_unlabelled", False)
        self.used_classes = options.get("used_classes", False)
        self.skip_broken = options.get("skip_broken", False)
        self.scale = read_scale(options.get("depth"), options.get("window"))
        self.all_frames = _one_of("frames", options.get("frames") or "first", ("first", "all")) == "all"
        self.subject_tag, self.label_tag = options.get("subject_tag") or SUBJECT_TAG_USUAL, options.get("label_tag")
        slices = options.get("slices")
        self.slices = None if slices is None else cast(Axis, _one_of("slices", slices, get_args(Axis)))
        self.every = options.get("every")
        if self.every is not None and self.every < 1:
            raise PackingError(f"--every is 1 or more, not {self.every}.")
        renames = options.get("rename_classes")
        self.renamed = None if renames is None else read_renames(Path(renames), self.table_encoding)
        self.join_subjects = options.get("join_subjects", False)
        self.subjects_key = read_secret(options.get("subjects_key"))

    def replace(self, **options: Unpack[PushOptions]) -> Choices:
        """Return a copy with these options changed."""
        return Choices(**(self._options | options))

    @property
    def touch_every_image(self) -> bool:
        """Return whether every image must be re-encoded, even if all have the right size."""
        changed = self.size is not None or self.grey or self.renamed is not None
        return changed or self.join_subjects or self.subjects_key is not None


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise PackingError(f"--{name} is {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}.")
    return value


def read_secret(path: str | Path | None) -> bytes | None:
    """Read the secret of a file. Never create one: under a new secret, known subjects would count as new."""
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
