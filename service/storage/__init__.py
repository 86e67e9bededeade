"""Where files are kept: data sets, checkpoints, journals, releases, samples, receipts and the trash.

Everything else that lies on a disk is this machine's own: keys, logs, extractors, quarantine, a job's scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from obscura.extras import MissingExtra, extras
from service.errors import InvalidInput
from service.settings import Settings
from service.storage.folder import FolderStorage
from service.storage.interface import Storage


@lru_cache(maxsize=4)
def _bucket(url: str, folder: Path) -> Storage:
    try:
        with extras("A storage elsewhere (OBSCURA_STORAGE)"):
            from service.storage.s3.storage import S3Storage
    except MissingExtra as error:
        raise InvalidInput(str(error)) from None
    return S3Storage(url, folder)


BACKENDS: dict[str, Callable[[Settings], Storage]] = {
    "folder": lambda settings: FolderStorage(settings.data_dir),
    "s3": lambda settings: _bucket(settings.storage, settings.local_path / "storage"),
}


def is_elsewhere(settings: Settings) -> bool:
    """Tell whether machines share the storage only: no folder, so that each has keys of its own or none."""
    return settings.storage != "folder"


def storage_of(settings: Settings) -> Storage:
    """Return the storage that the operator has chosen.

    Raises:
        InvalidInput: no storage has that name.
    """
    make = BACKENDS.get(settings.storage.partition("://")[0])
    if make is None:
        raise InvalidInput(f"OBSCURA_STORAGE is {settings.storage}; there are {', '.join(BACKENDS)}.")
    return make(settings)
