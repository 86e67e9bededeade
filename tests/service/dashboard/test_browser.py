"""The dashboard in a real browser: everybody can use it, by clicks alone; the policy blocks nothing of ours."""

import time
import zipfile
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_digits

from obscura.client.local_service import LocalService
from service.db.job_tables import Job
from tests.browser import PATIENCE_MS, WINDOWS, a_page, barriers, in_chromium, sign_in
from tests.pictures import archive, picture, saved

pytestmark = in_chromium


def test_an_open_page_follows_its_jobs(site, stock, live, browser):
    with a_page(browser, base_url=live) as (page, said):
        page.goto("/")
        page.get_by_text("612 of 1,450 steps").first.wait_for()
        site.change(Job, stock.running, progress={"stage": "teacher_votes", "step": 1449, "steps": 1450})
        page.get_by_text("1,449 of 1,450 steps").first.wait_for()
    assert said == []


def test_neighbouring_files_fill_in_the_same_declaration(site, live, browser, tmp_path):
    """Only the folders' names: neither how many pictures there are, nor what any of them is."""
    names = [f"{('cat', 'dog')[number % 2]}/{number}.png" for number in range(110)]
    usual = [(name, picture(size=(8, 8), value=number)) for number, name in enumerate(names)]
    odd = [picture(mode="RGB", size=(8, 8), value="red"), picture(size=(40, 17)), picture(mode="RGBA", size=(8, 8))]
    albums = [*(usual[:count] for count in (99, 100, 110)), *([(names[0], one), *usual[1:100]] for one in odd)]
    found = []
    from playwright.sync_api import expect  # not without a browser

    with a_page(browser, base_url=live) as (page, said):
        sign_in(page, site.key("admin"))
        for album in albums:
            (tmp_path / "album.zip").write_bytes(archive(*album))
            page.goto("/datasets/new")
            page.set_input_files("#file", tmp_path / "album.zip")
            expect(page.locator("#classes")).not_to_have_value("")
            fields = ("classes", "width", "height", "channels", "records_declared", "subjects_declared")
            found.append({name: page.input_value(f"#{name}") for name in fields})
    assert found == [found[0]] * len(albums)
    assert (found[0]["classes"], found[0]["records_declared"]) == ("cat, dog", "")
    assert said == []


def test_a_zip_of_a_folder_is_declared_by_its_class_folders(site, stock, live, browser, tmp_path, open_account):
    """As macOS writes it. The class names follow the unit of the account, unless somebody has typed them."""
    from playwright.sync_api import expect

    open_account(site.factory, name="families", unit="subject")
    names = ["digits/0/a.png", "digits/1/b.png", "__MACOSX/digits/0/._a.png", "digits/.DS_Store"]
    (tmp_path / "digits.zip").write_bytes(archive(*((name, b"x") for name in names)))
    with a_page(browser, base_url=live) as (page, said):
        sign_in(page, site.key("admin"))
        page.goto("/datasets/new")
        page.set_input_files("#file", tmp_path / "digits.zip")
        expect(page.locator("#classes")).to_have_value("0, 1")
        page.select_option("#account_id", label="families, protects people")
        expect(page.locator("#classes")).to_have_value("")
        page.get_by_text("one outer folder, digits").wait_for()
        page.select_option("#account_id", label="patients")
        expect(page.locator("#classes")).to_have_value("0, 1")
        page.fill("#classes", "0, 2")
        page.fill("#records_declared", "2000")
        page.click("[data-declare] button[type=submit]")
        page.get_by_text("not among the classes").wait_for()
    assert said == []


def test_compare_waits_for_two_releases(site, stock, live, browser):
    job = site.add_job(stock.account, stock.dataset, epsilon=0.2, state="succeeded")
    site.add_release(job, name="second")
    with a_page(browser, base_url=live) as (page, said):
        page.goto("/releases")
        button, boxes = page.get_by_role("button", name="Compare releases"), page.get_by_label("Compare ")
        found = [button.is_disabled()]
        for number in (0, 1):
            boxes.nth(number).check()
            found.append(button.is_disabled())
        button.click()
        page.get_by_role("heading", name="Side by side").wait_for()
    assert (found, said) == ([True, True, False], [])


