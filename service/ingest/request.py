"""What the reading process is asked to do: a declaration, the limits, two paths, and the keys of what lies there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from obscura.wire.formats import UPLOAD_RECORDS_MAX
from service.errors import InvalidInput

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds on one upload, and on the process that reads it. All are public settings, so messages may name them.

    The compression ratio is judged above a slack: small files of flat colour compress very well and harm nobody.
    Real pictures stay far below 100; deflate can reach 1,032.
    """

    upload_bytes_max: int = 2048 * MEBIBYTE
    records_max: int = UPLOAD_RECORDS_MAX
    entries_max: int = 2_010_000
    entry_bytes_max: int = 32 * MEBIBYTE
    expanded_bytes_max: int = 16_384 * MEBIBYTE
    stored_bytes_max: int = 16_384 * MEBIBYTE
    ratio_max: int = 100
    entry_slack_bytes: int = MEBIBYTE // 4
    array_slack_bytes: int = 16 * MEBIBYTE
    name_bytes_max: int = 512
    subject_characters_max: int = 64
    pixels_max: int = 2048 * 2048
    memory_bytes_max: int = 3072 * MEBIBYTE
    processor_seconds_max: int = 900
    wall_seconds_max: int = 1800
    open_files_max: int = 64


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is public about a dataset, to which its content is held.

    `records_declared` is an upper bound: more records are refused. Fewer are allowed, and how many fewer stays inside
    the private zone; every price and every `delta <= 1/n` is computed from the declared number. `subjects_declared`
    bounds the subjects likewise; content carries subject ids exactly when it is given. With `subjects_recognised` the
    same id is the same subject in other datasets, too.

    Raises:
        InvalidInput: It contradicts itself.
    """

    dataset_id: str
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    records_declared: int
    subjects_declared: int | None = None
    subjects_recognised: bool = False

    def __post_init__(self) -> None:
        """Refuse what no content could keep."""
        wrong = None
        if not self.classes or len(set(self.classes)) != len(self.classes):
            wrong = "classes is a list of distinct names"
        if self.channels not in (1, 3) or min(self.height, self.width, self.records_declared) < 1:
            wrong = "height, width and records_declared are positive, channels is 1 or 3"
        if self.subjects_declared is not None and not 1 <= self.subjects_declared <= self.records_declared:
            wrong = "subjects_declared is between 1 and records_declared"
        if self.subjects_recognised and self.subjects_declared is None:
            wrong = "subjects that are recognised are declared"
        if wrong is not None:
            raise InvalidInput(f"The declaration cannot be right: {wrong}.")

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one stored image: (height, width), or (height, width, 3) for colour."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)

    @property
    def record_bytes(self) -> int:
        """Bytes of one stored image (uint8)."""
        return self.height * self.width * self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRequest(Declaration):
    """One upload to validate against its declaration.

    `source` is sealed under `source_key`, which is forgotten after this upload; the arrays in `target` are sealed under
    `target_key`, the dataset's own. So nothing readable touches the disk.
    """

    source: Path
    target: Path
    format: str
    limits: IngestLimits
    source_key: bytes = field(repr=False)
    target_key: bytes = field(repr=False)

    @property
    def records_max(self) -> int:
        """The most records that the content may hold."""
        return min(self.records_declared, self.limits.records_max, self.limits.stored_bytes_max // self.record_bytes)

    def to_json(self) -> str:
        """Return the request as the text that the reading process is given."""
        texts = {"source": str(self.source), "target": str(self.target)}
        keys = {"source_key": self.source_key.hex(), "target_key": self.target_key.hex()}
        return json.dumps(asdict(self) | texts | keys)

    @classmethod
    def from_json(cls, text: str) -> IngestRequest:
        """Rebuild a request from `to_json`."""
        values: dict[str, Any] = json.loads(text)
        paths = {name: Path(values[name]) for name in ("source", "target")}
        keys = {name: bytes.fromhex(values[name]) for name in ("source_key", "target_key")}
        rest = {"classes": tuple(values["classes"]), "limits": IngestLimits(**values["limits"])}
        return cls(**values | paths | keys | rest)
