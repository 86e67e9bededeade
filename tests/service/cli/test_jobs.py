"""How a plan is shown, and what `obscura jobs cancel` asks before it throws away what was paid for."""

import io

import pytest
from rich.console import Console

from obscura.cli.console import UNBOUNDED, CliError, Exit, Output, confirm
from obscura.cli.jobs import lossy_cancel_question, show_plan
from obscura.client import Job
from obscura.wire.job_schemas import BudgetFacts, PlanRecord, StageFacts
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan

COLUMNS = 80


def shown(made: Plan) -> str:
    """The tables of a plan where nothing bounds their width, as in a pipe."""
    budget = BudgetFacts.model_validate(dict.fromkeys(BudgetFacts.model_fields, 1) | {"account_id": "acc_x"})
    stages = [
        StageFacts(name=stage.name, releases=stage.event.count, noise_multiplier=12.345678901, cost_nano=123456789)
        for stage in made.stages
    ]
    facts = {"recipe": made.recipe, "epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
    facts |= {"cost_nano": made.cost_nano, "cost_epsilon": 0.9999999, "notes": [], "config": {}}
    record = PlanRecord(**facts, dataset_id="ds_x", stages=stages, facts=made.facts, budget=budget)
    output = Output(as_json=False)
    output._out = Console(soft_wrap=True, width=UNBOUNDED, file=io.StringIO())
    show_plan(output, record)
    return output._out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("recipe", "preset"), [(name, preset) for name, recipe in RECIPES.items() for preset in recipe.presets or ("",)]
)
def test_a_plans_table_fits_a_terminal(recipe, preset):
    facts = PublicFacts(tuple(map(str, range(10))), 28, 28, 1, 60_000, "record")
    account = open_filter(1.0, 1e-5)
    options = {"preset": preset} if preset else {}
    if recipe == "select_public":
        options["public_dataset_id"] = "ds_0123456789abcdef0123456789abcdef"
    made = build_plan(recipe, options, account, account.capacity_nano, facts)
    text = shown(made)
    assert max(map(len, text.splitlines())) <= COLUMNS, text
    assert ("teachers" in text) == ("teachers" in made.facts)


PAID = {"charged_nano": 5, "planned_nano": 10, "charged_epsilon": 0.41234, "planned_epsilon": 1.0}
FREE = {"charged_nano": 0, "planned_nano": 10, "charged_epsilon": 0.0, "planned_epsilon": 1.0}


@pytest.mark.parametrize(
    ("changes", "discard", "said"),
    [
        ({}, True, "and would publish nothing. Discard it?"),
        ({}, False, None),  # it publishes what it has
        ({"publishes_if_cancelled": False}, False, "and has nothing to publish yet"),
        ({"progress": FREE, "publishes_if_cancelled": False}, False, None),
        ({"progress": FREE, "publishes_if_cancelled": False}, True, None),
        ({"state": "succeeded", "publishes_if_cancelled": None}, False, None),
        ({"state": "succeeded", "publishes_if_cancelled": None}, True, None),
    ],
)
def test_a_cancellation_that_loses_paid_work_asks_with_the_cost(changes, discard, said):
    facts = dict.fromkeys(Job.model_fields) | {"id": "job_x", "kind": "train", "state": "running", "options": {}}
    facts |= {"cost_nano": 10, "cost_epsilon": 1.0, "cancel_requested": False, "created_at": "2030-01-01T00:00:00Z"}
    facts |= {"progress": PAID, "publishes_if_cancelled": True}
    question = lossy_cancel_question(Job.model_validate(facts | changes), discard=discard)
    assert (question is None) == (said is None)
    assert said is None or ("epsilon 0.413 of 1.0, for good" in str(question) and said in str(question))


def test_nobody_at_the_terminal_means_no(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(CliError, match="--yes") as refused:
        confirm("Really?")
    assert refused.value.code is Exit.USAGE
