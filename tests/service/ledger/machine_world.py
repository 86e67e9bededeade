"""What every example begins with: two accounts with a dataset each, three keys of two admins, and what things cost."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

from obscura.wire.words import Admission, DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.errors import PrivacyError
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from service import ledger
from service.db.access_tables import Admin, ApiKey
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory, transaction
from tests.service.ledger.model_jobs import Model

BEGINNING = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
CLASSES = ("boot", "coat", "shirt")
RECORDS = 60_000
DELTA = 1e-5
LIMITS = (1.0, 0.5, 0.7, 0.3, 1.5)  # what accounts open with, and what they are lowered and raised to
EPSILONS = (0.3, 0.5, 0.7, 0.1)  # what trainings ask for
ADMINS = {"key_one": "adm_one", "key_two": "adm_two", "key_too_of_one": "adm_one"}


def populate(factory: SessionFactory, model: Model, accounts: int, now: datetime) -> None:
    """Open accounts with a dataset each, in the database and in the model."""
    model.people |= ADMINS
    with transaction(factory) as session:
        created_at = now - timedelta(days=1)
        for person in sorted(set(ADMINS.values())):
            session.add(Admin(id=person, name=person, admission=Admission.MACHINE, admitted_at=created_at))
        session.flush()
        for key, person in ADMINS.items():
            session.add(ApiKey(id=key, name=key, hash="", scopes=["admin"], admin_id=person, created_at=created_at))
            session.flush()
        for position in range(accounts):
            account = ledger.open_account(
                session,
                name=f"account {position}",
                owner="clinic",
                epsilon=1.0,
                delta=DELTA,
                unit="record",
                adjacency="add_remove",
                now=now,
            )
            dataset = _dataset(account.id, now)
            session.add(dataset)
            model.datasets[dataset.id] = account.id
            model.price = price
            model.open_account(account_id=account.id, epsilon=LIMITS[0], delta=DELTA)


@functools.cache
def price(opened: Filter, epsilon: float) -> tuple[int, int] | None:
    """Return (budget, price) of a training; None where no plan can be made."""
    unit = ledger.Unit.RECORD.value
    facts = PublicFacts(classes=CLASSES, height=28, width=28, channels=1, records_declared=RECORDS, unit=unit)
    try:
        budget_nano = opened.nano_of(epsilon)
        return budget_nano, build_plan("datalens", {}, opened, budget_nano, facts).price_nano
    except PrivacyError:
        return None


def _dataset(account_id: str, now: datetime) -> Dataset:
    return Dataset(
        id=new_id("ds"),
        account_id=account_id,
        name="pictures",
        visibility=Visibility.PRIVATE,
        classes=list(CLASSES),
        height=28,
        width=28,
        channels=1,
        records_declared=RECORDS,
        state=DatasetState.READY,
        content_sha256="0" * 64,
        content_bytes=1,
        created_at=now,
        ready_at=now,
    )
