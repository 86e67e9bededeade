"""The formats of uploads: a line here, the rules in `faults`, and the module that reads one."""

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
    """A format, whose module has `ingest(file, request)`: it writes the arrays of an upload, or raises Refused."""

    name: str
    title: str
    module: str

    def load(self) -> Ingest:
        """Return `ingest`. Only the confined process loads it and its decoders."""
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
    """Return a format; raise InvalidInput if there is none of that name."""
    if name not in FORMATS:
        raise InvalidInput(f"Unknown format. Send one of {', '.join(FORMATS)}.", formats=list(FORMATS))
    return FORMATS[name]


def titles() -> str:
    """Return the titles as text: "this, that, or something else"."""
    *first, last = [known.title for known in FORMATS.values()]
    return f"{', '.join(first)}, or {last}"