def test_a_search_is_planned_and_started_by_the_keyboard(site, stock, live, browser):
    key = site.key("train", "read")
    with a_page(browser, base_url=live, viewport={"width": 390, "height": 900}, color_scheme="dark") as (page, said):
        sign_in(page, key)
        page.goto(f"/train?dataset={stock.dataset}&recipe=datalens&epsilon=0.2")
        page.get_by_text("Sweep: try several values").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("teachers")
        page.keyboard.press("Tab")
        page.keyboard.type("100, 0.5")
        page.locator('[data-fault="values-1"]').get_by_text("Trial 2: ").wait_for()
        values = page.get_by_label("Values of option 1")
        found = [(values.get_attribute("aria-invalid"), barriers(page))]
        page.keyboard.press("Control+A")
        page.keyboard.type("100, 300")
        page.get_by_text("Cost of all 2 trials").wait_for()
        assert page.locator('[data-fault="values-1"]').is_hidden()
        found += [(values.get_attribute("aria-invalid"), barriers(page))]
        page.get_by_role("button", name="Train 2 times for ε").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/sweeps/*")
        page.get_by_role("link", name="Teachers 300").wait_for()
    assert found == [("true", []), ("false", [])]
    assert [text for text in said if "422" not in text] == []  # what the browser says of a price that was refused


def test_a_form_shows_errors_opens_what_it_made_and_leads_to_signing_in_again(site, live, browser, open_account):
    open_account(site.factory, name="taken")
    with a_page(browser, base_url=live) as (page, said):
        sign_in(page, site.key("admin"))
        page.goto("/accounts/new?units=1000&unit=record&name=taken&owner=clinic&review=1")
        page.get_by_role("button", name="Open account").click()
        page.locator("[data-problem]").get_by_text("already exists").wait_for()
        page.get_by_role("link", name="Change").click()
        page.fill("#name", "patients")
        page.get_by_role("button", name="Review account").click()
        page.get_by_role("button", name="Open account").click()
        page.wait_for_url("**/accounts/acc_*")
        page.get_by_role("heading", name="patients").wait_for()
        page.goto(f"{page.url}/controls")
        page.context.clear_cookies()
        page.fill("#close-name", "patients")
        page.locator("[data-call$='/close'] button").click()
        page.get_by_text("Your session has ended.").get_by_role("link", name="Sign in again").click()
        page.wait_for_url("**/login?next=%2Faccounts%2Facc_*")
    assert [text for text in said if "409" not in text and "401" not in text] == []


def test_pages_are_read_without_a_script_which_says_what_needs_one(site, stock, live, browser):
    key = site.key("train", "read")
    with a_page(browser, base_url=live, java_script_enabled=False) as (page, _):
        sign_in(page, key)
        page.goto(f"/train?dataset={stock.dataset}&recipe=datalens")
        page.fill("#epsilon", "0.2")
        page.get_by_text("Sweep: try several values").click()
        for number, (option, values) in enumerate((("epsilon", "0.1, 0.2"), ("top_k", "7, 8")), start=1):
            page.select_option(f"#vary-{number}", option)
            page.fill(f"#values-{number}", values)
        page.get_by_role("button", name="Show the cost").click()
        page.get_by_text("Cost of all 4 trials").wait_for()
        assert "Forms that change something need it" in page.content()


@pytest.mark.slow
def test_nothing_serious_keeps_anybody_from_using_a_page(site, stock, live, browser):
    key, found = site.key("admin"), {}
    with a_page(browser, base_url=live) as (page, said):

        def look(address: str) -> None:
            said.extend([address] if (page.goto(address) or page).url != live + address else [])
            for width, scheme in WINDOWS:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                found[address, width] = barriers(page)

        look("/login")
        sign_in(page, key)
        for address in (*(address for address in stock.pages if "/part" not in address), "/nowhere"):
            look(address)
    assert {where: what for where, what in found.items() if what} == {}
    assert [text for text in said if "404" not in text] == []  # what the browser says of /nowhere itself


# --- from an empty service to images ----------------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_private_images_are_made_by_clicks_alone(browser, tmp_path):
    from playwright.sync_api import expect

    with LocalService(tmp_path / "data") as service, a_page(browser, base_url=service.url) as (page, said):
        sign_in(page, service.token)

        page.click("main a:has-text('Open account') >> nth=0")
        for field, value in (("name", "writers"), ("owner", "office"), ("units", "2000")):
            page.fill(f"#{field}", value)
        page.check("#unit-record")
        page.get_by_label("ε 3").check()
        page.click("button:has-text('Review account')")
        page.click("button:has-text('Open account')")
        page.wait_for_url("**/accounts/acc_*")

        page.goto("/")
        page.click("main a:has-text('Upload images') >> nth=0")
        page.get_by_text("More options").click()
        for field, value in (("name", "digits"), ("width", "8"), ("records_declared", "2000")):
            page.fill(f"#{field}", value)
        page.select_option("#channels", label="grey")
        page.select_option("#fit", label="Reject the upload")
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
        tile = page.locator(".tiles img").first
        expect(tile).to_have_js_property("complete", True)
        expect(tile).to_have_js_property("naturalWidth", 8)
        with page.expect_download() as download:
            page.click("a:has-text('Download 2,000 images')")
        with zipfile.ZipFile(download.value.path()) as archive:
            assert sum(name.endswith(".png") and "/" in name for name in archive.namelist()) == 2000

        page.click("a:has-text('Use it')")
        page.fill("#count", "20")
        page.click("button:has-text('Generate')")
        with page.expect_download() as download:
            page.click("a:has-text('Download 20 images')")
        with zipfile.ZipFile(download.value.path()) as archive:
            assert sum(name.endswith(".png") and "/" in name for name in archive.namelist()) == 20

        report = page.request.get(f"{release}/report").text()  # as it is served, no script runs in it: not axe-core's
        for width, scheme in WINDOWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            for address, ready in ((release, ".tiles"), ("/reference", ".opblock-tag")):
                page.goto(address)
                page.locator(ready).first.wait_for()
                assert barriers(page) == []
            page.goto("about:blank")
            page.set_content(report)
            assert barriers(page) == []
    assert said == []
