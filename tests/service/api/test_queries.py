"""Every route and page asks the database the same number of questions, however much is stored. Both databases."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
from sqlalchemy import event

from benchmarks.api import filled, routes
from benchmarks.api_stock import Stock, lay_in
from tests.service.api.conftest import serving

# Eight times as much, and in the end more than one page of everything.
SMALL = {"accounts": 8, "jobs": 30, "entries": 250}
LARGE = {"accounts": 64, "jobs": 240, "entries": 2000}


@contextmanager
def counted(app: Any) -> Iterator[list[str]]:
    """Collect the questions that reach the driver, those that do not go through SQLAlchemy too.

    Those of the threads that answer requests: the reconciler looks at the database now and then.
    """
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

    event.listen(app.state.factory.kw["bind"], "checkout", watch)
    yield asked
    event.remove(app.state.factory.kw["bind"], "checkout", watch)


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


def test_no_route_and_no_page_asks_more_when_more_is_stored(on_either_database):
    settings = on_either_database.model_copy(update={"page_size_max": 200})
    with serving(settings) as served:
        before, after = (
            questions(served.app, served.url, lay_in(served.factory, settings.data_dir, **stock))
            for stock in (SMALL, LARGE)
        )
    assert {name: count for name, count in after.items() if count != before[name]} == {}
    assert 0 < max(after.values()) <= 24, sorted(after.items(), key=lambda each: -each[1])[:4]
    assert after["/train 1"] == after["/train 2"], "of a search with more trials"
    for silent in ("/v1/health/live 0", "/login 0", "/static/{name} 0"):
        assert after[silent] == 0


def test_pages_lead_through_everything_once(on_either_database):
    """Accounts, jobs that have ended, releases: from page to page, each is shown once."""
    settings = on_either_database.model_copy(update={"page_size_max": 200})
    with serving(settings) as served:
        lay_in(served.factory, settings.data_dir, accounts=60, jobs=240, entries=1500)
        stock = lay_in(served.factory, settings.data_dir, **SMALL)
        client = served.client(None)
        client.post("/login", data={"key": stock.token})
        for start, link, shown, expected in (
            ("/", "?after=", 'id="row-acc_', 68),
            ("/jobs", "?before=", 'id="row-job_', 270),
            ("/releases", "?before=", 'id="card-rel_', None),
        ):
            seen = _walk(client, start, link, shown)
            assert len(seen) == len(set(seen))
            assert expected in (None, len(seen))


def _walk(client: httpx.Client, start: str, link: str, shown: str) -> list[str]:
    """Follow the link to the next page to the end; returns the ids that were shown."""
    seen: list[str] = []
    address: str | None = start
    while address is not None:
        text = client.get(address).text
        main = text.split('data-live="/parts/jobs"')[0] if start == "/" else text
        seen += [part.split('"')[0] for part in main.split(shown)[1:]]
        targets = [part.split('"')[0] for part in main.split(f'href="{start}{link}')[1:]]
        address = f"{start}{link}{targets[0]}" if targets else None
    return seen
