"""Take the screenshots of tutorials/browser.md: docs/images/plan.png and docs/images/release.png.

    python -m scripts.screenshots

A new service trains `moments` at ε = 1 on the 60,000 images of Fashion-MNIST. Needs Chromium at /usr/bin/chromium.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import obscura
from benchmarks.small_data import fashion
from obscura.preparing.layouts.arrays import Arrays

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
WINDOW = {"width": 1280, "height": 880}
PATIENCE_MS = 180_000


def shoot(page: Page, name: str, address: str, *, ready: str) -> None:
    """Write the visible part of a page to docs/images once an element is visible."""
    page.goto(address)
    page.locator(ready).first.wait_for()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=FOLDER / f"{name}.png")


def main() -> None:
    clothes = fashion()
    with tempfile.TemporaryDirectory() as name, obscura.local(name) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(base_url=service.service.url, viewport=WINDOW)
        page.set_default_timeout(PATIENCE_MS)
        account = service.accounts.create(name="customers", owner="shop", epsilon=3, delta=1e-6, unit="record")
        pair = Arrays(clothes.images, [clothes.classes[label] for label in clothes.labels])
        dataset = service.datasets.push(pair, account_id=account.id, name="clothes", at_most=60_000)

        page.goto("/login")
        page.fill("#key", service.service.token)
        page.click("main button[type=submit]")
        page.wait_for_url("**/")
        shoot(page, "plan", f"/train?dataset={dataset.id}&recipe=moments&epsilon=1", ready="button:has-text('Train')")
        release = service.jobs.create(dataset.id, recipe="moments", epsilon=1).wait().release()
        shoot(page, "release", f"/releases/{release.id}", ready=".tiles img")
        browser.close()


if __name__ == "__main__":
    main()
