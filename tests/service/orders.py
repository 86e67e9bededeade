"""Orders of jobs, as the tests place them."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service import jobs


def submit_training(session: Session, dataset_id: str, now: datetime, **changes: Any) -> str:
    """Ask for a training by DataLens at epsilon 1, where nothing else is said; returns the job's id."""
    order: dict[str, Any] = {"recipe": "datalens", "epsilon": 1.0, "options": {}, "evaluation_dataset_id": None}
    order |= {"principal": "key_test", "idempotency_key": None, "dataset_id": dataset_id, "now": now}
    return jobs.submit_training(session, **order | changes).id
