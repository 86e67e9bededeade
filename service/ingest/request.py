"""The request to the confined process, and the upload formats.

To add a format, add a line to `FORMATS`, its rules in `faults`, and a module that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from obscura.wire.formats import UPLOAD_RECORDS_MAX, UploadFit

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds on one upload and the process that reads it. All are public, so messages may name them.

    The compression ratio is checked only for files above a minimum size, because small flat images compress very well.
    Real images are far below a ratio of 100; deflate can reach 1,032.
    """

    upload_bytes_max: int = 2048 * MEBIBYTE
    records_max: int = UPLOAD_RECORDS_MAX
    entries_max: int = 2_010_000
    entry_bytes_max: int = 32 * MEBIBYTE
    decoded_bytes_max: int = 16_384 * MEBIBYTE
    ratio_max: int = 100
    entry_slack_bytes: int = MEBIBYTE // 4
    array_slack_bytes: int = 16 * MEBIBYTE
    name_bytes_max: int = 512
    subject_characters_max: int = 64
    pixels_max: int = 2048 * 2048
    memory_bytes_max: int = 3072 * MEBIBYTE
    seconds_max: int = 1800
    open_files_max: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest:
    """One upload to validate against its public declaration.

    `records_declared` is an upper bound, from which costs are computed; the true number is private.
    `subjects_declared` is the same bound for subjects; content has subject ids if and only if it is set. With
    `subjects_recognised`, an id means the same subject in all datasets. `source` is sealed under a temporary key, the
    arrays in `target` under the dataset's key.
    """

    dataset_id: str
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    records_declared: int
    subjects_declared: int | None = None
    subjects_recognised: bool = False
    source: Path
    target: Path
    format: str
    fit: UploadFit = "exact"
    limits: IngestLimits
    source_key: bytes = field(repr=False)
    target_key: bytes = field(repr=False)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one stored image: (height, width), or (height, width, 3) for colour."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)

    @property
    def record_bytes(self) -> int:
        """The size in bytes of one stored image (uint8)."""
        return self.height * self.width * self.channels

    @property
    def records_max(self) -> int:
        """The largest allowed number of records: the declared number, or less if a limit of the service is lower."""
        return min(self.records_declared, self.limits.records_max, self.limits.decoded_bytes_max // self.record_bytes)

    def to_json(self) -> str:
        """Return the request as JSON."""
        return json.dumps(asdict(self), default=lambda value: value.hex() if isinstance(value, bytes) else str(value))

    @classmethod
    def from_json(cls, text: str) -> IngestRequest:
        """Rebuild a request from `to_json`."""
        values: dict[str, Any] = json.loads(text)
        paths = {name: Path(values[name]) for name in ("source", "target")}
        keys = {name: bytes.fromhex(values[name]) for name in ("source_key", "target_key")}
        rest = {"classes": tuple(values["classes"]), "limits": IngestLimits(**values["limits"])}
        return cls(**values | paths | keys | rest)


Ingest = Callable[[BinaryIO, IngestRequest], None]


class UploadFormat(NamedTuple):
    """A format. Its module has `ingest(file, request)`, which writes the arrays of an upload or raises Refused."""

    title: str
    module: str

    def load(self) -> Ingest:
        """Return the module's `ingest`. Only the confined process loads it and its decoders."""
        ingest: Ingest = import_module(self.module).ingest
        return ingest


FORMATS = {
    "zip": UploadFormat("zip of class folders", "service.ingest.pictures"),
    "npz": UploadFormat("npz", "service.ingest.npz"),
    "idx": UploadFormat("a zip of IDX files", "service.ingest.idx"),
}


def titles() -> str:
    """Return the titles of all formats as text, such as "A, B, or C"."""
    *first, last = [known.title for known in FORMATS.values()]
    return f"{', '.join(first)}, or {last}"
