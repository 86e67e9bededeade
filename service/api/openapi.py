"""Complete the OpenAPI document: descriptions, examples, and one request schema for each recipe.

Options are typed per recipe (discriminator `recipe`). This is only documentation: the recipe's model validates.
"""

from __future__ import annotations

from typing import Any

from obscura.wire.job_schemas import RECIPE_USUAL
from privacy.plans.registry import RECIPES
from service.jobs import KINDS

_MOMENT = "2026-03-02T09:30:00Z"
_END_OF_ID = "_a2b3c4d5e6f7g2h3i4j5"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
# Prefixes of ids, by the word before `_id`.
_PREFIXES = {"account": "acc", "admin": "adm", "dataset": "ds", "hold": "hld", "job": "job", "key": "key"}
_PREFIXES |= {"project": "prj", "release": "rel", "request": "dec", "sample": "smp", "share": "shr", "sweep": "swp"}
_PREFIXES |= {"invitation": "inv", "webhook": "whk"}


_RECIPE = next(recipe for recipe in RECIPES.values() if recipe.presets)
# By field or parameter; `Schema.field` applies to one schema only.
EXAMPLES: dict[str, Any] = {
    "accuracy": {"cnn": 0.78, "mlp": 0.71},
    "Expectation.accuracy": [0.79, 0.96],
    "Expectation.summary": ["Expect shapes: most objects are recognisable."],
    "ExpectedPoint.accuracy": [0.79, 0.96],
    "accuracy_by_class": {"cat": 0.81, "dog": 0.75},
    "accuracy_real": 0.9,
    "accuracy_warm_start_only": {"cnn": 0.71},
    "adjacency": "add_remove",
    "admission": "approved",
    "affordable": True,
    "affordable_epsilon": 1.9,
    "amount_nano": 41_000_000,
    "requested_by_name": "Ana Silva",
    "balanced_accuracy": {"cnn": 0.76, "mlp": 0.69},
    "facts": {"teachers": 4000},
    "bytes": 8_123_456,
    "capacity_nano": 310_000_000,
    "chance": 0.1,
    "channels": 1,
    "classes": ["benign", "malignant"],
    "SampleRecord.classes": None,
    "SampleRequest.classes": None,  # exclusive with proportions
    "code": "worker_lost",
    "config": {"teachers": 4000},
    "content_bytes": 47_000_000,
    "count": 10_000,
    "created_by_name": "first admin",
    "cursor": "WyIyMDI2Il0",
    "decided_by_name": "Ben Okafor",
    "delta": 1e-5,
    "details": {"reason": "protocol 17"},
    "entries": 120,
    "epsilon": 1.0,
    "epsilon_before": 3.0,
    "eta_seconds": 214.0,
    "findings": 0,
    "format": "npz",
    "height": 28,
    "id": f"x{_END_OF_ID}",
    "introduction": f"key_abcdefghijklmnopqrst:{_DIGEST}",
    "jobs_max": 4,
    "jobs_unfinished": 2,
    "Idempotency-Key": "3f0c7c1e-5a0b-4a55-9d43-6e4f6a1c2b7d",
    "Last-Event-ID": "3-5f2b9d0c1a77",
    "keys_revoked": 3,
    "EntryRecord.kind": "charge",
    "JobRecord.kind": "train",
    "ReleaseRecord.kind": "generator",
    "last_used_at": "2026-03-02T09:00:00Z",
    "InvitationRecord.state": "open",
    "NewInvitationRecord.state": "open",
    "link": "https://obscura.example.org/invitations/q7r2...",
    "limit_epsilon": 3.0,
    "name": "patients",
    "number": 0,
    "StageFacts.name": "votes",
    "file_name": "generator.safetensors",
    "noise_multiplier": 100.0,
    "notes": ["Choosing by public data costs nothing."],
    "options": {"preset": "default"},
    "RecipeRecord.name": _RECIPE.name,
    "RecipeRecord.title": _RECIPE.title,
    "RecipeRecord.releases": _RECIPE.releases,
    "overlap_seconds": 3600,
    "project_name": "cardiology",
    "publishes": _RECIPE.publishes,
    "presets": {"default": {}},
    "defaults": {"clip": 1.0},
    "RecipeRecord.options": {
        "type": "object",
        "properties": {"clip": {"type": "number", "minimum": 1e-6, "maximum": 1e6, "default": 1.0}},
    },
    "others_revoked": 2,
    "owner": "clinic",
    "guaranteed_epsilon": 3.0,
    "publishes_if_cancelled": True,
    "rate": 1e-6,
    "real_accuracy": 0.9,
    "reason": "the ethics board agreed, protocol 17",
    "recipe": _RECIPE.name,
    "records_declared": 60_000,
    "releases": 1450,
    "removed_at": None,
    "returned_nano": 3_000_000,
    "revoked_at": None,
    "samples": 30_000,
    "scopes": ["train", "read"],
    "seed": 7,
    "shared_with_name": "cardiology",
    "role": "analyst",
    "sequence": 12,
    "stage": "votes",
    "stand_in": "fashion-mnist",
    "state": "running",
    "DatasetRecord.state": "ready",
    "DecisionRecord.state": "pending",
    "SweepRecord.state": "open",
    "status": "ok",
    "step": 612,
    "steps": 1450,
    "subjects_declared": 3500,
    "subjects": ["0042", "0137"],
    "DatasetRequest.subjects_declared": None,
    "summary": {"accuracy": {"cnn": 0.78}},
    "attacker_certainty_max": 0.973,
    "token": "obs_a2b3...",
    "unit": "record",
    "verdict": "The plan would make images worth 74% accuracy.",
    "version": "0.1.0",
    "visibility": "private",
    "width": 28,
    "delivered": True,
    "WebhookTestRecord.status": 200,
    "WebhookTestRecord.reason": None,
    "WebhookRecord.state": "active",
    "NewWebhookRecord.state": "active",
    "secret": "whsec_...",
    "url": "https://hooks.example.org/obscura",
}
for _prefix, _names in {
    "adm": ("approved_by", "requested_by", "created_by_admin", "decided_by"),
    "evt": ("after",),
    "key": ("requested_with", "created_by", "decided_with"),
    "prj": ("shared_with",),
}.items():
    EXAMPLES |= dict.fromkeys(_names, f"{_prefix}{_END_OF_ID}")
