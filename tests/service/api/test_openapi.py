"""The OpenAPI document in the repository is the one that the service serves (`obscura openapi > docs/openapi.json`)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from service.api.openapi import EXAMPLES
from service.main import create_app
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict[str, Any]:
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("data"))).openapi()


def test_the_document_in_the_repository_is_current(document):
    written = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    assert document == written, "the interface changed: review it, then run `obscura openapi > docs/openapi.json`"


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_nothing_is_without_a_description(document):
    assert document["openapi"].startswith("3.1")
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    missing = [name for name, schema in document["components"]["schemas"].items() if not schema.get("description")]
    for name, schema in document["components"]["schemas"].items():
        fields = schema.get("properties", {}).items()
        missing += [f"{name}.{field}" for field, facts in fields if not facts.get("description")]
    for name, operation in operations(document):
        assert name.split()[1].startswith("/v1/")
        errors = {status: facts for status, facts in operation["responses"].items() if int(status) >= 400}
        assert {"429", "500", "503"} <= set(errors)
        for facts in errors.values():
            response = document["components"]["responses"].get(facts.get("$ref", "").rpartition("/")[2], facts)
            assert "application/problem+json" in response["content"]
        if not (operation.get("tags") and set(operation["tags"]) <= tags):
            missing.append(name)
        missing += [f"{name} {field}" for field in ("summary", "description") if not operation.get(field)]
        missing += [f"{name} {each['name']}" for each in operation.get("parameters", []) if not each.get("description")]
    assert missing == []
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_every_operation_has_an_example_that_fits_its_schema(document):
    definitions = json.loads(json.dumps(document["components"]))
    looked_at = set()
    for name, operation in operations(document):
        for part in (operation.get("requestBody", {}), *operation["responses"].values()):
            content = part.get("content", {}).get("application/json", {})
            if content.get("schema"):
                looked_at.add(name)
                schema = {**content["schema"], "components": definitions}
                jsonschema_rs.validate(schema, content["example"])
        for parameter in operation.get("parameters", []):
            looked_at.add(name)
            schema = {**parameter["schema"], "components": definitions}
            jsonschema_rs.validate(schema, parameter["example"])
    assert looked_at == {name for name, _ in operations(document)}


def test_there_is_no_example_that_nobody_uses(document):
    used = {"file_name"}
    for name, schema in document["components"]["schemas"].items():
        used |= {spelt for field in schema.get("properties", {}) for spelt in (field, f"{name}.{field}")}
    used |= {each["name"] for _, operation in operations(document) for each in operation.get("parameters", [])}
    assert set(EXAMPLES) <= used


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/previews", "/v1/jobs", "/v1/sweeps"])
def test_options_are_those_of_the_recipe_that_a_body_names(document, path):
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**schema, "components": document["components"]})

    def fits(recipe: str, options: dict[str, Any]) -> bool:
        order: dict[str, Any] = {"options": options}
        body = {"name": "rates", "trials": [order] * 2} if path == "/v1/sweeps" else order
        return validator.is_valid({"dataset_id": "ds_1", "recipe": recipe, "epsilon": 1.0, **body})

    assert fits("dpgan", {"latent": 5, "clip": 1})
    assert not fits("dpgan", {"teachers": 5})
    assert not fits("dpgan", {"latent": 0})
    assert not fits("dpgan", {"latent": True})
    assert fits("datalens", {"preset": "published", "teachers": 5, "stddev": None})
    assert not fits("datalens", {"preset": "fashion_mnist"})
    assert not fits("none_such", {})
    unnamed = {"dataset_id": "ds_1", "epsilon": 1.0, "name": "rates", "trials": [{}, {}]}
    unnamed = {name: unnamed[name] for name in unnamed if path == "/v1/sweeps" or name in ("dataset_id", "epsilon")}
    assert validator.is_valid(unnamed), "the recipe is optional"
    named = schema["discriminator"]["mapping"]
    assert {name: f"#/components/schemas/{at.rpartition('/')[2]}" for name, at in named.items()} == named
    assert sorted(named.values()) == sorted(each["$ref"] for each in schema["oneOf"])
