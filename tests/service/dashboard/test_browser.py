"""The dashboard in a real browser: the policy blocks nothing of ours, and the script keeps a page fresh."""

import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from PIL import Image

from service.db.job_tables import Job
from service.db.session import transaction

CHROMIUM = Path("/usr/bin/chromium")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--hide-scrollbars",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="headless Chromium is not at /usr/bin/chromium"),
]


@dataclass
class Live:
    """The site behind a real server."""

    address: str
    opened: threading.Event
    cookies: list[tuple[bytes, bytes]]  # sent with every request, as if somebody had signed in


@pytest.fixture
def live(site) -> Iterator[Live]:
    opened, cookies = threading.Event(), []

    async def watched(scope, receive, send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], *cookies]}
        await site.app(scope, receive, send)
        if scope["type"] == "http" and scope["path"] == "/":
            opened.set()

    server = uvicorn.Server(uvicorn.Config(watched, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Live(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", opened, cookies)
    server.should_exit = True
    thread.join(10)


def browse(profile: Path, *arguments: str) -> tuple[str, str]:
    """Run the browser once. Returns what it printed and what its console said."""
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    # A busy machine looks like a slow network to the browser, which says so: not the page's doing.
    console = "\n".join(line for line in said if "Slow network is detected" not in line)
    return done.stdout, console


def test_an_open_page_follows_its_jobs(site, stock, live, tmp_path):
    def go_on() -> None:
        live.opened.wait(60)
        with transaction(site.factory) as session:
            session.get_one(Job, stock.running).progress = {"stage": "teacher_votes", "step": 1449, "steps": 1450}

    later = threading.Thread(target=go_on)
    later.start()
    dom, console = browse(tmp_path / "profile", "--virtual-time-budget=60000", "--dump-dom", f"{live.address}/")
    later.join()
    assert console == ""
    assert "1,449 of 1,450 steps" in dom
    assert "Updating every 2 seconds" in dom


def test_the_policy_blocks_nothing_of_ours(stock, live, tmp_path):
    for page in ("/login", f"/accounts/{stock.account}", f"/releases/{stock.release}", f"/jobs/{stock.running}"):
        dom, console = browse(tmp_path / "profile", "--dump-dom", live.address + page)
        assert console == ""
        assert "</html>" in dom


@pytest.mark.parametrize("width", [1280, 400])
def test_pages_fit_their_window(stock, live, tmp_path, width):
    picture = tmp_path / "page.png"
    for page in ("/", f"/accounts/{stock.account}", f"/releases/{stock.release}"):
        browse(tmp_path / "profile", f"--window-size={width},1600", f"--screenshot={picture}", live.address + page)
        with Image.open(picture) as image:
            shown = image.convert("L")
        assert len(shown.getcolors(256) or []) > 20, "the page is blank"
        margin = shown.crop((width - 10, 0, width, 1600))
        assert len(margin.getcolors(256) or []) <= 4, "something reaches into the margin"


@pytest.mark.parametrize("width", [1280, 400])
def test_forms_of_an_admin_are_shown_and_fit_their_window(site, stock, live, tmp_path, width):
    client = site.signed_in("admin")
    live.cookies.append((b"cookie", "; ".join(f"{name}={value}" for name, value in client.cookies.items()).encode()))
    picture = tmp_path / "page.png"
    forms = {
        f"/accounts/{stock.account}/controls": "Freeze the account",
        f"/datasets/{stock.dataset}": "Delete the images</button>",
    }
    for page, shown in forms.items():
        arguments = (f"--window-size={width},2400", f"--screenshot={picture}", "--dump-dom", live.address + page)
        dom, console = browse(tmp_path / "profile", *arguments)
        assert console == ""
        assert shown in dom
        with Image.open(picture) as image:
            margin = image.convert("L").crop((width - 10, 0, width, 2400))
        assert len(margin.getcolors(256) or []) <= 4, "something reaches into the margin"
