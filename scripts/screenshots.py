"""Take screenshots of every page, check their accessibility, and write the page that shows them.

    python -m scripts.screenshots [--only NAME]

A new service trains on images of Fashion-MNIST. Each page is shown at 1280 and 390 pixels, light and dark, in one image
of docs/images/pages; docs/research/pages.md shows them all. docs/images/plan.png and release.png are those of
tutorials/browser.md. Exits with code 1 if axe-core finds a violation. Needs Chromium at /usr/bin/chromium.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page

import obscura
from benchmarks.small_data import Folder, fashion
from obscura.preparing.layouts.arrays import Arrays
from scripts import images
from service import dashboard
from tests.browser import PATIENCE_MS, chromium, sign_in

DOCS = Path(__file__).resolve().parents[1] / "docs"
VIEWS: list[tuple[int, Literal["light", "dark"]]] = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
HEIGHT_MAX = 2400  # pixels of a page that are shown
SCALE = 0.5
TUTORIAL, TUTORIAL_HEIGHT = ("plan", "release"), 880
# The texts without digits, which do not depend on the data, of menus, headings, labels and paragraphs.
WORDS = """height => [...document.querySelectorAll("nav a, h1, h2, label, p")]
    .filter(each => each.checkVisibility() && each.getBoundingClientRect().bottom <= height)
    .map(each => each.textContent.trim().replace(/\\s+/g, " ")).filter(text => text && !/\\d/.test(text))"""
TRAINED, EVALUATED = 12_000, 2000  # images


def pages(service: obscura.Client, browser: Browser) -> Iterator[tuple[str, str, Browser | None]]:
    """Fill the service step by step, and yield the name and path of each page. A browser marks a viewer signed out."""
    yield "sign-in", "/login", browser
    yield "home-empty", "/", None
    yield "account-new", "/accounts/new", None
    clothes = fashion().cut(TRAINED)
    account = service.accounts.create(name="customers", owner="shop", epsilon=8, delta=1e-6, unit="record")
    service.accounts.create(name="staff", owner="shop", epsilon=3, delta=1e-6, unit="subject")
    yield "upload", f"/datasets/new?account={account.id}", None
    dataset = service.datasets.push(pair(clothes), account_id=account.id, name="clothes", at_most=TRAINED)
    test = clothes.test_images[:EVALUATED], clothes.test_labels[:EVALUATED]
    tests = pair(Folder(*test, *test, clothes.classes))
    public = service.datasets.push(tests, public=True, name="clothes-test", at_most=EVALUATED)
    yield "plan", f"/train?dataset={dataset.id}&recipe=moments&epsilon=1", None
    release = service.jobs.create(dataset.id, epsilon=1, evaluation_dataset_id=public.id).wait().release()
    for evaluation in release.evaluations():
        evaluation.wait()
    for name in ("release", "release-usefulness", "release-guarantee", "release-use", "release-share", "report"):
        yield name, f"/releases/{release.id}/{name.removeprefix('release').removeprefix('-')}".removesuffix("/"), None
    trials = [{"epsilon": 0.2}, {"epsilon": 0.5}]
    sweep = service.sweeps.create(dataset.id, name="budgets", trials=trials, evaluation_dataset_id=public.id).wait()
    compared = "&".join(f"release={trial.release_id}" for trial in sweep.trials)
    yield "sweep", f"/sweeps/{sweep.id}", None
    yield "compare", f"/compare?release={release.id}&{compared}", None
    for recipe, epsilon in (("class_histogram", 0.05), ("dp_classifier", 0.5)):
        made = service.jobs.create(dataset.id, recipe=recipe, epsilon=epsilon).wait().release()
        yield f"release-{recipe}", f"/releases/{made.id}", None
    yield "preview", f"/jobs/{service.preview(dataset.id, epsilon=1).wait().job_id}", None
    yield "releases", "/releases", None
    yield "dataset", f"/datasets/{dataset.id}", None
    yield "datasets", "/datasets", None
    yield "home", "/", None
    account.request_raise(epsilon=10, reason="A second study")
    for name in dashboard.accounts.ACCOUNT_PARTS:
        yield f"account-{name}", f"/accounts/{account.id}{'' if name == 'overview' else f'/{name}'}", None
    yield "invitation", service.invitations.create(role="analyst").link, browser
    yield "decisions", "/decisions", None
    for name in ("members", "keys", "projects", "webhooks", "audit"):
        yield f"settings-{name}", f"/settings/{name}", None
    yield "you", "/you", None
    yield "reference", "/reference", None
    yield "not-found", "/nowhere", None
    running = service.jobs.create(dataset.id, recipe="datalens", epsilon=0.5)
    yield "jobs", "/jobs", None
    yield "job-running", f"/jobs/{running.id}", None
    running.cancel(discard=True)


def pair(folder: Folder) -> Arrays:
    """Return images and class names for an upload."""
    return Arrays(folder.images, [folder.classes[label] for label in folder.labels])


def shoot(page: Page, name: str, path: str) -> list[str]:
    """Write one image with all views of a page; return the accessibility rules that it breaks."""
    shots, broken = [], []
    for width, scheme in VIEWS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(path)
        page.wait_for_load_state("networkidle")
        if name != "report":  # sandboxed: no script runs in it
            broken += [f"{name}, {width}, {scheme}: {each['id']}" for each in Axe().run(page).response["violations"]]
        whole = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        shown = whole.crop((0, 0, width, min(whole.height, HEIGHT_MAX)))
        shots.append(shown.resize((round(width * SCALE), round(shown.height * SCALE)), Image.Resampling.LANCZOS))
        if name in TUTORIAL and (width, scheme) == VIEWS[0]:
            shown_words = page.evaluate(WORDS, TUTORIAL_HEIGHT)
            images.save(whole.crop((0, 0, width, TUTORIAL_HEIGHT)).quantize(192), f"{name}.png", shown_words)
    sheet = Image.new("RGB", (sum(shot.width for shot in shots), max(shot.height for shot in shots)), "white")
    left = 0
    for shot in shots:
        sheet.paste(shot, (left, 0))
        left += shot.width
    (DOCS / "images" / "pages").mkdir(exist_ok=True)
    sheet.save(DOCS / "images" / "pages" / f"{name}.webp", quality=60, method=6)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="write only this page")
    only = parser.parse_args().only
    os.environ["OBSCURA_AUDIT_LOG"] = "on"
    taken, broken = [], []
    with tempfile.TemporaryDirectory() as folder, obscura.local(folder) as service, chromium() as browser:
        url = service.service.url
        page = browser.new_page(base_url=url)
        page.set_default_timeout(PATIENCE_MS)
        sign_in(page, service.service.token)
        for name, path, stranger in pages(service, browser):
            if only in (None, name):
                shown = page if stranger is None else stranger.new_page(base_url=url)
                broken += shoot(shown, name, path)
                taken.append(name)
            if only == name:
                break
    if only is None:
        lines = [f"## {name}\n\n![{name}](../images/pages/{name}.webp)\n" for name in taken]
        (DOCS / "research" / "pages.md").write_text("\n".join([_HEAD, *lines]))
    for line in broken or [f"{len(taken)} pages, no accessibility violation"]:
        sys.stdout.write(f"{line}\n")
    return 1 if broken else 0


_HEAD = """# Every page

`python -m scripts.screenshots` takes these screenshots: each page at 1280 and 390 pixels, light and dark. axe-core
found no violation of its rules on any of them.
"""

if __name__ == "__main__":
    sys.exit(main())
