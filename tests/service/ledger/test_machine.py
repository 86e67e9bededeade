"""The ledger and the jobs behave like the model in random histories with crashes, repeats and races.

OBSCURA_MACHINE_EXAMPLES=N runs N random examples on each database instead of a few fixed ones.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test
from sqlalchemy import Engine

from service.db.base import Base
from service.settings import Settings
from tests.conftest import emptying_postgres
from tests.service.ledger.machine import LedgerMachine
from tests.service.ledger.machine_broken import BROKEN
from tests.service.ledger.machine_place import Place
from tests.service.ledger.machine_rows import Fault
from tests.service.steps import without_triggers

EXAMPLES = {"sqlite": 16, "postgresql": 10}
STEPS = 30
EXAMPLES_TO_FIND = 200  # for a broken ledger; most are found in the first few
SEED = 3  # finds broken ledgers early
EXHAUSTIVE = os.environ.get("OBSCURA_MACHINE_EXAMPLES")


def profile(examples: int, *, random: bool = False) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=2 * STEPS if random else STEPS,
        derandomize=not random,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if random else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def empty(engine: Engine) -> None:
    """Remove every row except the default project."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(emptying_postgres())
            return
        with without_triggers(connection):
            for table in reversed(Base.metadata.sorted_tables):
                if table.name != "projects":
                    connection.execute(table.delete())


@pytest.fixture(autouse=True)
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the verification of prices and keys, because the machine's charges and datasets are not real."""
    monkeypatch.setattr("workers.supervise.reconcile.inspection.watch_over", lambda *_args, **_more: None)
    monkeypatch.setattr("workers.supervise.reconcile.states.check_keys", lambda *_args, **_more: None)


@pytest.fixture
def place(engine: Engine, tmp_path: Path) -> Place:
    return Place(engine, Settings(data_dir=tmp_path / "data"), empty)


def test_every_step_is_what_the_model_says(place):
    chosen = profile(int(EXHAUSTIVE), random=True) if EXHAUSTIVE else profile(EXAMPLES[place.engine.dialect.name])
    run_state_machine_as_test(lambda: LedgerMachine(place), settings=chosen)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_ledger_is_found_out(broken, place, monkeypatch):
    broken(monkeypatch)
    rules, commands = BROKEN[broken]
    others = {name for name, value in vars(LedgerMachine).items() if hasattr(value, RULE_MARKER)} - set(rules)
    focused = type("Focused", (LedgerMachine,), dict.fromkeys(others))  # hypothesis finds no rule in None

    def machine() -> LedgerMachine:
        return focused(place, commands)

    with pytest.raises((Fault, FlakyFailure)) as found:
        run_state_machine_as_test(seed(SEED)(machine), settings=profile(EXAMPLES_TO_FIND))
    if isinstance(found.value, FlakyFailure):  # a race may end differently when it is repeated
        assert found.group_contains(Fault)
