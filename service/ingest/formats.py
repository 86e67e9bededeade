"""The ways to send a dataset: a line here, the rules in `faults`, and the module that reads it."""

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
    """One way to send a dataset.

    Attributes:
        name: As in `format=npz`.
        title: For people.
        module: Whose `ingest(file, request)` writes the arrays of an upload, or raises Refused with the broken rule.
    """

    name: str
    title: str
    module: str

    def load(self) -> Ingest:
        """Return `ingest`. The reading process alone loads it: no other one needs the decoders."""
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
    """Return a format.

    Raises:
        InvalidInput: No format has that name.
    """
    if name not in FORMATS:
        raise InvalidInput(f"Unknown format. Send one of {', '.join(FORMATS)}.", formats=list(FORMATS))
    return FORMATS[name]


def titles() -> str:
    """Return what may be sent, in words: "this, that, or something else"."""
    *first, last = [known.title for known in FORMATS.values()]
    return f"{', '.join(first)}, or {last}"
