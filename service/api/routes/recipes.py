"""Recipes: what this service can train, and their options."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from obscura.wire.recipe_schemas import RecipeList, RecipeRecord
from obscura.wire.schemas import Name
from privacy.plans.plan import Recipe
from privacy.plans.registry import RECIPES
from service.api.conditional import answer
from service.api.deps import PROBLEMS, READ, ApiRoute
from service.errors import NotFound

router = APIRouter(prefix="/v1/recipes", tags=["recipes"], responses=PROBLEMS, route_class=ApiRoute)


@router.get("", dependencies=[READ], response_model=RecipeList, summary="List recipes")
def list_recipes(request: Request) -> Response:
    """List the recipes with their presets, defaults and the JSON Schema of their options."""
    return answer(request, RecipeList(items=[describe(recipe) for recipe in RECIPES.values()]))


@router.get("/{recipe}", dependencies=[READ], response_model=RecipeRecord, summary="Read a recipe")
def read_recipe(request: Request, recipe: Annotated[Name, Path()]) -> Response:
    """Return a recipe: its presets, defaults and the JSON Schema of its options."""
    known = RECIPES.get(recipe)
    if known is None:
        raise NotFound(f"There is no such recipe. Choose one of {', '.join(RECIPES)}.")
    return answer(request, describe(known))


def describe(recipe: Recipe) -> RecipeRecord:
    """Return the record of a recipe."""
    return RecipeRecord(
        name=recipe.name,
        title=recipe.title,
        publishes=recipe.publishes,
        releases=recipe.releases,
        units=sorted(recipe.units),
        presets={name: dict(chosen) for name, chosen in recipe.presets.items()},
        defaults=recipe.defaults,
        follows=sorted(recipe.follows),
        options=recipe.options,
    )
