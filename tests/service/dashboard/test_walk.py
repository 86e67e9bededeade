"""From an empty service to private images in a real browser, by clicks alone."""

import time
import zipfile
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_digits

from obscura.client.local_service import LocalService
from tests.browser import PATIENCE_MS, WINDOWS, a_page, barriers, in_chromium, sign_in
from tests.pictures import archive, saved

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts"), *in_chromium]


def digits(path: Path, count: int = 300, *, odd: bool = False) -> Path:
    """A ZIP of real digits, a folder for each, with more than 4 MiB; the last one may have another size."""
    found, padding = load_digits(), PngInfo()
    padding.add_text("padding", "x" * 15_000)
    images = [Image.fromarray(pixels) for pixels in (found.images[:count] * (255 / 16)).astype("uint8")]
    if odd:
        images[-1] = images[-1].resize((9, 9))
    names = [f"{found.target[number]}/{number}.png" for number in range(count)]
    path.write_bytes(archive(*zip(names, (saved(image, pnginfo=padding) for image in images), strict=True)))
    assert path.stat().st_size > 4 * 2**20
    return path


# A job's page hears of the end just after somebody clicked: its reload must not take back where they are going.
# That the job has ended is seen before, as if the page had just come into sight again.
HEARD_LATE = """
const add = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, heard) {
  const late = (event) => {
    addEventListener("click", () => setTimeout(heard, 200, event));
    document.dispatchEvent(new Event("visibilitychange"));
  };
  add.call(this, name, name === "finished" ? late : heard);
};
"""


def slowly(route):
    """Answer long after the page has heard of the end."""
    time.sleep(1.5)
    route.continue_()


def test_private_images_are_made_by_clicks_alone(tmp_path):
    from playwright.sync_api import expect

    with LocalService(tmp_path / "data") as service, a_page(base_url=service.url) as (page, said):
        sign_in(page, service.token)

        page.click("main a:has-text('Open an account') >> nth=0")
        for field, value in (("name", "writers"), ("owner", "office"), ("epsilon", "3"), ("delta", "1e-5")):
            page.fill(f"#{field}", value)
        page.select_option("#unit", "record")
        page.click("main form button[type=submit]")
        page.wait_for_url("**/accounts/acc_*")

        page.goto("/")
        page.click("main a:has-text('Upload images') >> nth=0")
        for field, value in (("name", "digits"), ("width", "8"), ("height", "8"), ("records_declared", "2000")):
            page.fill(f"#{field}", value)
        page.select_option("#channels", label="grey")
        page.set_input_files("#file", digits(tmp_path / "digits.zip"))
        expect(page.locator("#classes")).to_have_value(", ".join("0123456789"), timeout=PATIENCE_MS)
        page.select_option("#account_id", label="writers")
        page.set_input_files("#file", digits(tmp_path / "odd.zip", odd=True))
        page.click("[data-declare] button[type=submit]")
        expect(page.locator("[data-problem]")).to_contain_text("8 x 8", timeout=PATIENCE_MS)
        assert "digits" not in page.request.get("/datasets").text(), "a refused upload leaves no declaration"
        said.clear()  # the browser notes the refusal
        page.set_input_files("#file", tmp_path / "digits.zip")
        page.click("[data-declare] button[type=submit]")
        page.click("a:has-text('Plan a training')")

        page.fill("#epsilon", "2")
        page.get_by_label("Yes, spend ε 2").check()  # more than half of what is left
        page.click("button:has-text('Train for ε 2')")  # once the price is that of the number above
        page.add_init_script(HEARD_LATE)
        page.wait_for_url("**/jobs/job_*")
        page.reload()
        page.route("**/releases/rel_*", slowly)
        page.click("a:has-text('See the release')")
        page.wait_for_url("**/releases/rel_*")
        page.unroute("**/releases/rel_*")
        release = page.url
        grid = page.locator("figure.sheet img")
        assert grid.evaluate("image => image.complete && image.naturalWidth > 100")

        page.fill("#count", "20")
        page.click("button:has-text('Generate')")
        with page.expect_download() as download:
            page.click("a:has-text('Download 20 images')")
        with zipfile.ZipFile(download.value.path()) as archive:
            assert sum(name.endswith(".png") for name in archive.namelist()) == 20

        report = page.request.get(f"{release}/report").text()  # as it is served, no script runs in it: not axe-core's
        for width, scheme in WINDOWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            for address, ready in ((release, "figure.sheet"), ("/reference", ".opblock-tag")):
                page.goto(address)
                page.locator(ready).first.wait_for()
                assert barriers(page) == []
            page.goto("about:blank")
            page.set_content(report)
            assert barriers(page) == []
    assert said == []
