"""A kind of job as small as one can be, with the server's and the worker's part in one file: it opens a dataset."""

from datetime import datetime

from sqlalchemy.orm import Session

from obscura.wire.schemas import ApiRequest, Identifier
from obscura.wire.words import JobState
from service import jobs
from service.datasets.vault import Vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import FailureCode, Job
from service.db.session import transaction
from service.identity.access import find
from service.jobs.endings import end_job, lock_attempt
from service.jobs.kind import Ask, Kind, Order
from service.jobs.submission import new_job, queue_job
from workers.train.orders import Context


class ToyRequest(ApiRequest):
    dataset_id: Identifier


def accept(session: Session, ask: Ask, *, dataset_id: str) -> Job:
    dataset = find(session, Dataset, dataset_id)
    columns = {"recipe": "", "options": {}, "dataset_id": dataset.id, "account_id": dataset.account_id}
    return queue_job(session, new_job(ask, KIND.name, **columns))


def run(context: Context) -> None:
    with transaction(context.factory, read_only=True) as session:
        dataset_id = jobs.get_job(session, context.attempt.job_id).dataset_id
    assert dataset_id is not None
    Vault.of(context.settings).open_dataset(dataset_id)
    context.end(finish)


def finish(session: Session, *, job_id: str, attempt: int, now: datetime) -> Job:
    job = lock_attempt(session, job_id, attempt, KIND.name, replay=JobState.SUCCEEDED)
    if job.state is JobState.RUNNING:
        end_job(session, job, JobState.SUCCEEDED, now=now)
    return job


KIND = Kind(
    name="toy",
    many="toys",
    title=lambda _job, _made: "Open a dataset",
    accept=accept,
    failed=FailureCode.INTERNAL,
    order=Order(path="/v1/toys", tag="jobs", summary="Play", description="Open a dataset.", request=ToyRequest),
    module=__name__,
)
