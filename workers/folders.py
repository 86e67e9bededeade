"""Where an attempt keeps its unfinished work, and the identifier under which its job will publish."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from service.db.base import ID_RANDOM_CHARACTERS


def work_root(data_dir: Path) -> Path:
    """Return the folder above all work folders. What lies there may be private and is never served."""
    return data_dir / "work"


def work_directory(data_dir: Path, job_id: str) -> Path:
    """Return the work folder of a job, shared by its attempts, readable by this user alone; made when missing."""
    path = work_root(data_dir) / job_id
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def release_id_of(job_id: str) -> str:
    """Return the identifier of the release that a training publishes.

    It follows from the job, so an attempt that comes after a crash finds the artifact of the attempt before it.
    """
    digest = hashlib.sha256(f"obscura/release/{job_id}".encode()).digest()
    return "rel_" + base64.b32encode(digest).decode("ascii").lower()[:ID_RANDOM_CHARACTERS]
