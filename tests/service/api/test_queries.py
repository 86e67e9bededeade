"""Every route and page asks the database the same number of questions, however much is stored. Both databases."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import event

from benchmarks.api import filled, routes
from benchmarks.api_stock import Stock, lay_in
from service.settings import Settings
from tests.service.api.conftest import Served, serving

# Eight times as much, and in the end more than one page of everything.
SMALL = {"accounts": 8, "jobs": 30, "entries": 250}
LARGE = {"accounts": 64, "jobs": 240, "entries": 2000}


@contextmanager
def counted(app: Any) -> Iterator[list[str]]:
    """Collect the questions that reach the driver from the threads that answer requests."""
    asked: list[str] = []

    def note(statement: Any) -> None:
        answering = threading.current_thread().name.startswith("AnyIO worker")
        if answering and str(statement).lstrip().upper().startswith(("SELECT", "WITH")):
            asked.append(str(statement))

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **more: Any) -> Any:
            note(query)
            return super().execute(query, *arguments, **more)

    def watch(connection: Any, _record: Any, _proxy: Any) -> None:
        if isinstance(connection, psycopg.Connection):
            connection.cursor_factory = Cursor
        else:
            connection.set_trace_callback(note)

    event.listen(app.state.service.factory.kw["bind"], "checkout", watch)
    yield asked
    event.remove(app.state.service.factory.kw["bind"], "checkout", watch)


def questions(app: Any, url: str, stock: Stock) -> dict[str, int]:
    """How many questions each route and page asks, by its address with names instead of ids."""
    found = {}
    with httpx.Client(base_url=url, timeout=60) as client, counted(app) as asked:
        client.headers["Authorization"] = f"Bearer {stock.token}"
        assert client.post("/login", data={"key": stock.token}).status_code == 303
        for route in routes():
            for number, address in enumerate(filled(route, stock)):
                asked.clear()
                answer = client.get(address)
                assert answer.status_code == 200, (address, answer.text[:300])
                found[f"{route} {number}"] = len(asked)
    return found


@pytest.fixture(scope="module")
def grown(place: Settings) -> Iterator[tuple[Served, Stock, list[dict[str, int]]]]:
    """A service, its newest stock, and the questions of each route when little was stored and when more was."""
    with serving(place.model_copy(update={"page_size_max": 200})) as served:
        asked = []
        for size in (SMALL, LARGE):
            stock = lay_in(served.factory, place.data_dir, **size)
            asked.append(questions(served.app, served.url, stock))
        yield served, stock, asked


def test_no_route_and_no_page_asks_more_when_more_is_stored(grown):
    _, _, (before, after) = grown
    assert {name: count for name, count in after.items() if count != before[name]} == {}
    assert 0 < max(after.values()) <= 24, sorted(after.items(), key=lambda each: -each[1])[:4]
    assert after["/train 1"] == after["/train 2"], "of a search with more trials"
    for silent in ("/v1/health/live 0", "/login 0", "/static/{name} 0"):
        assert after[silent] == 0


@pytest.mark.parametrize(
    ("start", "link", "shown", "expected"),
    [
        ("/", "?after=", 'id="row-acc_', SMALL["accounts"] + LARGE["accounts"]),
        ("/jobs", "?before=", 'id="row-job_', SMALL["jobs"] + LARGE["jobs"]),
        ("/releases", "?before=", 'id="card-rel_', None),
    ],
)
def test_pages_lead_through_everything_once(grown, start, link, shown, expected):
    served, stock, _ = grown
    seen = _walk(served.browser(stock.token), start, link, shown)
    assert len(seen) == len(set(seen))
    assert expected in (None, len(seen))


def _walk(client: httpx.Client, start: str, link: str, shown: str) -> list[str]:
    seen: list[str] = []
    address: str | None = start
    while address is not None:
        text = client.get(address).text
        main = text.split('data-live="/parts/jobs"')[0] if start == "/" else text
        seen += [part.split('"')[0] for part in main.split(shown)[1:]]
        targets = [part.split('"')[0] for part in main.split(f'href="{start}{link}')[1:]]
        address = f"{start}{link}{targets[0]}" if targets else None
    return seen
