"""The OpenAPI document: the framework's, with the schema of problem documents that every operation refers to."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.api.schemas import Problem

REFERENCE = "#/components/schemas/{model}"


def describe_problems(app: FastAPI) -> None:
    """Add the schema of problem documents to what `app.openapi()` returns."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemas = document["components"]["schemas"]
        if "Problem" not in schemas:
            schema = Problem.model_json_schema(ref_template=REFERENCE)
            schemas.update(schema.pop("$defs", {}))
            schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the document
