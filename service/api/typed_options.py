"""The options of requests in the OpenAPI document: typed for each recipe, which the field `recipe` chooses.

It describes what a plan refuses, and refuses nothing itself: what a request may hold is said by the recipe's own model.
"""

from __future__ import annotations

from typing import Any

from privacy.plans.plan import Recipe
from privacy.plans.registry import RECIPES

_PLACE = "#/components/schemas/"


def type_options(document: dict[str, Any]) -> None:
    """Replace each body that names a recipe by one body for each recipe, with that recipe's options."""
    schemas = document["components"]["schemas"]
    named = {name for name, schema in schemas.items() if "recipe" in schema.get("properties", {})}
    bodies = [
        operation["requestBody"]["content"]["application/json"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    for recipe in RECIPES.values():
        schemas[f"{_camel(recipe)}Options"] = {"description": f"Options of the recipe {recipe.name}.", **recipe.options}
    for body in bodies:
        request = body["schema"].get("$ref", "").removeprefix(_PLACE)
        if request in named:
            chosen = {recipe.name: f"{_camel(recipe)}{request}" for recipe in RECIPES.values()}
            for recipe in RECIPES.values():
                schemas[chosen[recipe.name]] = _request_for(recipe, request, schemas[request])
            references = {name: _PLACE + schema for name, schema in chosen.items()}
            body["schema"] = {
                "oneOf": [{"$ref": reference} for reference in references.values()],
                "discriminator": {"propertyName": "recipe", "mapping": references},
            }


def _request_for(recipe: Recipe, request: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {"options": {"$ref": f"{_PLACE}{_camel(recipe)}Options"}}
    if "trials" in schema["properties"]:
        properties = {"trials": {"type": "array", "items": {"type": "object", "properties": properties}}}
    narrowed = {"type": "object", "properties": {"recipe": {"const": recipe.name}, **properties}}
    description = f"{schema['description']} By the recipe {recipe.name}."
    return {"description": description, "allOf": [{"$ref": _PLACE + request}, narrowed]}


def _camel(recipe: Recipe) -> str:
    return recipe.name.title().replace("_", "")
