"""`obscura recipes` asks the service, so a recipe of a newer service is of use to an older command line."""

from functools import partial

import pytest

from obscura.wire.job_schemas import RecipeList
from privacy.plans.registry import RECIPES
from service.cli import installed_recipes
from tests.obscura.client.canned import Answer, answering
from tests.service.cli.conftest import Shell


def test_a_recipe_that_only_the_service_knows_is_listed_and_shown(tmp_path):
    toy = installed_recipes()[0].model_copy(update={"name": "toy", "title": "Count the records"})
    listed = Answer(content=RecipeList(items=[toy]).model_dump_json().encode())
    with answering(lambda *_: listed) as newer:
        recipes = partial(Shell(tmp_path), "--url", newer.url, "--token", "key", "recipes")
        assert recipes("--json").json == [toy.model_dump(mode="json")]
        assert "Count the records" in recipes().out
        shown = recipes("toy")
    option, value = next(iter(toy.defaults.items()))
    assert f"{option}={value}" in shown.out
    assert "--recipe toy" in shown.err


def test_the_client_reads_what_the_service_serves(client):
    assert client.recipes() == installed_recipes()
    assert client.recipe("moments") in client.recipes()


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