for _amount, _epsilon, _nano in (
    ("charged", 0.4, 9_000_000),
    ("reserved", 0.5, 12_000_000),
    ("left", 2.0, 257_000_000),
    ("left_after", 1.4, 228_000_000),
    ("planned", 1.0, 41_000_000),
    ("cost", 1.0, 41_000_000),
    ("spent", 0.4, 9_000_000),
):
    EXAMPLES |= {f"{_amount}_epsilon": _epsilon, f"{_amount}_nano": _nano}
for _kind in KINDS.values():
    if _kind.reading is not None:
        EXAMPLES |= {f"{_kind.record.__name__}.{name}": example for name, example in _kind.reading.examples.items()}
        _PREFIXES.setdefault(_kind.noun, _kind.reading.prefix)


_MANY = [kind.many for kind in KINDS.values()]
_LISTED = f"{', '.join(_MANY[:-1])} and {_MANY[-1]}"
TAGS = {
    "health": "Liveness and readiness; no key needed.",
    "accounts": "Populations with one lifetime privacy budget each, their ledgers, and requests for higher limits.",
    "admins": "Admins, who make two-person decisions, and invitations by link.",
    "decisions": "Requests that a second admin must approve: about limits, admins, keys and shares.",
    "datasets": "Labelled images: declared first, uploaded once.",
    "recipes": "Available trainings and their options.",
    "plans": "The plan and cost of a training, and a preview of it on public images. Both are free.",
    "jobs": f"{_LISTED.capitalize()}: request, follow and end them.",
    "sweeps": "Hyperparameter sweeps, reserved as a whole.",
    "releases": "Published models: cards, receipts, reports, files, free sampling and evaluation.",
    "samples": "Generated images, to download.",
    "projects": "Parts of the installation that cannot see each other's data.",
    "webhooks": "URLs that are notified of stopped trainings, pending decisions, and ended jobs.",
    "keys": "API keys and their scopes.",
    "ledger": "The state of the ledger's verification.",
    "audit": "The audit log.",
}
_JSON = "application/json"
_PLACE = "#/components/schemas/"
_FILES = {"name": "file_name"}  # parameters that differ from fields with the same name


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Complete an OpenAPI document in place and return it."""
    document["tags"] = [{"name": name, "description": words} for name, words in TAGS.items()]
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        schema.setdefault("description", "One page of a list; `next_cursor` is null on the last page.")
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                name = _FILES.get(parameter["name"], parameter["name"])
                parameter["example"] = example_of(parameter["schema"], schemas, name=name)
            contents = [operation.get("requestBody", {}), *operation["responses"].values()]
            for content in (content.get("content", {}).get(_JSON, {}) for content in contents):
                if "schema" in content:
                    content["example"] = example_of(content["schema"], schemas)
    names = [f"`{name}`" for name in KINDS]
    schemas["JobRecord"]["properties"]["kind"]["description"] = f"{', '.join(names[:-1])} or {names[-1]}."
    _type_options(document)
    return document


def example_of(schema: dict[str, Any], schemas: dict[str, Any], *, of: str = "", name: str = "") -> Any:
    """Return an example of `schema`, or None. For a field, `name` is its name, and `of` the schema that has it."""
    example = _known_example(of, name)
    parts = [schema, *schema.get("anyOf", [])]
    parts += [schemas[part["$ref"].rpartition("/")[2]] for part in parts if "$ref" in part]
    choices = [choice for part in parts for choice in part.get("enum", [])]
    if choices and example not in choices:
        return choices[0]
    if example not in (None, []):
        return example
    if any(part.get("type") == "null" for part in parts[1:]):
        return None
    reference = next((part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part), None)
    if reference is not None:
        fields = schemas[reference].get("properties", {})
        return {each: example_of(field, schemas, of=reference, name=each) for each, field in fields.items()}
    if schema.get("type") == "boolean" or "default" in schema:
        return schema.get("default", False)
    if "items" in schema:
        items = example_of(schema["items"], schemas)
        return [] if items is None else [items] * max(schema.get("minItems", 1), 1)
    if schema.get("additionalProperties"):
        return {}
    return None


def _type_options(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    named = {name for name, schema in schemas.items() if "recipe" in schema.get("properties", {})}
    in_camel_case = {name: name.title().replace("_", "") for name in RECIPES}
    for name, recipe in RECIPES.items():
        schemas[f"{in_camel_case[name]}Options"] = {"description": f"Options of the recipe {name}.", **recipe.options}
    for operation in (operation for operations in document["paths"].values() for operation in operations.values()):
        body = operation.get("requestBody", {}).get("content", {}).get(_JSON, {"schema": {}})
        request = body["schema"].get("$ref", "").removeprefix(_PLACE)
        if request not in named:
            continue
        schema, mapping = schemas[request], {}
        for name, prefix in in_camel_case.items():
            properties: dict[str, Any] = {"options": {"$ref": f"{_PLACE}{prefix}Options"}}
            if "trials" in schema["properties"]:
                properties = {"trials": {"type": "array", "items": {"type": "object", "properties": properties}}}
            narrowed = {"type": "object", "properties": {"recipe": {"const": name}, **properties}}
            if name != RECIPE_USUAL:  # so that a body without a recipe matches one schema
                narrowed["required"] = ["recipe"]
            description = f"{schema['description']} For the recipe {name}."
            schemas[prefix + request] = {"description": description, "allOf": [{"$ref": _PLACE + request}, narrowed]}
            mapping[name] = _PLACE + prefix + request
        body["schema"] = {
            "oneOf": [{"$ref": reference} for reference in mapping.values()],
            "discriminator": {"propertyName": "recipe", "mapping": mapping},
        }


def _known_example(schema: str, name: str) -> Any:
    for key in (f"{schema}.{name}", name):
        if key in EXAMPLES:
            return EXAMPLES[key]
    noun, _, end = name.rpartition("_")
    prefix = _PREFIXES.get(noun.rpartition("_")[2])
    if end == "id" and prefix is not None:
        return f"{prefix}{_END_OF_ID}"
    return _DIGEST if end in ("sha256", "hash") else _MOMENT if name.endswith("_at") else None
