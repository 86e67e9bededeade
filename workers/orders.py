"""A training as it was accepted: its rows, and what follows from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from privacy.accounting.filters import Filter
from privacy.plans.plan import Plan, plan_from_json
from privacy.plans.registry import PublicFacts
from service import jobs, ledger
from service.datasets.vault import key_id_of, key_path, read_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import transaction
from service.db.words import DatasetState, EntryKind, Visibility
from service.errors import LedgerCorruption, NotFound
from service.jobs.planning import facts_of
from workers.context import Context

_PAGE_ROWS = 1000


@dataclass(frozen=True)
class Order:
    """One training. Everything in it is public but `secret`, which seeds the mechanism's noise."""

    job: Job
    account: ledger.Account
    dataset: Dataset
    anchors: Dataset | None
    plan: Plan
    facts: PublicFacts
    privacy_filter: Filter
    hold_id: str
    charged_nano: int
    secret: bytes = field(repr=False)


def read_order(context: Context, job_id: str) -> Order:
    """Read what a training needs to start; no private data is touched.

    Raises:
        StaleAttempt: another attempt has taken over.
        NotFound: the dataset's content is gone.
        LedgerCorruption: the job lacks what every training has, or it, or a dataset of it, is not what its hold was
            taken for.
    """
    with transaction(context.factory, read_only=True) as session:
        job = jobs.get_job(session, job_id)
        if job.account_id is None or job.dataset_id is None or job.hold_id is None:
            raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
        account = ledger.get_account(session, job.account_id)
        dataset = session.get_one(Dataset, job.dataset_id)
        if dataset.state is not DatasetState.READY:
            raise NotFound("The dataset has no content.", dataset_id=dataset.id)
        secret = jobs.secret_of(session, job_id=job.id, attempt=context.attempt.number)
        ledger.require_as_held(session, job, secret.hex())
        plan = plan_from_json(job.plan)
        anchors_id = plan.config.get("anchors_dataset_id")
        anchors = session.get_one(Dataset, anchors_id) if anchors_id else None
        if anchors is not None and anchors.visibility is not Visibility.PUBLIC:
            raise LedgerCorruption("The dataset of a job's anchors is not public.", job_id=job.id)
        if anchors is not None and anchors.unchecked:
            raise NotFound("The dataset of the anchors has not been compared with the private ones.")
        for used in (dataset, anchors):
            _require_its_key(context, used)
        return Order(
            job=job,
            account=account,
            dataset=dataset,
            anchors=anchors,
            plan=plan,
            facts=facts_of(dataset, account),
            privacy_filter=ledger.filter_of(account),
            hold_id=job.hold_id,
            charged_nano=ledger.get_hold(session, job.hold_id).charged_nano,
            secret=jobs.secret_of(session, job_id=job.id, attempt=context.attempt.number),
        )


def _require_its_key(context: Context, dataset: Dataset | None) -> None:
    """Refuse another key than the one that the content arrived under: other arrays might be sealed under it."""
    if dataset is None or dataset.vault_key_id is None:  # uploaded before keys had ids
        return
    key = read_key(key_path(context.settings, dataset.id))
    if key_id_of(key) != dataset.vault_key_id:
        raise LedgerCorruption("The key of a dataset is not the one that it was stored under.", dataset_id=dataset.id)


def charged_by_stage(session: Session, order: Order) -> Counter[str]:
    """Return the nano-units that all attempts of a training have charged, by stage, from the ledger's entries."""
    charged: Counter[str] = Counter()
    after = 0
    while rows := ledger.entries(session, order.account.id, after, _PAGE_ROWS):
        for entry in rows:
            if entry.kind is EntryKind.CHARGE and entry.hold_id == order.hold_id:
                charged[entry.details["stage"]] += entry.amount_nano
        after = rows[-1].sequence
    return charged
