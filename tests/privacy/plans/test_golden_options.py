"""Stored options and plans mean what they always meant; see `golden_options.py`, which wrote the file."""

import json

import pytest

from privacy.plans.registry import RECIPES, plan_from_json
from tests.privacy.plans import golden_options
from tests.privacy.plans.golden_options import GOLDEN


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
