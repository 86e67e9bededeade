"""The API's reference for people: Swagger UI, from a package, on what the service says of itself. No key is needed."""

from __future__ import annotations

import mimetypes
from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from swagger_ui_bundle import swagger_ui_path

from service.dashboard.pages import REFERENCE_POLICY, PageRoute, page
from service.errors import NotFound

router = APIRouter(route_class=PageRoute)
FILES = ("swagger-ui-bundle.js", "swagger-ui.css")


@router.get("/reference")
def reference(request: Request) -> HTMLResponse:
    """Show every operation with its fields and examples; with a key, they can be tried."""
    response = page(request, "reference.html", ui_version=version("swagger-ui-bundle-v2"))
    response.headers["Content-Security-Policy"] = REFERENCE_POLICY
    return response


@router.get("/reference/{name}")
def reference_file(name: str) -> Response:
    """Serve one of Swagger UI's files; its address changes with the package's version."""
    if name not in FILES:
        raise NotFound("There is no such file.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response((swagger_ui_path / name).read_bytes(), media_type=mimetypes.guess_type(name)[0], headers=headers)
