"""Every address that is read, from the application itself, and a service that has something at each."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from fastapi import FastAPI, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from benchmarks.api_stock import SMALL, lay_in
from service import dashboard
from service.api.events import StreamLimits
from service.api.routes import routers
from service.main import create_app, utc_now
from service.settings import Settings

with warnings.catch_warnings():
    # Starlette prefers a successor of httpx that is not among our dependencies; its client works with httpx.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.filterwarnings("ignore", message="Using `httpx`")
    from fastapi.testclient import TestClient


_ROUTES: list[BaseRoute] = []


def application(settings: Settings, **parts: Any) -> FastAPI:
    """An application that sends no messages, with the first one's routes: resolving them takes a tenth of a second."""
    app = create_app(settings, send=lambda _name, _args: None, **parts)
    _ROUTES.extend([] if _ROUTES else app.router.routes)
    app.router.routes[:] = _ROUTES
    return app


def reading_routes() -> dict[str, set[str]]:
    """Paths that are read, each with the names of its query parameters."""
    found = {}
    for router in (*routers(), *dashboard.PARTS):
        for route in router.routes:
            if isinstance(route, APIRoute) and "GET" in route.methods:
                parameters = get_flat_params(route.dependant)
                found[route.path] = {each.alias for each in parameters if isinstance(each.field_info, params.Query)}
    return found


def address(path: str, ids: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)(:path)?\}", lambda place: ids.get(place[1], "x"), path)


@contextmanager
def stocked(settings: Settings, clock: Callable[[], datetime] = utc_now) -> Iterator[tuple[TestClient, dict[str, str]]]:
    """A service with something of everything, as somebody sees it who is signed in; and ids for places in addresses."""
    app = application(settings, clock=clock, stream_limits=StreamLimits(seconds_max=0.0))
    with TestClient(
        app, raise_server_exceptions=False, follow_redirects=False, base_url="http://127.0.0.1:8420"
    ) as client:
        stock = asdict(lay_in(app.state.service.factory, settings.data_dir, **SMALL))
        token = stock.pop("token")
        assert client.post("/login", data={"key": token}).headers["location"] == "/"
        client.headers["Authorization"] = f"Bearer {token}"
        yield client, stock | {"part": "ledger", "tab": "guarantee", "number": "0"}
