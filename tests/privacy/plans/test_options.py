"""Options: one model says what is taken, all that is served follows, and stored ones mean what they always meant."""

import dataclasses
import json
import math
from typing import Any

import jsonschema_rs
import pytest
from pydantic import Field

from obscura.wire.wording import values_in_words
from privacy.errors import InvalidParameter
from privacy.plans.datalens import config_from_options
from privacy.plans.moments import config_that_follows
from privacy.plans.options import RecipeConfig, read_options
from privacy.plans.registry import RECIPES, build_plan, plan_from_json
from tests.privacy.plans import golden_options
from tests.privacy.plans.golden_options import ACCOUNT, FACTS, GOLDEN
from workers.recipes.registry import TRAINERS

OPTIONS = [(recipe, option) for recipe, known in RECIPES.items() for option in known.config.model_fields]
OF_JSON: tuple[Any, ...] = (
    *(True, False, None, "", "x", "1", [], {}, [1], 10**400),
    *(-(10**9), -1, -1e-9, 0, 0.0, 1e-31, 1e-30, 9.99e-9, 1e-8, 1e-7, 1e-6, 9e-4, 1e-3, 0.3, 0.5, 0.6, 0.9, 0.91),
    *(0.99, 0.991, 0.999, 0.9991, 0.99999, 0.999991, 1, 1.0, 1.01, 2, 3, 4, 7, 8, 9, 10, 10.5, 20, 21, 64, 65, 80, 81),
    *(99, 100, 101, 256, 257, 512, 513, 1000, 1001, 1024, 1025, 4096, 4097, 10_000, 10_001, 20_000, 20_001, 65_536),
    *(65_537, 100_000, 100_001, 200_000, 200_001, 1_000_000, 1_000_001, 10**9, 10**9 + 1, 2**31 - 1, 2**31),
)
NOT_OF_JSON = (math.nan, math.inf, -math.inf)


class SmallConfig(RecipeConfig):
    """Two options that must differ."""

    first: int = Field(1, ge=1, le=9, description="One.")
    second: int = Field(2, ge=1, le=9, description="Another.")

    def check(self) -> None:
        if self.first == self.second:
            raise InvalidParameter("second", self.second, f"it is not the {self.first} of first")


@pytest.mark.parametrize(("recipe", "option"), OPTIONS)
def test_the_schema_takes_what_the_field_takes(recipe, option):
    """But 1.0 where an integer is asked for, which JSON Schema calls an integer, and the model does not.

    The pages of the recipes list the schema's bounds, and a test of the documents compares them.
    """
    known = RECIPES[recipe]
    schema = known.options["properties"][option]
    validator = jsonschema_rs.validator_for(schema)
    words = values_in_words(schema)
    for value in OF_JSON:
        taken, refusal = True, ""
        try:
            known.config(**{option: value})
        except InvalidParameter as error:
            why, refusal = error.why.removeprefix("it must be ").removeprefix("choose "), str(error)
            taken = not (error.name == option and why == words)
        assert taken or repr(value) in refusal
        if not (isinstance(value, float) and value.is_integer()):
            assert validator.is_valid(value) == taken, (value, words)
    for value in NOT_OF_JSON:
        with pytest.raises(InvalidParameter) as refused:
            known.config(**{option: value})
        assert refused.value.name == option


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_option_says_what_it_is_and_starts_where_its_schema_says(recipe):
    known = RECIPES[recipe]
    for option, schema in known.options["properties"].items():
        assert schema["description"].endswith(".")
        assert option == "preset" or "JSON" not in values_in_words(schema)
        assert jsonschema_rs.is_valid(schema, schema["default"])
    jsonschema_rs.validate(known.options, {**known.defaults})
    for chosen in known.presets.values():
        jsonschema_rs.validate(known.options, dict(chosen))
    assert known.follows <= set(known.config.model_fields)


