"""Byte ranges and cursors, without a service."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from service.api import problems
from service.api.answers import decode_cursor, encode_cursor, send_file
from service.errors import InvalidInput

CONTENT = bytes(range(256)) * 8
Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Ask for a file of 2,048 bytes, or another content."""

    def ask(content: bytes = CONTENT, **headers: str) -> httpx.Response:
        path, app = tmp_path / "file", FastAPI()
        path.write_bytes(content)
        problems.install(app)

        @app.get("/")
        def read(request: Request) -> Response:
            return send_file(request, path, sha256="0" * 64, media_type="image/png", filename="a.png")

        return TestClient(app).get("/", headers={name.replace("_", "-"): text for name, text in headers.items()})

    return ask


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=100-199", 100, 199),
        ("bytes=2000-", 2000, 2047),
        ("bytes=-48", 2000, 2047),
        ("bytes=2000-999999", 2000, 2047),
        ("bytes=-999999", 0, 2047),
    ],
)
def test_ranges_are_inclusive(ask, asked, first, last):
    answer = ask(Range=asked)
    assert (answer.status_code, answer.content) == (206, CONTENT[first : last + 1])
    assert answer.headers["content-range"] == f"bytes {first}-{last}/2048"
    assert answer.headers["content-length"] == str(last + 1 - first)


UNREADABLE = ["", "bytes=5-2", "lines=1-2", "bytes=-", "nonsense", f"bytes={'9' * 5000}-"]


@pytest.mark.parametrize("asked", [*UNREADABLE, "bytes=0-1,4-5", "bytes=0-1,1-2"])
def test_ranges_that_cannot_be_read_mean_everything_and_so_do_several(ask, asked):
    answer = ask(Range=asked)
    assert (answer.status_code, answer.content, "content-range" in answer.headers) == (200, CONTENT, False)


@pytest.mark.parametrize("asked", ["bytes=2048-", "bytes=-0", "bytes=9999-10000"])
def test_ranges_outside(ask, asked):
    answer = ask(Range=asked)
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */2048"


def test_nothing_of_nothing(ask):
    assert ask(b"", Range="bytes=0-").status_code == 416
    assert (ask(b"").status_code, ask(b"").content) == (200, b"")


def test_only_what_the_client_has_is_continued(ask):
    etag = f'"{"0" * 64}"'
    assert ask(Range="bytes=5-", If_Range=etag).content == CONTENT[5:]
    for other in ('"something-else"', f"W/{etag}", "Wed, 25 Nov 2026 17:00:00 GMT", ""):
        assert ask(Range="bytes=5-", If_Range=other).content == CONTENT
    for same in (etag, f"W/{etag}", "*", f'"a", {etag}'):
        assert ask(If_None_Match=same).status_code == 304


def test_nothing_is_told_of_a_file_but_what_it_is_and_how_long(ask):
    told = {"accept-ranges", "cache-control", "content-disposition", "content-length", "content-type", "etag"}
    assert set(ask().headers) == told
    assert set(ask(Range="bytes=0-1").headers) == told | {"content-range"}


def test_cursors_come_back():
    assert decode_cursor(None, str) is None
    assert decode_cursor(encode_cursor("job_x"), str) == "job_x"
    assert decode_cursor(encode_cursor(7), int) == 7
    for value, kind in ((7, str), ("job_x", int), (True, int)):
        with pytest.raises(InvalidInput):
            decode_cursor(encode_cursor(value), kind)
