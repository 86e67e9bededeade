"""Refusal of unknown query parameters, fields and content types; the message names the known ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, get_args

from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from pydantic import BaseModel

from service.errors import InvalidInput, ObscuraError


class UnsupportedMediaType(ObscuraError):
    """The route does not read bodies of this content type."""

    code: ClassVar[str] = "unsupported_media_type"


async def refuse_the_unknown(request: Request) -> None:
    """Refuse unknown query parameters (InvalidInput) and content types (UnsupportedMediaType)."""
    route = request.scope["route"]
    parameters = get_flat_params(route.dependant)
    known = [field.alias for field in parameters if isinstance(field.field_info, params.Query)]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes none"
        raise InvalidInput(f"A query parameter is unknown. This address {takes}.", known=known)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    if route.body_field is not None and not empty and kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType("Send the body as JSON, with 'Content-Type: application/json'.")
    if request.method == "PUT" and kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        raise UnsupportedMediaType("Send the file itself as the body, not a form: 'curl -T FILE'.")


def field_names(route: Any, location: Sequence[int | str]) -> list[str]:
    """Return the known fields of the part of a body in which an error lies."""
    body = getattr(route, "body_field", None)
    models = list(_models(body.field_info.annotation)) if body is not None else []
    for step in location[1:-1]:
        if isinstance(step, str):
            fields = [model.model_fields[step] for model in models if step in model.model_fields]
            models = [inner for field in fields for inner in _models(field.annotation)]
    return [name for model in models for name in model.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
