"""`obscura recipes` asks the service, so a recipe of a newer service is of use to an older command line."""

import json

import pytest

from obscura.client import Client
from obscura.client.local_service import running_at
from privacy.plans.registry import RECIPES
from tests.service.cli.conftest import serving


@pytest.fixture(scope="module")
def newer(tmp_path_factory, warm):
    """Commands that know no toy, against a service that trains it."""
    with serving(tmp_path_factory.mktemp("newer") / "service", warm, "tests.service.cli.toy_service") as shell:
        yield shell


def test_a_recipe_that_only_the_service_knows_is_listed_shown_planned_and_trained(newer, make_images, tmp_path):
    assert "toy" not in RECIPES
    listed = newer("recipes", "--json").json
    assert [recipe["name"] for recipe in listed] == [*RECIPES, "toy"]
    assert "Count the records" in newer("recipes").out
    shown = newer("recipes", "toy")
    assert "rounds=1  (an integer between 1 and 100)\n    Noisy sums that are released." in shown.out
    assert "toy" in shown.err
    newer("accounts", "create", "people", "-e", "2", "-d", "1e-4", "--unit", "record")
    images = make_images(tmp_path / "images.npz", 40)
    dataset = newer("datasets", "push", str(images), "--account", "people", "--at-most", "40", "--json").json["id"]
    asked = (dataset, "--recipe", "toy", "--epsilon", "1", "--option")
    planned = newer("plan", *asked, "rounds=3", "--json").json
    assert (planned["config"], planned["stages"][0]["releases"]) == ({"rounds": 3}, 3)
    refused = newer("plan", *asked, "rounds=101", code=2)
    assert "rounds=101 is refused: it is an integer between 1 and 100" in refused.err
    job = newer("train", *asked, "rounds=3", "--wait", "--json").json
    assert (job["state"], job["recipe"], job["options"]) == ("succeeded", "toy", {"rounds": 3})


def test_the_client_reads_what_the_service_serves(newer):
    running = running_at(newer.data_dir)
    with Client(running, (newer.data_dir / "admin.key").read_text().strip()) as client:
        toy = client.recipe("toy")
        assert toy in client.recipes()
        assert (toy.units, toy.presets, toy.defaults) == (["record"], {}, {"rounds": 1})


def test_without_a_service_the_installed_recipes_are_shown_and_called_that(shell, tmp_path):
    alone = type(shell)(tmp_path / "nobody", shell.python)
    found = alone("recipes", "--json")
    assert [recipe["name"] for recipe in json.loads(found.out)] == list(RECIPES)
    assert "the package that is installed here" in found.err
    assert "installed here" not in shell("recipes").err
    alone("--url", "http://127.0.0.1:9", "--token", "obs_x", "recipes", code=1)  # named, and not there


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_shown_with_all_options_and_presets(obscura, tmp_path, name):
    shown = obscura(tmp_path, "recipes", name, "--json").json
    assert (shown["options"], set(shown["presets"])) == (RECIPES[name].options, set(RECIPES[name].presets))
    assert all(option in obscura(tmp_path, "recipes", name).out for option in shown["options"]["properties"])
