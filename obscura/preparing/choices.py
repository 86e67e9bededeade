"""The options of a push: how images are read and converted."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from obscura.errors import PackingError
from obscura.preparing.depth import Scale, read_scale
from obscura.preparing.tables import BOMS, read_lines, read_renames

SIDE_MIN, SIDE_MAX = 8, 256  # side of the images that generators are designed for
# The default for image files of any size. Training adds noise to every number that it learns, and larger images have
# more of these. At 32 x 32 and epsilon 1 the content stays recognisable, and two cores train in minutes.
SIDE_USUAL = 32

Size = tuple[int, int]  # width, height
Axis = Literal["axial", "coronal", "sagittal"]
Function = TypeVar("Function", bound=Callable[..., Any])
SECRET_BYTES_MIN = 32
SUBJECT_TAG_USUAL, NO_TAG = "PatientID", "none"


def read_secret(path: str | Path | None) -> bytes | None:
    """Read a secret from a file. A missing file is an error: with a new secret, known subjects would count as new."""
    if path is None:
        return None
    try:
        data = Path(path).read_bytes()
    except OSError:
        data = b""
    encoding = next((encoding for mark, encoding in BOMS if data.startswith(mark)), None)
    if encoding is not None:
        with suppress(UnicodeError):  # saving the file in an editor must not change the secret
            data = data.decode(encoding).encode("ascii")
    secret = data.strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise PackingError(
            f"--subjects-key must name a file with a secret of at least {SECRET_BYTES_MIN} bytes. Create it once, for "
            f"example with openssl rand -hex 32 > {path}, and keep it: with a new secret, known subjects count as new."
        )
    return secret


class ImageOptions(TypedDict, total=False):
    """Types of the options of `Choices` for Python callers, except `labels`, which `train` takes as an argument."""

    table_encoding: str
    zip_encoding: str
    classes: str | Sequence[str]
    split: str
    size: int | str | Size
    grey: bool
    attribute: str | Sequence[str]
    file_column: str
    label_column: str
    subject_column: str
    combinations: bool
    skip_unlabelled: bool
    used_classes: bool
    skip_broken: bool
    depth: str | int
    window: str | Sequence[float]
    frames: Literal["first", "all"]
    subject_tag: str
    label_tag: str
    slices: Axis
    every: int
    rename_classes: str | Path
    join_subjects: bool
    subjects_key: str | Path


def named_options(function: Function) -> Function:
    """Name every option of `**options: Unpack[ImageOptions]` in a signature, for `help()` and completion."""
    signature, kind = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
    known = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    hints = ImageOptions.__annotations__.items()
    named = [inspect.Parameter(name, kind, default=None, annotation=hint.__forward_arg__) for name, hint in hints]
    function.__signature__ = signature.replace(parameters=[*known, *named])  # type: ignore[attr-defined]
    return function


class Choices(BaseModel, extra="forbid", frozen=True):
    """The options of a push, parsed: `Choices(size="64x48", classes="cat,dog").size` is (64, 48).

    Each field is a keyword argument of `datasets.push` and `train`, typed in `ImageOptions`. It is also a flag of
    `obscura datasets push` and `obscura quickstart`, parsed as the type in its annotation.

    Raises:
        PackingError: An option is invalid; the message states its name and the accepted values.
        TypeError: An option has an unknown name.
    """

    table_encoding: str | None = Field(
        None, description="Encoding of tables and lists that are not in UTF-8: latin-1, cp1250, ..."
    )
    zip_encoding: str | None = Field(
        None, description="Encoding of file names, if a ZIP does not state it: cp850, cp936, ..."
    )
    classes: Annotated[tuple[str, ...] | None, str] = Field(
        None, description="Class names in label order, separated by commas; or a .txt or .csv file with one per line."
    )
    split: str | None = Field(
        None, description="Part to use of a dataset with several parts, such as train (default), test or t10k."
    )
    size: Annotated[Size | None, str] = Field(
        None,
        description=f"Scale and crop every image to 64 x 64 (64) or to width x height (64x48), {SIDE_MIN} to "
        f"{SIDE_MAX} pixels each. Default: {SIDE_USUAL} for image files, their own size for arrays.",
    )
    grey: bool | None = Field(
        None, description="Declare grey or colour images. Default: grey for DICOM and NIfTI, colour for image files."
    )
    labels: Path | None = Field(
        None, description="Table of images and their classes, used instead of class folders: CSV or JSON lines."
    )
    attribute: Annotated[tuple[str, ...], str] = Field(
        (),
        description="Labels to use as classes in multi-label data. One label makes two classes, with and without it. "
        "Several, such as MEL,NV,BCC, make one class each.",
    )
    file_column: str | None = Field(None, description="Column of the table that names the images.")
    label_column: str | None = Field(None, description="Column of the table that contains the classes.")
    subject_column: str | None = Field(None, description="Column of the table that contains the subject ids.")
    combinations: bool = Field(False, description="Make a class of every combination of labels in multi-label data.")
    skip_unlabelled: bool = Field(False, description="Leave out images without a label.")
    used_classes: bool = Field(False, description="Leave out numeric classes that no image has.")
    skip_broken: bool = Field(False, description="Leave out images that cannot be read.")
    depth: str | int | None = Field(
        None, description="Bits that the device stores per grey pixel, such as 12 in 16-bit files."
    )
    window: str | Sequence[float] | None = Field(
        None,
        description="Grey values that become black and white, such as -160,240; or auto, the window stored in each "
        "DICOM or NIfTI file.",
    )
    frames: Annotated[Literal["first", "all"], str] = Field(
        "first", description="Frames of a multi-frame DICOM file: first (default) or all."
    )
    subject_tag: str = Field(
        SUBJECT_TAG_USUAL,
        description=f"DICOM tag with the subject id, {SUBJECT_TAG_USUAL} by default; or {NO_TAG}, if no tag has it.",
    )
    label_tag: str | None = Field(None, description="DICOM tag with the class, used instead of class folders.")
    slices: Annotated[Axis | None, str] = Field(
        None, description="Axis along which NIfTI volumes are sliced: axial, coronal or sagittal."
    )
    every: int | None = Field(
        None, ge=1, description="Take every n-th slice of a NIfTI volume. Default: the middle slice only."
    )
    rename_classes: Annotated[dict[str, str] | None, Path] = Field(
        None, description="Table of new class names, with the columns old and new."
    )
    join_subjects: bool = Field(
        False,
        description="Treat ids that differ only in case, spacing, leading zeros or Unicode form as the same person.",
    )
    subjects_key: Annotated[bytes | None, Path] = Field(
        None,
        repr=False,
        description="File with your own secret. Subjects are recognised in all datasets pushed with it; their ids stay "
        "on this machine.",
    )

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**{name: value for name, value in options.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            if first["type"] == "extra_forbidden":
                listed = ", ".join(type(self).model_fields)
                raise TypeError(f"Unknown option {name!r}. The options are {listed}.") from None
            raise PackingError(f"--{name.replace('_', '-')}: {first['msg']}, not {first['input']!r}.") from None
        read_scale(self.depth, self.window)

    @property
    def scale(self) -> Scale:
        return read_scale(self.depth, self.window)

    @field_validator("classes", mode="before")
    @classmethod
    def _read_classes(cls, names: str | Sequence[str], info: ValidationInfo) -> tuple[str, ...]:
        if isinstance(names, str) and names.endswith((".txt", ".csv")):
            names = read_lines(Path(names), info.data["table_encoding"])
        stated = tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))
        if not stated or len(set(stated)) < len(stated):
            raise PackingError("--classes must name each class exactly once, in label order, separated by commas.")
        return stated

    @field_validator("size", mode="before")
    @classmethod
    def _read_size(cls, size: str | int | Size) -> Size:
        text = "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
        found = re.fullmatch(r"\s*(\d{1,6})(?:\s*[xX×]\s*(\d{1,6}))?\s*", text)
        if found is None:
            raise PackingError(
                f"--size takes a number of pixels, such as 64, or width x height, such as 64x48; not {text!r}."
            )
        width, height = int(found[1]), int(found[2] or found[1])
        if not fits(width, height):
            raise PackingError(f"--size takes sides of {SIDE_MIN} to {SIDE_MAX} pixels, not {width} x {height}.")
        return width, height

    @field_validator("attribute", mode="before")
    @classmethod
    def _read_attribute(cls, names: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in names.split(",")) if names else ()

    @field_validator("rename_classes", mode="before")
    @classmethod
    def _read_renames(cls, path: str | Path, info: ValidationInfo) -> dict[str, str]:
        return read_renames(Path(path), info.data["table_encoding"])

    _read_secret = field_validator("subjects_key", mode="before")(read_secret)


def fits(width: int, height: int) -> bool:
    return min(width, height) >= SIDE_MIN and max(width, height) <= SIDE_MAX
