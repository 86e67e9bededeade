"""Answers that are not those of a service end in one typed error, and downloads in what was announced."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

import obscura
from obscura.client import Client, DownloadCorrupt, NoRoom, Release, UnexpectedAnswer, contents, transport
from tests.obscura.client.canned import Answer, answering, client_of, command

pytestmark = pytest.mark.usefixtures("no_backoff")
HTML = {"Content-Type": "text/html", "Server": "squid\x1b[2J", "Via": "1.1 proxy.lan"}
JSON = {"Content-Type": "application/json"}
STRANGE = {
    "a page of a proxy": Answer(200, b"<html>Please log in</html>", HTML),
    "a failure of a proxy": Answer(403, b"<html>Denied</html>", HTML),
    "nothing": Answer(200, b"", JSON),
    "no content": Answer(204, b"", {}),
    "a redirect": Answer(302, b"", {"Location": "https://login.example.org"}),
    "not modified": Answer(304, b"", {}),
    "half of it": Answer(200, b'{"items": [{"id": "acc', JSON),
    "another type": Answer(200, b"[1, 2]", JSON),
    "types inside that are wrong": Answer(200, b'{"items": 5, "next_cursor": {}, "id": 7, "state": []}', JSON),
    "null": Answer(200, b"null", JSON),
    "no UTF-8": Answer(200, b"\xff\xfe", JSON),
    "a problem of another kind": Answer(400, b'{"error": "x"}', JSON),
}
SAMPLE = {
    "id": "smp_a", "release_id": "rel_a", "job_id": "job_a", "state": "succeeded", "count": 3, "seed": 0,
    "format": "imagefolder", "classes": None, "proportions": None, "sha256": "0" * 64, "bytes": 10, "failure": None,
    "created_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
ASKED: dict[str, Callable[[Client], Any]] = {
    "a list": lambda client: list(client.accounts.list()),
    "one": lambda client: client.accounts.get("acc_a"),
    "a job": lambda client: client.jobs.get("job_a"),
    "recipes": lambda client: client.recipes.list(),
    "what is made": lambda client: client.projects.create(name="a"),
    "a training": lambda client: client.jobs.create("ds_a", recipe="moments", epsilon=1),
    "readiness": lambda client: client.wait_ready(0),
    "a document": lambda client: client.transport.document("/v1/releases/rel_a/card"),
    "events": lambda client: list(obscura.Job.events(bound(client, obscura.Job, "job_a"))),
    "an upload": lambda client: bound(client, obscura.Dataset, "ds_a").push([b"x"], format="zip"),
}


def bound(client: Client, kind: Any, id: str) -> Any:
    made = kind.model_construct(id=id)
    made._transport = client.transport
    return made


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("asked", ASKED)
def test_an_answer_that_is_not_the_services_says_what_answered(strange, asked):
    if (strange, asked) in (("no content", "events"), ("types inside that are wrong", "a document")):
        return  # which ends a stream of events, and is a document
    with client_of(lambda *_: STRANGE[strange]) as client, pytest.raises(UnexpectedAnswer) as error:
        ASKED[asked](client)
    assert str(STRANGE[strange].status) in str(error.value)
    assert client.transport.base_url in str(error.value)
    assert str(error.value).isprintable()
    if STRANGE[strange].headers is HTML:
        assert "squid" in str(error.value)
    assert error.value.code == "unexpected_answer"


def test_the_same_for_asyncio_and_the_command_line():
    async def ask(url: str) -> None:
        async with obscura.connect_async(url, "key") as client:
            await client.accounts.get("acc_a")

    with answering(lambda _method, _path: STRANGE["a page of a proxy"]) as server:
        with pytest.raises(UnexpectedAnswer):
            asyncio.run(ask(server.url))
        for line in ("accounts list", "jobs show job_a", "doctor", "recipes", "releases card rel_a"):
            ran = command(server.url, *line.split())
            assert ran.exit_code == 1, ran.output
            assert "did not answer like an Obscura service" in " ".join(ran.output.split()), ran.output
            assert "\x1b" not in ran.output


def test_a_list_that_does_not_end_and_an_answer_without_end_are_refused(monkeypatch):
    monkeypatch.setattr(transport, "ANSWER_BYTES_MAX", 1000)
    for content, said in ((b'{"items": [], "next_cursor": "a"}', "does not end"), (b" " * 5000, "more than")):
        answer = Answer(200, content, JSON)
        with client_of(lambda *_, answer=answer: answer) as client, pytest.raises(UnexpectedAnswer, match=said):
            list(client.accounts.list())


def sampled(content: bytes, **facts: Any) -> Callable[[str, str], Answer]:
    record = SAMPLE | {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)} | facts

    def answer(_method: str, path: str) -> Answer:
        if path.endswith("/content"):
            return Answer(200, content, {"Content-Type": "application/zip"})
        return Answer(200, json.dumps(record).encode(), JSON)

    return answer


def test_a_download_ends_at_what_was_announced(tmp_path):
    for content, facts, error in (
        (b"x" * 5000, {"bytes": 10}, DownloadCorrupt),
        (b"x" * 10, {"sha256": "0" * 64}, DownloadCorrupt),
        (b"x" * 10, {"bytes": 2**60}, NoRoom),
        (b"no archive", {}, DownloadCorrupt),
    ):
        with client_of(sampled(content, **facts)) as client:
            with pytest.raises(error):
                client.samples.get("smp_a").to_imagefolder(tmp_path / "made")
            place = str(tmp_path / "m")
            ran = command(client.transport.base_url, "download", "smp_a", "--unpack", "--out", place)
            assert ran.exit_code == 1, ran.output
            assert isinstance(ran.exception, SystemExit), ran.exception
        assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_download_leads_nowhere_else(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    with answering(sampled(b"content", id="../smp_a")) as server:
        ran = command(server.url, "download", "smp_a")
        assert ran.exit_code == 0, ran.output
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.zip")] == ["in/smp_a.zip"]


def test_a_file_without_an_announced_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "DOWNLOAD_BYTES_MAX", 1000)
    with client_of(lambda *_: Answer(200, b"x" * 5000, {})) as client, pytest.raises(DownloadCorrupt):
        bound(client, Release, "rel_a").save_report(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
