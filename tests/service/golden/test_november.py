"""What was stored and answered in November 2026 is stored and answered today; see `november.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.released import load_released
from service.db.session import make_engine, make_session_factory
from service.inspection import inspect_ledger
from tests.service.golden import november
from workers.train.drawing import SampleRequest, draw

GOLDEN: dict[str, Any] = json.loads(november.ANSWERS.read_text("utf-8"))
SINCE = {"project_id"}  # fields that answers have gained


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The data folder of then, brought up to date by the service of today."""
    with november.unpacked() as folder:
        yield folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Any]:
    with november.opened(folder) as client:
        return november.answers(client)


def test_every_address_of_then_is_asked(answers):
    assert set(answers) == set(GOLDEN["answers"])


def as_then(answer: Any) -> Any:
    """An answer without the fields that have been added."""
    if isinstance(answer, dict):
        return {name: as_then(value) for name, value in answer.items() if name not in SINCE}
    return [as_then(each) for each in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("address", GOLDEN["answers"])
def test_what_is_answered_is_what_was_answered(answers, address):
    assert as_then(answers[address]) == GOLDEN["answers"][address]


@pytest.mark.parametrize("table", GOLDEN["stored"])
def test_migrations_leave_every_stored_row_as_it_was(answers, folder, table):
    rows = [
        {name: row[name] for name in before}
        for row, before in zip(november.stored(folder)[table], GOLDEN["stored"][table], strict=True)
    ]
    assert rows == GOLDEN["stored"][table]


def test_the_audit_of_today_finds_nothing_in_the_log_of_then(answers, folder):
    settings = november.settings_of(folder)
    engine = make_engine(settings.database_url)
    found = inspect_ledger(settings, make_session_factory(engine), thorough=True)
    engine.dispose()
    assert found.findings == ()
    assert found.entries == len(GOLDEN["stored"]["entries"])


def test_a_release_of_then_draws_what_it_drew(folder):
    (sample,) = (folder / "samples").iterdir()
    drawn = np.load(sample / f"{sample.name}.npz")
    generator = load_released(folder / "releases" / GOLDEN["answers"][f"samples/{sample.name}"]["release_id"])
    ((pixels, labels),) = draw(generator, SampleRequest(20, 7, ("cat", "dog")))
    assert np.array_equal(pixels[..., 0], drawn["images"])
    assert np.array_equal(labels, drawn["labels"])
