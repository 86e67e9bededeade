"""Detect the format of a folder or file: a layout of this package, a table of labels, or class folders.

Start at `find_source`, which asks every layout: a module whose `find` or `find_tree` returns None for other formats.
Layouts read images one at a time, and never write or send anything.
"""

from __future__ import annotations

from pathlib import Path

from obscura.errors import PackingError
from obscura.preparing.choices import Choices
from obscura.preparing.folders import class_folders
from obscura.preparing.labelled import ask_for_table, find_table, labelled_by_table
from obscura.preparing.layouts import arrays, dicom, idx, nifti, parquet, webdataset
from obscura.preparing.sources import Source
from obscura.preparing.tables import usual_columns
from obscura.preparing.trees import FolderTree, open_archive

_NO_ATTRIBUTE = (
    "--attribute is for tables and arrays with several labels per image, but here every image has one class. Leave "
    "--attribute out, or name a table of labels with --labels."
)


def find_source(path: Path, choices: Choices, *, subjects: bool | None) -> Source:
    """Return the source of a folder or file from the first layout that recognises it; see `prepare`."""
    if not path.exists():
        raise PackingError(
            f"{path} does not exist. Give the folder or file of the images: obscura datasets push FOLDER"
        )
    if path.name.casefold() == "dicomdir" and path.is_file():
        path = path.parent
    if choices.labels is None:
        finds = (idx.find, arrays.find, parquet.find, webdataset.find)
        attempts = (find(path, choices, bool(subjects)) for find in finds)
        source = next(filter(None, attempts), None)
        if source is not None:
            if choices.attribute and not source.title.startswith(("Arrays", "Hugging Face")):
                raise PackingError(_NO_ATTRIBUTE)
            return source
    tree = FolderTree(path) if path.is_dir() else open_archive(path, choices.zip_encoding)
    if tree is None:
        raise PackingError(
            f"{path.name} has an unsupported format. Give a folder of images, an archive of such a folder (.zip, .tar, "
            ".tar.gz), or an .npz, IDX or Parquet file."
        )
    source = parquet.find_tree(tree, choices, bool(subjects)) if choices.labels is None else None
    if source is not None:
        return source
    described = find_table(tree, choices)
    if described is not None:
        table, at, part = described
        scanned = dicom.is_in(tree)
        tagged = scanned and choices.subject_column is None and not usual_columns("subject", table.columns)
        whose = None if subjects and tagged else subjects
        source = labelled_by_table(tree, table, choices, subjects=whose, at=at, part=part)
        return dicom.with_owners(source, choices, subjects=subjects) if scanned else source
    if choices.attribute:
        raise PackingError(_NO_ATTRIBUTE)
    scans, volumes = (find(tree, choices, subjects=subjects) for find in (dicom.find_tree, nifti.find_tree))
    if scans and volumes:
        raise PackingError(f"{tree.name} contains DICOM files and NIfTI volumes: push them as two datasets.")
    if not scans and not volumes:
        ask_for_table(tree, choices)
    return scans or volumes or class_folders(tree, choices, subjects=subjects)
