"""The layouts in which well-known data sets are handed out, each recognised by the files that it has.

`find_layout(path, choices, subjects=...)` returns a source, or None where the files are nothing of that kind.
"""

from __future__ import annotations

from pathlib import Path

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.layouts import celeba, cifar10, idx, npz, parquet, places365, svhn, webdataset
from obscura.preparing.sources import Source

_OF_FOLDERS = (idx.find, cifar10.find, svhn.find, celeba.find, places365.find, webdataset.find)
_OF_FILES = (idx.find_file, npz.find_file, svhn.find_file, parquet.find_file, webdataset.find_file)


def find_layout(path: Path, choices: Choices, *, subjects: bool) -> Source | None:
    """Recognise a layout.

    Raises:
        PackingError: It is one, and something of it is missing or damaged.
    """
    if path.is_dir():
        attempts = (find(path, choices, subjects) for find in _OF_FOLDERS)
    else:
        attempts = (find(path, choices, subjects) for find in _OF_FILES)
    found = next((source for source in attempts if source is not None), None)
    if choices.attributes and found is not None and not found.title.startswith(("CelebA", "Arrays", "Hugging Face")):
        refuse_attribute()
    return found


def refuse_attribute() -> None:
    """Refuse an attribute where pictures have one label each.

    Raises:
        PackingError: Always.
    """
    raise PackingError(
        "--attribute is for CelebA, which is a folder with list_attr_celeba.txt, and for tables and arrays with "
        "several labels of a picture."
    )
