"""Orders of jobs, and a release with its files, as the tests make them."""

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service import jobs
from service.storage.interface import digest_directory
from tests.service.audit.book import LedgerBook


def submit_training(session: Session, dataset_id: str, now: datetime, **changes: Any) -> str:
    """Ask for a training by DataLens at epsilon 1, where nothing else is said; returns the job's id."""
    order: dict[str, Any] = {"recipe": "datalens", "epsilon": 1.0, "options": {}, "evaluation_dataset_id": None}
    order |= {"principal": "key_test", "idempotency_key": None, "dataset_id": dataset_id, "now": now}
    return jobs.submit(session, jobs.KINDS["train"], **order | changes).id


def release_with_files(book: LedgerBook, account: str, **files: str) -> Path:
    """Train and publish files of these names, without their ends, as JSON; returns where they lie."""
    with tempfile.TemporaryDirectory() as made:
        for name, content in files.items():
            (Path(made) / f"{name}.json").write_text(content)
        job_id, hold_id = book.start(account)
        book.charge(hold_id, 1)
        receipt = book.publish(job_id, sha256=digest_directory(Path(made)))
        folder = book.data_dir / "releases" / receipt["statement"]["release_id"]
        shutil.copytree(made, folder)
    return folder
