"""Recipes: what this service can train, and with which options."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from privacy.plans.registry import RECIPES
from service.api.conditional import answer
from service.api.deps import PROBLEMS, READ
from service.api.recipe_schemas import RecipeList, RecipeRecord
from service.api.schemas import Name
from service.errors import NotFound

router = APIRouter(prefix="/v1/recipes", tags=["recipes"], responses=PROBLEMS)


@router.get("", dependencies=[READ], response_model=RecipeList, summary="List recipes")
def list_recipes(request: Request) -> Response:
    """List what this service can train, each with its presets, its defaults and the JSON Schema of its options."""
    return answer(request, RecipeList(items=[RecipeRecord.of(recipe) for recipe in RECIPES.values()]))


@router.get("/{recipe}", dependencies=[READ], response_model=RecipeRecord, summary="Read a recipe")
def read_recipe(request: Request, recipe: Annotated[Name, Path()]) -> Response:
    """Read a recipe: its presets, its defaults and the JSON Schema of its options."""
    known = RECIPES.get(recipe)
    if known is None:
        raise NotFound(f"There is no such recipe. Choose one of {', '.join(RECIPES)}.")
    return answer(request, RecipeRecord.of(known))
