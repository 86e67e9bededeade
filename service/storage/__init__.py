"""Storage for files that outlive processes: datasets, checkpoints, journals, releases, samples, receipts, the trash.

`storage_of` returns the configured storage; `interface` defines its methods, and `journals` the proofs of spending.
Encryption keys, logs, extractors, quarantine and scratch folders belong to one machine and never enter the storage.
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
        with extras("A remote storage (OBSCURA_STORAGE)"):
            from service.storage.s3.storage import S3Storage
    except MissingExtra as error:
        raise InvalidInput(str(error)) from None
    return S3Storage(url, folder)


BACKENDS: dict[str, Callable[[Settings], Storage]] = {
    "folder": lambda settings: FolderStorage(settings.data_dir),
    "s3": lambda settings: _bucket(settings.storage, settings.data_dir / "storage"),
}


def is_elsewhere(settings: Settings) -> bool:
    """Return whether the storage is remote. Then machines share no folder, and each has its own keys."""
    return settings.storage != "folder"


def storage_of(settings: Settings) -> Storage:
    """Return the storage that OBSCURA_STORAGE names; raise InvalidInput if it is unknown."""
    make = BACKENDS.get(settings.storage.partition("://")[0])
    if make is None:
        raise InvalidInput(f"OBSCURA_STORAGE is {settings.storage}; choose one of {', '.join(BACKENDS)}.")
    return make(settings)
