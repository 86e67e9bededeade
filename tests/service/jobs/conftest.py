"""A shop of jobs."""

from collections.abc import Callable
from datetime import datetime

import pytest

from service.db.session import SessionFactory
from tests.service.jobs.shop import Shop


@pytest.fixture
def shop(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Shop:
    """An account with a dataset whose jobs are worked on by hand; once for each kind of database."""
    return Shop(factory, now, open_account, declare_dataset)
