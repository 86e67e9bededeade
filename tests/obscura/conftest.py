"""A service, and a release that was trained on it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import obscura
from obscura.client import Client, Release
from tests.conftest import starting_by
from tests.obscura.small import SMALL, two_classes


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local") / "data"


@pytest.fixture(scope="session")
def service(data_dir: Path, warm: str) -> Iterator[obscura.LocalClient]:
    with starting_by(warm):
        started = obscura.local(data_dir)
    with started as service:
        yield service
        process = service.service.process
    assert process.poll() is not None
    assert not (data_dir / "service.url").exists()


@pytest.fixture(scope="session")
def images() -> tuple[np.ndarray, list[str]]:
    return two_classes(200)


@pytest.fixture(scope="session")
def release(service: Client, images: tuple[np.ndarray, list[str]]) -> Release:
    return service.train(*images, epsilon=1, at_most=200, options=SMALL, show=False)
