"""Where files are kept: data sets, checkpoints, journals, releases, samples, receipts and the trash.

Everything else that lies on a disk is this machine's own: keys, logs, extractors, quarantine, a job's scratch.
"""

from __future__ import annotations

from collections.abc import Callable

from service.errors import InvalidInput
from service.settings import Settings
from service.storage.folder import FolderStorage
from service.storage.interface import Storage

BACKENDS: dict[str, Callable[[Settings], Storage]] = {
    "folder": lambda settings: FolderStorage(settings.data_dir),
}


def storage_of(settings: Settings) -> Storage:
    """Return the storage that the operator has chosen.

    Raises:
        InvalidInput: no storage has that name.
    """
    make = BACKENDS.get(settings.storage)
    if make is None:
        raise InvalidInput(f"OBSCURA_STORAGE is {settings.storage}; there are {', '.join(BACKENDS)}.")
    return make(settings)
