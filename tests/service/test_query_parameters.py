"""Whatever a query says, no page and no list of the API answers with a server error.

Routes and their parameters are read from the application itself. Every route is also asked with the parameters of all
others: somebody takes the address of one list and puts another's filter behind it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from benchmarks.api_stock import lay_in
from benchmarks.fuzz_api import STOCK
from service import dashboard
from service.api.events import StreamLimits
from service.api.routes import ROUTERS
from service.main import create_app
from service.settings import Settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.filterwarnings("ignore", message="Using `httpx`")
    from fastapi.testclient import TestClient

ODD = ("", "datalens", "\0", "\u202e'%", "-1", "9" * 30, "x" * 9000)


def _parts(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for part in dependant.dependencies:
        yield from _parts(part)


def _reading_routes() -> dict[str, set[str]]:
    """Every address that is read, with the names of its query parameters."""
    found = {}
    for router in (*ROUTERS, *dashboard.PARTS):
        for route in router.routes:
            if isinstance(route, APIRoute) and "GET" in route.methods:
                found[route.path] = {field.alias for part in _parts(route.dependant) for field in part.query_params}
    return found


@pytest.fixture
def site(database_url: str, tmp_path: Any) -> Iterator[tuple[TestClient, dict[str, str]]]:
    """A service with something of everything, and ids for the places in addresses."""
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, mode="celery")
    app = create_app(settings, stream_limits=StreamLimits(seconds_max=0.0), send=lambda _name, _args: None)
    with TestClient(
        app, raise_server_exceptions=False, follow_redirects=False, base_url="http://127.0.0.1:8420"
    ) as client:
        stock = asdict(lay_in(app.state.factory, settings.data_dir, **STOCK))
        token = stock.pop("token")
        assert client.post("/login", data={"key": token}).headers["location"] == "/"
        client.headers["Authorization"] = f"Bearer {token}"
        yield client, stock | {"part": "ledger"}


def test_no_query_meets_a_server_error(site):
    client, ids = site
    routes = _reading_routes()
    assert {"/datasets", "/jobs", "/releases", "/v1/jobs", "/v1/datasets"} <= set(routes)
    names = sorted(set().union(*routes.values()))
    assert {"recipe", "state", "account", "q", "before", "cursor", "limit"} <= set(names)
    broken, asked = set(), 0
    for path in routes:
        address = re.sub(r"\{(\w+)(:path)?\}", lambda place: ids.get(place[1], "x"), path)
        for name in names:
            # What a route does not know is ignored or refused, whatever it says: one ordinary value tells.
            for value in ODD if name in routes[path] else ("datalens",):
                answer = client.get(address, params={name: value})
                asked += 1
                if answer.status_code >= 500:
                    broken.add((path, name, value[:20], answer.status_code))
    assert not broken
    assert asked > 500
    assert client.get("/datasets").status_code == client.get("/v1/datasets").status_code == 200
    for address, foreign in (("/datasets", "recipe"), ("/releases", "state"), ("/jobs", "q")):
        refused = client.get(address, params={foreign: "datalens"})
        assert refused.status_code == 422
        assert f"cannot be narrowed by {foreign}" in refused.text
