"""A service that has started before, for the tests of datasets."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from obscura.wire.schemas import DatasetRequest
from service.datasets import states
from service.datasets.vault import make_fingerprint_key
from service.db.session import SessionFactory, transaction
from service.settings import Settings
from tests.service.datasets.world import SubjectWorld, World


@pytest.fixture
def now() -> datetime:
    """The time: these services and uploads run by the real clock, so the accounts are opened by it."""
    return datetime.now(UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of it; the secret of the fingerprints is there."""
    settings = Settings(data_dir=tmp_path / "data")
    make_fingerprint_key(settings)
    return settings


@pytest.fixture
def declare(factory: SessionFactory, settings: Settings, now: datetime) -> Callable[..., str]:
    """Declare a dataset of 500 records of 4 x 4 pixels; without an account it is public."""

    def declared(account_id: str | None = None, **changes: Any) -> str:
        facts: dict[str, Any] = {"name": "faces", "classes": ["a", "b"], "height": 4, "width": 4, "channels": 1}
        facts |= {"visibility": "public" if account_id is None else "private", "account_id": account_id}
        facts |= {"records_declared": 500, "subjects_declared": None}
        with transaction(factory) as session:
            return states.declare(session, settings, DatasetRequest(**facts | changes), now=now).id

    return declared


@pytest.fixture
def make_world(settings, factory, declare, open_account, declare_dataset) -> Callable[[type[World]], World]:
    return lambda kind: kind(settings, factory, declare, open_account, declare_dataset)


@pytest.fixture
def world(make_world) -> World:
    """Accounts that protect records."""
    return make_world(World)


@pytest.fixture
def people(make_world) -> World:
    """Accounts that protect subjects."""
    return make_world(SubjectWorld)
