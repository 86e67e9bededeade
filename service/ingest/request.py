"""What the ingest process is asked to do: declared, public facts, two paths, and the keys of what lies there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME, ArrayFile, context_of
from service.ingest.limits import IngestLimits

FORMATS = ("zip", "npz", "idx")


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """One upload to validate against its declaration.

    `records_declared` is an upper bound. It is what `delta <= 1/n` and the plans are computed from, so more records
    are refused; fewer are allowed, and how many fewer stays inside the private zone. `subjects_declared` bounds the
    subjects likewise; content carries subject ids exactly when it is given.

    `source` is sealed under `source_key`, which is forgotten after this upload; the arrays in `target` are sealed under
    `target_key`, the dataset's own. So nothing readable touches the disk.
    """

    dataset_id: str
    source: Path
    target: Path
    format: str
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    records_declared: int
    limits: IngestLimits
    source_key: bytes = field(repr=False)
    target_key: bytes = field(repr=False)
    subjects_declared: int | None = None

    def __post_init__(self) -> None:
        """Refuse a request that no declaration could have produced."""
        if self.format not in FORMATS:
            raise ValueError(f"format is one of {', '.join(FORMATS)}")
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise ValueError("classes is a list of distinct names")
        if self.channels not in (1, 3) or min(self.height, self.width, self.records_declared) < 1:
            raise ValueError("height, width and records_declared are positive, channels is 1 or 3")
        if self.subjects_declared is not None and not 1 <= self.subjects_declared <= self.records_declared:
            raise ValueError("subjects_declared is between 1 and records_declared")

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one stored image: (height, width), or (height, width, 3) for colour."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)

    @property
    def record_bytes(self) -> int:
        """Bytes of one stored image (uint8)."""
        return self.height * self.width * self.channels

    @property
    def records_max(self) -> int:
        """The most records that the content may hold."""
        return min(self.records_declared, self.limits.records_max, self.limits.stored_bytes_max // self.record_bytes)

    @property
    def array_names(self) -> tuple[str, ...]:
        """The files that an accepted upload becomes, in alphabetical order."""
        return (
            (IMAGES_NAME, LABELS_NAME) if self.subjects_declared is None else (IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME)
        )

    def create_array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> ArrayFile:
        """Create one of the arrays in the target folder."""
        path = self.target / f"{name}{SEALED_SUFFIX}"
        return ArrayFile(path, shape, dtype, key=self.target_key, context=context_of(self.dataset_id, name))

    def to_json(self) -> str:
        """Return the request as the text that the ingest process reads."""
        texts = {"source": str(self.source), "target": str(self.target)}
        keys = {"source_key": self.source_key.hex(), "target_key": self.target_key.hex()}
        return json.dumps(asdict(self) | texts | keys)

    @classmethod
    def from_json(cls, text: str) -> IngestRequest:
        """Rebuild a request from `to_json`."""
        values: dict[str, Any] = json.loads(text)
        return cls(
            **values
            | {
                "source": Path(values["source"]),
                "target": Path(values["target"]),
                "classes": tuple(values["classes"]),
                "limits": IngestLimits(**values["limits"]),
                "source_key": bytes.fromhex(values["source_key"]),
                "target_key": bytes.fromhex(values["target_key"]),
            }
        )
