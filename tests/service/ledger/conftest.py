"""An account to spend from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from service.db.session import SessionFactory
from tests.service.ledger.account_book import AccountBook


@pytest.fixture
def account_book(factory: SessionFactory, open_account: Callable[..., str], now: datetime) -> AccountBook:
    """An account of this test's own, on each kind of database."""
    return AccountBook(factory, open_account(factory), now)
