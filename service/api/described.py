"""The OpenAPI document with a description of every name, an example of every operation, and the options of each recipe.

Options are typed for each recipe, which the field `recipe` chooses. That describes what a plan refuses, and refuses
nothing itself: what a request may hold is said by the recipe's own model.
"""

from __future__ import annotations

from typing import Any

from privacy.plans.plan import Recipe
from privacy.plans.registry import RECIPES
from service.api.examples import PARAMETERS, known_example
from service.jobs import KINDS

_MANY = [kind.many for kind in KINDS.values()]
_LISTED = f"{', '.join(_MANY[:-1])} and {_MANY[-1]}"
TAGS = {
    "health": "Whether the service runs; no key needed.",
    "accounts": "Populations with one lifetime privacy budget each, their ledgers, and requests for higher limits.",
    "admins": "The people who decide, two of them together.",
    "decisions": "What one admin asks for and a second one approves: limits, admins, keys and shares.",
    "datasets": "Labelled images: declared first, uploaded once.",
    "recipes": "What can be trained, and with which options.",
    "plans": "What a training would do and cost, and a try of it on public images. Both are free.",
    "jobs": f"{_LISTED.capitalize()}: ask for one, follow it, end it.",
    "sweeps": "Hyper-parameter searches, held as a whole.",
    "releases": "What trainings have published: cards, receipts, reports, files, free drawing and measuring.",
    "samples": "Drawn images, to download.",
    "projects": "Departments that do not see each other.",
    "webhooks": "Addresses that are told of stops, decisions that wait, and jobs that ended.",
    "keys": "API keys and their scopes.",
    "ledger": "Whether the ledger is sound.",
    "audit": "Who asked for what.",
}
_JSON = "application/json"
_PLACE = "#/components/schemas/"
_FILES = {"name": "file_name"}  # parameters that mean something else than fields of the same name


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Complete an OpenAPI document in place, and return it."""
    document["tags"] = [{"name": name, "description": words} for name, words in TAGS.items()]
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        schema.setdefault("description", "One page of a list; `next_cursor` is null on the last one.")
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                name = _FILES.get(parameter["name"], parameter["name"])
                if name in PARAMETERS:
                    parameter.setdefault("description", PARAMETERS[name])
                example = known_example("", name)
                choices = _choices(parameter["schema"], schemas)
                parameter["example"] = choices[0] if choices and example not in choices else example
            contents = [operation.get("requestBody", {}), *operation["responses"].values()]
            for content in (content.get("content", {}).get(_JSON, {}) for content in contents):
                if "schema" in content:
                    content["example"] = example_of(content["schema"], schemas)
    names = [f"`{name}`" for name in KINDS]
    schemas["JobRecord"]["properties"]["kind"]["description"] = f"{', '.join(names[:-1])} or {names[-1]}."
    _type_options(document)
    return document


def example_of(schema: dict[str, Any], schemas: dict[str, Any], *, of: str = "", name: str = "") -> Any:
    """Return an example of a schema: its own, or else one that is put together from its parts.

    Args:
        schema: what an example is wanted of.
        schemas: those that it may refer to, by name.
        of: the schema whose field it is.
        name: the field's name.
    """
    if name:
        example = known_example(of, name)
        if example not in (None, []):
            return example
    parts = [schema, *schema.get("anyOf", [])]
    if any(part.get("type") == "null" for part in parts[1:]):
        return None
    reference = next((part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part), None)
    if reference is not None:
        fields = schemas[reference].get("properties", {})
        return {each: example_of(field, schemas, of=reference, name=each) for each, field in fields.items()}
    if "items" in schema:
        items = example_of(schema["items"], schemas)
        return [] if items is None else [items] * max(schema.get("minItems", 1), 1)
    if schema.get("additionalProperties"):
        return {}
    return None


def _choices(schema: dict[str, Any], schemas: dict[str, Any]) -> list[Any]:
    parts = [schema, *schema.get("anyOf", [])]
    parts += [schemas[part["$ref"].rpartition("/")[2]] for part in parts if "$ref" in part]
    return [choice for part in parts for choice in part.get("enum", [])]


def _type_options(document: dict[str, Any]) -> None:
    """Replace each body that names a recipe by one body for each recipe, with that recipe's options."""
    schemas = document["components"]["schemas"]
    named = {name for name, schema in schemas.items() if "recipe" in schema.get("properties", {})}
    bodies = [
        operation["requestBody"]["content"][_JSON]
        for operations in document["paths"].values()
        for operation in operations.values()
        if _JSON in operation.get("requestBody", {}).get("content", {})
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
