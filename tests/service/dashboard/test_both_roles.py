"""A data owner, a second admin and an analyst in real browsers: everything by clicks and drops, without a typed id."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_digits

from obscura.client.local_service import LocalService
from tests.browser import PATIENCE_MS, barriers, in_chromium, sign_in
from tests.pictures import saved, write_files
from tests.service.dashboard.test_settings import accept_as_admin, admit, invited_by, pages, raise_limit
from tests.service.dashboard.test_uploads import drop, fill, submit

pytestmark = [*in_chromium, pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]
TRAINED, TESTED = 3000, 297


def folder(path: Path, first: int, count: int) -> Path:
    """A folder of real digits in mixed sizes, colour modes and file types, about 20 kB each."""
    found, padding, rng = load_digits(), PngInfo(), np.random.default_rng(first)
    padding.add_text("padding", "x" * 20_000)
    files = {}
    for number in range(first, first + count):
        at = number % (1797 - TESTED) if first == 0 else number  # tests are other digits
        side, mode = int(rng.integers(20, 60)), ("L", "RGB", "RGBA")[number % 3]
        image = Image.fromarray((found.images[at] * (255 / 16)).astype("uint8")).resize((side, side)).convert(mode)
        kind = "JPEG" if mode == "RGB" else "PNG"
        content = saved(image, kind) if kind == "JPEG" else saved(image, pnginfo=padding)
        files[f"{found.target[at]}/{number}.{kind.lower()}"] = content + b"x" * (20_000 if kind == "JPEG" else 0)
    assert sum(map(len, files.values())) > 20_000 * count
    write_files(path, files | {".DS_Store": b"x", "__MACOSX/0/._1.png": b"x"})
    return path


def upload(page, path: Path, account: str, **fields) -> None:
    page.goto("/datasets/new")
    drop(page, path)
    fill(page, account, width=8, channels="1", **fields)
    submit(page)
    page.wait_for_url("**/datasets/ds_*", timeout=PATIENCE_MS)


def train(page, percent: str) -> str:
    """Train from the page of the dataset with a part of what is left; return the page of the release."""
    page.get_by_role("link", name="Plan a training").click()
    with page.expect_response("**/train/price?*"):
        page.locator("#slider").fill(percent)
    page.get_by_role("button", name="Train for ε").click()
    page.wait_for_url("**/jobs/job_*")
    page.get_by_role("link", name="See the release").click(timeout=PATIENCE_MS)
    page.wait_for_url("**/releases/rel_*")
    return page.url


def test_two_admins_and_an_analyst_do_everything_by_clicks(browser, tmp_path):
    with LocalService(tmp_path / "data") as service, pages(browser, service.url, 3) as (owner, second, analyst):
        sign_in(owner, service.token)
        owner.get_by_role("link", name="Open account").first.click()
        for field, value in (("name", "writers"), ("owner", "office"), ("units", str(TRAINED))):
            owner.fill(f"#{field}", value)
        owner.check("#unit-record")
        owner.get_by_label("ε 3").check()
        owner.get_by_role("button", name="Review account").click()
        owner.get_by_role("button", name="Open account").click()
        owner.wait_for_url("**/accounts/acc_*")
        account = owner.url

        upload(owner, folder(tmp_path / "tests", 1500, TESTED), "None", records_declared=TESTED + 3)
        upload(owner, folder(tmp_path / "digits", 0, TRAINED), "writers", records_declared=4000)
        dataset = owner.url
        owner.get_by_role("link", name="Plan a training").click()
        owner.get_by_role("button", name="Preview before you spend").click()
        owner.wait_for_url("**/jobs/job_*")
        owner.locator("figure.sheet img").wait_for(timeout=PATIENCE_MS)
        releases = []
        for percent in ("20", "10"):
            owner.goto(dataset)
            releases.append(train(owner, percent))

        owner.locator(".tiles img").first.click()
        owner.get_by_role("dialog").locator("img").wait_for()
        owner.keyboard.press("Escape")
        with owner.expect_download() as download:
            owner.get_by_role("link", name=re.compile("^Download .* images")).click()
        with zipfile.ZipFile(download.value.path()) as archive:
            assert sum(name.endswith(".png") and "/" in name for name in archive.namelist()) == 2000
        for address in releases:
            owner.goto(address)
            owner.get_by_role("link", name="Usefulness").click()
            owner.get_by_role("button", name="Evaluate, free").click()
            owner.wait_for_url("**/jobs/job_*")
            owner.locator(".state.succeeded").wait_for(timeout=PATIENCE_MS)
        owner.get_by_role("link", name="Releases", exact=True).click()
        for box in owner.get_by_label("Compare ").all():
            box.check()
        owner.get_by_role("button", name="Compare releases").click()
        assert barriers(owner) == []
        assert re.search(r"\d+%", owner.locator("main").inner_text())

        code = accept_as_admin(second, invited_by(owner, "admin"), "Bo")
        admit(owner, second, code)
        raise_limit(owner, second, account, "5")
        owner.goto(account)
        owner.get_by_text("ε 5").first.wait_for()

        analyst.goto(invited_by(owner, "analyst"))
        analyst.fill("#name", "Ana")
        analyst.get_by_role("button", name="Accept invitation").click()
        analyst.get_by_role("link", name="Continue").click()
        analyst.get_by_role("link", name="Datasets").click()
        analyst.get_by_role("link", name="digits").click()
        train(analyst, "20")
        analyst.goto(f"{account}/controls")
        assert analyst.get_by_role("button", name=re.compile("raise|limit", re.IGNORECASE)).count() == 0

        owner.goto("/settings/projects")
        owner.fill("#new-name", "cardiology")
        owner.get_by_label("Separate the installation into projects").check()
        owner.get_by_role("button", name="Create project").click()
        owner.get_by_role("button", name=re.compile("^View (?!cardiology)")).click()
        owner.get_by_role("link", name="Releases", exact=True).click()
        owner.locator(".releases a").first.click()
        owner.get_by_role("link", name="Share", exact=True).click()
        owner.select_option("#share-project", label="cardiology")
        owner.fill("#share-reason", "a joint study")
        owner.get_by_role("button", name="Request sharing").first.click()
        owner.wait_for_url("**/decisions")
        second.goto("/decisions")
        second.get_by_role("button", name=re.compile("^Approve: .*cardiology")).click()
        second.locator(".state", has_text="Approved").nth(1).wait_for()
