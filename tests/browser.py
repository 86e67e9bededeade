"""Debian's Chromium, driven by Playwright: where it is, and what every page of ours must pass in it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.together import wait_until

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 180_000  # a training and a drawing on a loaded machine
WINDOWS = [(1280, "light"), (390, "dark")]  # colours do not follow the width, nor the width colours
in_chromium = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="headless Chromium is not at /usr/bin/chromium"),
]


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an application on a port, without its lifespan; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server did not start")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@contextmanager
def a_page(browser: Any = None, **context: Any) -> Iterator[tuple[Any, list[str]]]:
    """Open an empty page without cookies, of a new browser unless one is given; yields it and its console's errors."""
    said: list[str] = []
    with chromium() if browser is None else nullcontext(browser) as running:
        page = running.new_page(**context)
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        yield page, said
        page.close()


def sign_in(page: Any, key: str) -> None:
    page.goto("/login")
    page.fill("#key", key)
    page.click("main button[type=submit]")
    page.wait_for_url("**/")


def barriers(page: Any) -> list[str]:
    """What keeps somebody from using the page: violations of axe-core's rules, and text out of sight."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    said = [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]
    too_wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return said + ([f"the page is {too_wide} pixels too wide"] if too_wide > 0 else [])
