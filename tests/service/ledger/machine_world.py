"""The beginning of every example: two accounts with a dataset each, three keys of two admins, and prices."""

import functools
from datetime import UTC, datetime, timedelta

from obscura.wire.words import Admission, Unit
from privacy.accounting.filter import Filter
from privacy.errors import PrivacyError
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from service import ledger
from service.db.access_tables import Admin, ApiKey
from service.db.session import SessionFactory, transaction
from tests.conftest import CLASSES, dataset_row
from tests.service.ledger.model_jobs import Model

BEGINNING = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
DELTA = 1e-5
LIMITS = (1.0, 0.5, 0.7, 0.3, 1.5)  # of a new account, and of later changes
EPSILONS = (0.3, 0.5, 0.7, 0.1)  # of trainings
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
            terms = {"epsilon": LIMITS[0], "delta": DELTA, "unit": "record", "adjacency": "add_remove"}
            account = ledger.open_account(session, name=f"account {position}", owner="clinic", now=now, **terms)
            dataset = dataset_row(account.id, now)
            session.add(dataset)
            model.datasets[dataset.id] = account.id
            model.price = price
            model.open_account(account_id=account.id, epsilon=LIMITS[0], delta=DELTA)


@functools.cache
def price(opened: Filter, epsilon: float) -> tuple[int, int] | None:
    """Return (budget, price) of a training; None if no plan is possible."""
    unit = Unit.RECORD.value
    facts = PublicFacts(classes=tuple(CLASSES), height=28, width=28, channels=1, records_declared=60_000, unit=unit)
    try:
        budget_nano = opened.nano_of(epsilon)
        return budget_nano, build_plan("datalens", {}, opened, budget_nano, facts).cost_nano
    except PrivacyError:
        return None
