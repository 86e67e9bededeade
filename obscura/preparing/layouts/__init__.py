"""Formats of datasets other than class folders, each recognised by its files."""

from __future__ import annotations

from pathlib import Path

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.layouts import idx, npz, parquet, webdataset
from obscura.preparing.sources import Source

_OF_FOLDERS = (idx.find, webdataset.find)
_OF_FILES = (idx.find_file, npz.find_file, parquet.find_file, webdataset.find_file)


def find_layout(path: Path, choices: Choices, *, subjects: bool) -> Source | None:
    """Return the source of the first layout that recognises the path, or None."""
    attempts = (find(path, choices, subjects) for find in (_OF_FOLDERS if path.is_dir() else _OF_FILES))
    found = next((source for source in attempts if source is not None), None)
    if choices.attribute and found is not None and not found.title.startswith(("Arrays", "Hugging Face")):
        refuse_attribute()
    return found


def refuse_attribute() -> None:
    """Raise because --attribute needs several labels per image."""
    raise PackingError(
        "--attribute is for tables and arrays with several labels per image; here every image has one class. Leave "
        "--attribute out, or name a table of labels with --labels."
    )
