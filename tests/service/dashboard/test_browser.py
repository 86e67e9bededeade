"""The dashboard in a real browser: everybody can use it, the policy blocks nothing of ours, a page follows its jobs."""

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from service.db.job_tables import Job
from service.db.session import transaction
from tests.browser import WINDOWS, a_page, barriers, in_chromium

pytestmark = in_chromium


@pytest.fixture
def live(site) -> Iterator[str]:
    """The address of the site behind a real server."""
    server = uvicorn.Server(uvicorn.Config(site.app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def test_an_open_page_follows_its_jobs(site, stock, live):
    with a_page(base_url=live) as (page, said):
        page.goto("/")
        page.get_by_text("612 of 1,450 steps").first.wait_for()
        with transaction(site.factory) as session:
            session.get_one(Job, stock.running).progress = {"stage": "teacher_votes", "step": 1449, "steps": 1450}
        page.get_by_text("1,449 of 1,450 steps").first.wait_for()
    assert said == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_nothing_serious_keeps_anybody_from_using_a_page(site, stock, live, width, scheme):
    key = site.key("admin")
    with a_page(base_url=live, viewport={"width": width, "height": 900}, color_scheme=scheme) as (page, said):
        page.goto("/login")
        found = {"/login": barriers(page)}
        page.fill("#key", key)
        page.click("main button[type=submit]")
        page.wait_for_url("**/")
        shown = [address for address in stock.pages if "/part" not in address]
        for address in (*shown, "/nowhere"):
            said += [address] if (page.goto(address) or page).url != live + address else []
            found[address] = barriers(page)
    assert {address: what for address, what in found.items() if what} == {}
    assert [text for text in said if "404" not in text] == []  # what the browser says of /nowhere itself
