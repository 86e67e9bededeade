"""A service that has started before, for the tests of datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.datasets.vault import make_fingerprint_key
from service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of it; the secret of the fingerprints is there."""
    settings = Settings(data_dir=tmp_path / "data")
    make_fingerprint_key(settings)
    return settings
