"""Plans, cancelling, recipes, limits, freezing and sweeps from the command line."""

import io
import stat
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from obscura.cli.admins import read_end
from obscura.cli.console import UNBOUNDED, CliError, Output
from obscura.cli.jobs import lossy_cancel_question, show_plan
from obscura.client import Job
from obscura.wire.job_schemas import BudgetFacts, Expectation, PlanRecord, RecipeList, StageFacts
from privacy.accounting.filter import open_filter
from privacy.plans.expectations import expect
from privacy.plans.moments import SEEN
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan
from service.cli import installed_recipes
from tests.obscura.client.canned import Answer, answering
from tests.service.cli.conftest import Shell

COLUMNS = 80


def shown(made: Plan, **changes: Any) -> str:
    """The tables of a plan where nothing bounds their width, as in a pipe."""
    budget = BudgetFacts.model_validate(dict.fromkeys(BudgetFacts.model_fields, 1) | {"account_id": "acc_x"})
    stages = [
        StageFacts(name=stage.name, releases=stage.event.count, noise_multiplier=12.345678901, cost_nano=123456789)
        for stage in made.stages
    ]
    facts = {"recipe": made.recipe, "epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
    facts |= {"cost_nano": made.cost_nano, "cost_epsilon": 0.9999999, "notes": [], "config": {}}
    unknown = dict.fromkeys(Expectation.model_fields) | {"summary": [], "curve": []}
    facts |= {"facts": made.facts, "budget": budget, "expectation": Expectation(**unknown)} | changes
    record = PlanRecord(**facts, dataset_id="ds_x", stages=stages)
    output = Output(as_json=False)
    output._out = Console(soft_wrap=True, width=UNBOUNDED, file=io.StringIO())
    output.err.file = output._out.file
    show_plan(output, record, "https://obscura.test")
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


def test_a_plan_says_what_to_expect_and_how_to_afford_it():
    facts, account = PublicFacts(tuple("0123456789"), 28, 28, 1, 1437, "record"), open_filter(12.0, 1e-5)
    made = build_plan("moments", {}, account, account.nano_of(1.0), facts)
    expected = expect(made, {}, account, facts, account.capacity_nano)
    expected = expected.model_copy(update={"example": "/static/outlines_grey.png"})
    poor = dict.fromkeys(BudgetFacts.model_fields, 1.25) | {"account_id": "acc_x", "left_nano": 1, "left_after_nano": 1}
    budget = BudgetFacts.model_validate(poor | {"affordable": False})
    text = shown(
        made, expectation=expected, budget=budget, notes=[note for note in made.notes if note not in SEEN.values()]
    )
    assert "\n".join(expected.summary) in text
    assert "https://obscura.test/static/outlines_grey.png" in text
    assert "Lower --epsilon to at most 1.25." in text
    assert text.count(expected.summary[0]) == 1, "it is also a note of the plan"


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
    assert said is None or ("permanently spent ε 0.413 of 1.0" in str(question) and said in str(question))


def test_a_recipe_that_only_the_service_knows_is_listed_and_shown(tmp_path):
    toy = installed_recipes()[0].model_copy(update={"name": "toy", "title": "Count the records"})
    listed = Answer(content=RecipeList(items=[toy]).model_dump_json().encode())
    with answering(lambda *_: listed) as newer:
        recipes = partial(Shell(tmp_path), "--url", newer.url, "--token", "key", "recipes")
        assert recipes("--json").json == [toy.model_dump(mode="json")]
        assert "Count the records" in recipes().out
        shown = recipes("toy")
    assert [line for line in shown.out.splitlines() if line in toy.groups] == list(toy.groups)
    assert 'class_fractions=""' in shown.out
    assert all(f"  {option}=auto  (" in shown.out for option in toy.follows), "not a default that no plan has"
    assert "--recipe toy" in shown.err


def test_the_client_reads_what_the_service_serves(client):
    assert client.recipes.list() == installed_recipes()
    assert client.recipes.get("moments") in client.recipes.list()


@pytest.mark.usefixtures("no_backoff")
def test_without_a_service_the_installed_recipes_are_shown_and_called_that(shell, tmp_path):
    alone = Shell(tmp_path / "nobody")
    found = alone("recipes", "--json")
    assert [recipe["name"] for recipe in found.json] == list(RECIPES)
    assert "the package that is installed here" in found.err
    assert "installed here" not in shell("recipes").err
    alone("--url", "http://127.0.0.1:9", "--token", "obs_x", "recipes", code=1)  # named, and not there


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_shown_with_all_options_and_presets(shell, name):
    shown = shell("recipes", name, "--json").json
    assert (shown["options"], set(shown["presets"])) == (RECIPES[name].options, set(RECIPES[name].presets))
    assert all(option in shell("recipes", name).out for option in shown["options"]["properties"])


def test_a_limit_is_raised_by_two_admins_and_an_account_frozen_by_one(shell, client, target, account, tmp_path):
    alice = target[3]
    introduction = shell("admins", "introduce", "--out", str(tmp_path / "bob.key"), "--json").json["introduction"]
    bob = (tmp_path / "bob.key").read_text("ascii").strip()
    assert stat.S_IMODE((tmp_path / "bob.key").stat().st_mode) == 0o600
    shell("admins", "admit", "bob", "--introduction", introduction, "--reason", "the second", "--json")
    assert {"first admin", "bob"} <= {admin.name for admin in client.admins.list()}
    asked = shell("limits", "request", account, "-e", "3", "--reason", "a second study", "--json", OBSCURA_TOKEN=alice)
    request_id = asked.json["id"]
    assert f"obscura decisions approve {request_id}" in asked.err
    refused = shell("decisions", "approve", request_id, OBSCURA_TOKEN=alice, code=4)
    assert "Two people" in refused.err
    assert shell("decisions", "approve", request_id, "--json", OBSCURA_TOKEN=bob).json["state"] == "approved"
    assert request_id in shell("decisions", "list").out
    lowered = shell("limits", "lower", account, "-e", "1", "--reason", "less", "--json", OBSCURA_TOKEN=bob)
    assert lowered.json["epsilon"] == 1.0
    assert shell("accounts", "freeze", account, "--reason", "an audit", "--json").json["frozen"] is True
    assert shell("accounts", "unfreeze", account, "--reason", "it is over", "--json").json["frozen"] is False
    assert shell("accounts", "close", account, "--json").json["closed"] is True
    refused = shell("datasets", "push", str(tmp_path), "--account", account, "--at-most", "9", code=2)
    assert "closed to new data" in refused.err
    assert "closed" not in shell("accounts", "reopen", account, "--json").json


def test_revoking_a_key_says_what_it_has_made_and_takes_that_along(shell):
    made = shell("keys", "create", "stolen", "-s", "admin", "--expires", "90d", "--json").json
    ends_in = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < ends_in <= timedelta(days=90)
    reader = shell("keys", "create", "reader", "-s", "read", "--json", OBSCURA_TOKEN=made["token"]).json
    assert reader["expires_at"] == made["expires_at"], "it ends with the key that made it"
    shell("accounts", "list", OBSCURA_TOKEN=reader["token"])
    assert "admin" in shell("keys", "list", OBSCURA_TOKEN=reader["token"], code=4).err
    shown = shell("keys", "list").out
    assert all(each in shown for each in ("first admin", reader["id"], "last used", "expires"))
    revoked = shell("keys", "revoke", made["id"], "--json")
    assert f"Created with this key: reader ({reader['id']}), read." in revoked.err
    assert revoked.json["others_revoked"] == 1
    for key in (made, reader):
        shell("datasets", "list", OBSCURA_TOKEN=key["token"], code=4)


def test_a_key_of_another_admin_is_asked_for(shell, tmp_path):
    shell("admins", "restore", "dan", "--out", str(tmp_path / "dan.key"))
    dan = (tmp_path / "dan.key").read_text("ascii").strip()
    key_id = f"key_{dan.split('_')[1]}"
    assert "obscura admins revoke" in shell("keys", "revoke", key_id, code=4).err
    asked = shell("admins", "revoke", key_id, "--reason", "lost", "--json")
    assert f"obscura decisions approve {asked.json['id']}" in asked.err
    done = shell("decisions", "approve", asked.json["id"], "--json", OBSCURA_TOKEN=dan)  # its owner may be the second
    assert done.json["keys_revoked"] == 1
    shell("admins", "list", OBSCURA_TOKEN=dan, code=4)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("12h", datetime(2030, 1, 1, 12, tzinfo=UTC)),
        ("90d", datetime(2030, 4, 1, tzinfo=UTC)),
        ("8w", datetime(2030, 2, 26, tzinfo=UTC)),
        ("2031-02-03", datetime(2031, 2, 3, tzinfo=UTC)),
        ("2031-02-03T04:05:00+02:00", datetime(2031, 2, 3, 2, 5, tzinfo=UTC)),
        *((text, None) for text in ("", "90", "0d", "d", "-1d", "soon", "99999w99", "2031-13-01")),
    ],
)
def test_the_end_of_a_key_is_a_span_or_a_date(text, end):
    with nullcontext() if end else pytest.raises(CliError, match="--expires takes"):
        assert read_end(text, datetime(2030, 1, 1, tzinfo=UTC)) == end


@pytest.mark.slow
def test_a_sweep_is_paid_for_as_a_whole(shell, dataset):
    arguments = ["sweep", dataset, "-r", "moments", "-o", "components=4", "-g", "centre=0.2,0.1"]
    done = shell(*arguments, "-e", "0.4", "--wait", "--json").json
    assert [trial["options"]["centre"] for trial in done["trials"]] == [0.2, 0.1]
    assert [trial["state"] for trial in done["trials"]] == ["succeeded", "succeeded"]
    assert done["totals"]["reserved_nano"] == 0 < done["totals"]["spent_nano"] <= done["totals"]["cost_nano"]
    assert "Every trial is paid for" in shell("sweeps", "show", done["id"]).out
    refused = shell(*arguments, "-e", "1.5", "-g", "class_components=1,2,3,4,5,6", "--json", code=3).json["error"]
    assert (refused["trials"], refused["code"]) == (12, "insufficient_budget")
    assert refused["trials_affordable"] == 1
    assert shell("sweeps", "cancel", done["id"], "--json").json == shell("sweeps", "show", done["id"], "--json").json