def test_refusals_name_the_option_the_bounds_and_the_value():
    refused: dict[str, dict[str, Any]] = {
        "second=10 is refused: it must be an integer between 1 and 9": {"second": 10},
        "second=1 is refused: it is not the 1 of first": {"second": 1},
        "options='third' is refused: this recipe has the options first, second": {"third": 1, "second": 10},
        "preset='big' is refused: choose one of default, small": {"preset": "big"},
        **{f"options='{name}'": {name: 1} for name in ("self", "values", "model_config", "__class__")},  # Python's own
    }
    for words, options in refused.items():
        with pytest.raises(InvalidParameter, match=words):
            read_options(SmallConfig, options, {"default": {}, "small": {"first": 3}})


def test_other_values_are_checked_as_the_first_ones_are():
    assert SmallConfig().with_values(first=3) == SmallConfig(first=3)
    with pytest.raises(InvalidParameter):
        SmallConfig().with_values(first=2)
    with pytest.raises(ValueError, match="frozen"):
        SmallConfig().first = 3  # type: ignore[misc]


def test_what_holds_where_nothing_is_given_is_the_default_of_the_schema():
    small = dataclasses.replace(RECIPES["datalens"], config=SmallConfig, presets={"default": {"first": 4}})
    assert {name: option["default"] for name, option in small.options["properties"].items()} == {
        "preset": "default",
        "first": 4,
        "second": 2,
    }


@pytest.mark.parametrize(
    ("recipe", "completed", "options"),
    [("datalens", config_from_options, {"preset": "published"}), ("moments", config_that_follows, {})],
)
def test_the_options_that_follow_from_facts_and_budget_are_named(recipe, completed, options):
    fixed, found = {**RECIPES[recipe].defaults, **RECIPES[recipe].presets.get(options.get("preset"), {})}, set()
    for facts in FACTS.values():
        for mu in (0.001, 0.1, 1.0, 10.0):
            made = completed(options, mu, facts)
            found |= {name for name, value in made if value != fixed[name]}
    assert found == RECIPES[recipe].follows


@pytest.mark.parametrize("recipe", ["", "DataLens", "gan", "datalens "])
def test_an_unknown_recipe_is_refused_with_the_known_ones(recipe):
    with pytest.raises(InvalidParameter, match=", ".join(RECIPES)):
        build_plan(recipe, {}, ACCOUNT, ACCOUNT.capacity_nano, FACTS["grey"])


def test_a_stored_price_is_that_of_the_stages():
    document = build_plan("class_histogram", {}, ACCOUNT, 1000, FACTS["grey"]).to_json()
    with pytest.raises(InvalidParameter, match="cost_nano"):
        plan_from_json({**document, "cost_nano": document["cost_nano"] + 1})


def test_what_can_be_planned_can_be_trained():
    assert set(RECIPES) == set(TRAINERS)


# --- stored options ---------------------------------------------------------------------------------------------------


def test_options_give_the_same_plans():
    before = {(asked, of): line for asked, lines in GOLDEN["plans"].items() for of, line in lines.items()}
    found = {(asked, of): golden_options.summary(document) for asked, of, document in golden_options.planned()}
    presets = {f"{recipe} {json.dumps({'preset': preset})}" for recipe in RECIPES for preset in RECIPES[recipe].presets}
    assert presets | {f"{recipe} {{}}" for recipe in RECIPES} <= GOLDEN["plans"].keys()
    changed = {case: line for case, line in found.items() if not golden_options.alike(line, before[case])}
    assert changed == {}


@pytest.mark.parametrize("document", GOLDEN["documents"], ids=lambda document: document["recipe"])
def test_stored_plans_are_read_as_they_were_written(document):
    read = plan_from_json(document).to_json()
    assert {**read, "config": {name: read["config"][name] for name in document["config"]}} == document


def test_what_does_not_go_together_is_refused_as_before():
    assert golden_options.refused_together() == GOLDEN["together"]
