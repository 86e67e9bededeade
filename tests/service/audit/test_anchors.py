"""The anchor: the newest checkpoint elsewhere, which finds a database that went back with everything beside it."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from service import installation, ledger
from service.audit import anchors
from service.audit.anchors import push_anchor
from service.audit.checkpoints import CHECKPOINT_FILE
from service.backups.making import back_up
from service.backups.restoring import restore
from service.db.session import make_engine, make_session_factory, transaction
from service.inspection import inspect_ledger, nothing_is_found, sign_heads
from service.settings import Settings
from tests.service.audit.book import LedgerBook


@contextmanager
def held_by_a_server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A real HTTP server that keeps what is put; yields its address, and what it holds."""
    kept: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = kept.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(found or b"")

        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/checkpoint", kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(params=["folder", "address"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the copy goes."""
    if request.param == "folder":
        yield str(tmp_path / "elsewhere")
        return
    with held_by_a_server() as (address, _):
        yield address


@contextmanager
def says(answer: list[bytes], *, pause: float = 0.0) -> Iterator[str]:
    """A server that says this to every request, piece by piece; yields its address."""
    over = threading.Event()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            for piece in answer:
                with suppress(OSError):
                    self.wfile.write(piece)
                if over.wait(pause):
                    return

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/checkpoint"
        finally:
            over.set()
            server.shutdown()
            thread.join()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
IN_TROUBLE = {
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.9\r\n"], 0.0),
    "cut short": ([HEAD, b'{"statement"'], 0.0),
    "a head that trickles": ([b"H"] * 600, 0.1),
    "a body that trickles": ([HEAD, *[b" "] * 600], 0.1),
}


def sign(settings: Settings, book: LedgerBook) -> int | None:
    return sign_heads(settings, book.factory, inspect_ledger(settings, book.factory), now=book.tick())


def test_a_database_that_went_back_with_everything_beside_it_is_found(book, settings, anchor, tmp_path):
    settings = settings.model_copy(update={"anchor": anchor})
    assert installation.pair(settings, book.factory, now=book.now)
    assert book.key.key_id
    assert sign(settings, book) == 1
    back_up(settings, book.factory, tmp_path / "backup", with_keys=True, now=book.now)
    book.hold("patients")
    assert sign(settings, book) == 2
    assert inspect_ledger(settings, book.factory).clean
    new = {"data_dir": tmp_path / "new", "database_url": f"sqlite:///{tmp_path / 'new.db'}"}
    restored = restore(settings.model_copy(update=new), tmp_path / "backup", keep_files=False, now=book.now)
    codes = {finding.code.value for finding in restored.report.findings}
    assert codes == {"checkpoint_missing", "older_than_checkpoint"}
    engine = make_engine(new["database_url"])
    went_back = LedgerBook(make_session_factory(engine), tmp_path / "new", book.now, book.accounts)
    assert inspect_ledger(settings.model_copy(update=new | {"anchor": ""}), went_back.factory).clean  # nothing else can
    engine.dispose()


def test_what_is_there_and_newer_or_unreadable_is_left_alone(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = folder / CHECKPOINT_FILE
    for content in ('{"statement": {"sequence": 7}}', "not a checkpoint"):
        file.write_text(content)
        assert not push_anchor(str(folder), {"statement": {"sequence": 6}})
        assert file.read_text() == content
    shutil.rmtree(folder)
    assert push_anchor(str(folder), {"statement": {"sequence": 6}})


def test_an_anchor_that_does_not_answer_stops_nothing_and_a_forged_one_does(book, settings, tmp_path):
    away = settings.model_copy(update={"anchor": "http://127.0.0.1:9/nothing"})
    assert book.key.key_id
    assert inspect_ledger(away, book.factory).clean
    assert sign(away, book) == 1
    (tmp_path / "forged").mkdir()
    (tmp_path / "forged" / CHECKPOINT_FILE).write_text('{"statement": {}, "public_key": "", "signature": ""}')
    forged = settings.model_copy(update={"anchor": str(tmp_path / "forged")})
    (finding,) = inspect_ledger(forged, book.factory).findings
    assert finding.code.value == "checkpoint_file_refused"


@pytest.mark.parametrize("trouble", IN_TROUBLE)
def test_an_anchor_in_trouble_is_not_waited_for_and_stops_nothing(book, settings, trouble, monkeypatch):
    """Nothing is known of what is there, which is no evidence of anything."""
    monkeypatch.setattr(anchors, "WHOLE_SECONDS_MAX", 0.5)
    answer, pause = IN_TROUBLE[trouble]
    with says(answer, pause=pause) as address:
        settings = settings.model_copy(update={"anchor": address})
        assert nothing_is_found(settings, book.factory, now=book.now)
        assert book.key.key_id
        assert sign(settings, book) == 1


def test_a_folder_on_a_disk_that_hangs_is_not_waited_for(book, settings, tmp_path, monkeypatch):
    """As one of the network does whose server is gone: here a pipe that nobody writes to."""
    monkeypatch.setattr(anchors, "WHOLE_SECONDS_MAX", 0.5)
    (tmp_path / "elsewhere").mkdir()
    pipe = tmp_path / "elsewhere" / CHECKPOINT_FILE
    os.mkfifo(pipe)
    settings = settings.model_copy(update={"anchor": str(pipe.parent)})
    try:
        assert nothing_is_found(settings, book.factory, now=book.now)
    finally:
        for _ in range(2):  # whoever waits for it goes on
            with suppress(OSError):
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_checkpoint_of_thousands_of_accounts_is_not_refused(book, settings, tmp_path):
    settings = settings.model_copy(update={"anchor": str(tmp_path / "elsewhere")})
    terms = {"owner": "clinic", "epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
    with transaction(book.factory) as session:
        for number in range(2500):
            ledger.open_account(session, name=f"patients of month {number}", now=book.now, **terms)
    assert book.key.key_id
    assert sign(settings, book) == 1
    assert inspect_ledger(settings, book.factory).clean
