"""The upload formats. To add one, add a line here, its rules in `faults`, and a module that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import BinaryIO

from service.errors import InvalidInput
from service.ingest.request import IngestRequest

Ingest = Callable[[BinaryIO, IngestRequest], None]


@dataclass(frozen=True, slots=True)
class UploadFormat:
    """A format. Its module has `ingest(file, request)`, which writes the arrays of an upload or raises Refused."""

    name: str
    title: str
    module: str

    def load(self) -> Ingest:
        """Return the module's `ingest`. Only the confined process loads it and its decoders."""
        ingest: Ingest = import_module(self.module).ingest
        return ingest


FORMATS = {
    known.name: known
    for known in (
        UploadFormat("zip", "zip of class folders", "service.ingest.pictures"),
        UploadFormat("npz", "npz", "service.ingest.npz"),
        UploadFormat("idx", "a zip of IDX files", "service.ingest.idx"),
    )
}


def format_named(name: str) -> UploadFormat:
    """Return a format by name; raise InvalidInput for an unknown name."""
    if name not in FORMATS:
        raise InvalidInput(f"Unknown format. Send one of {', '.join(FORMATS)}.", formats=list(FORMATS))
    return FORMATS[name]


def titles() -> str:
    """Return the titles of all formats as text, such as "A, B, or C"."""
    *first, last = [known.title for known in FORMATS.values()]
    return f"{', '.join(first)}, or {last}"
