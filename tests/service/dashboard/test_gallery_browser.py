"""Galleries in a real browser: enlarging by keyboard, more images on scroll, and reading without a script."""

from typing import Any

from tests.browser import PATIENCE_MS, WINDOWS, a_page, barriers, in_chromium, sign_in

pytestmark = in_chromium


def sources(page: Any, within: str) -> list[str]:
    return [image.get_attribute("src") for image in page.locator(f"{within} img").all()]


def test_an_image_is_enlarged_and_left_by_the_keyboard(site, stock, live, browser):
    with a_page(browser, base_url=live) as (page, said):
        page.goto(f"/releases/{stock.release}")
        dialog, tiles = page.locator("dialog.zoom"), page.locator(".tiles a")
        tiles.nth(1).focus()
        page.keyboard.press("Enter")
        dialog.get_by_text("image 2").wait_for()
        found = [barriers(page)]
        page.keyboard.press("ArrowRight")
        dialog.get_by_text("image 3").wait_for()
        assert dialog.locator("img").evaluate("image => image.complete && image.naturalWidth") == 8
        dialog.get_by_role("link", name="Previous").click()
        dialog.get_by_text("image 2").wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert tiles.nth(1).evaluate("link => link === document.activeElement")
        tiles.nth(0).click()
        page.mouse.click(5, 5)  # beside the dialog
        dialog.wait_for(state="hidden")
        page.goto(f"/releases/{stock.release}?page=0&image=4")
        assert dialog.evaluate("dialog => dialog.matches(':modal')")
    assert (found, said) == ([[]], [])


def test_more_images_are_loaded_while_the_reader_scrolls(site, stock, live, browser):
    with a_page(browser, base_url=live, viewport={"width": 390, "height": 900}, color_scheme="dark") as (page, said):
        page.goto(f"/releases/{stock.release}")
        assert page.locator(".tiles img").count() == 120
        page.locator("footer").scroll_into_view_if_needed()
        page.get_by_text("All 140 stored images are shown").wait_for()
        seen = sources(page, ".tiles")
        assert len(set(seen)) == len(seen) == 140
        assert barriers(page) == []
    assert said == []


def test_pages_of_many_images_need_a_click_after_a_while(site, stock, live, browser):
    """So that the end of the page can be reached."""
    from playwright.sync_api import expect  # not without a browser

    job = site.add_job(stock.account, stock.dataset, epsilon=0.1, state="succeeded")
    many = site.add_release(job, name="many", stored=900)
    with a_page(browser, base_url=live) as (page, said):
        page.goto(f"/releases/{many}")
        tiles = page.locator(".tiles img")
        for loaded in (240, 360, 480, 600):
            page.mouse.wheel(0, 100_000)
            expect(tiles).to_have_count(loaded, timeout=PATIENCE_MS)
        page.mouse.wheel(0, 100_000)
        page.wait_for_timeout(300)
        assert tiles.count() == 600
        page.get_by_role("link", name="More images").click()
        expect(tiles).to_have_count(720, timeout=PATIENCE_MS)
    assert said == []


def test_a_gallery_is_read_without_a_script(site, stock, live, browser):
    with a_page(browser, base_url=live, java_script_enabled=False) as (page, _):
        page.goto(f"/releases/{stock.release}")
        page.locator(".tiles a").nth(4).click()
        image = page.locator("dialog.zoom img")
        assert image.is_visible()
        assert image.bounding_box()["width"] > 200
        page.get_by_role("link", name="Next").click()
        page.get_by_role("link", name="Close").click()
        page.get_by_role("link", name="More images").click()
        assert page.locator(".tiles img").count() == 20


def test_releases_are_compared_on_a_phone(site, stock, live, browser):
    job = site.add_job(stock.account, stock.dataset, epsilon=0.2, state="succeeded", options={"teachers": 70})
    other = site.add_release(job, name="second", stored=30)
    with a_page(browser, base_url=live) as (page, said):
        for width, scheme in WINDOWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            for address in (f"/compare?release={stock.release}&release={other}", f"/datasets/{stock.dataset}"):
                page.goto(address)
                assert barriers(page) == [], (address, width)
        page.goto(f"/compare?release={stock.release}&release={other}")
        for name in ("first", "second"):
            box = page.get_by_role("link", name=name).first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
    assert said == []


def test_every_box_to_tick_is_small_and_beside_its_label(site, stock, live, browser):
    with a_page(browser, base_url=live) as (page, _):
        sign_in(page, site.key("admin"))
        seen = 0
        places = (
            f"/releases/{stock.release}/share",
            f"/datasets/{stock.dataset}",
            "/datasets/new",
            "/settings/projects",
        )
        for address in ("/releases", *places):
            page.goto(address)
            for box in page.locator("input[type=checkbox]:visible").all():
                name = box.get_attribute("id")
                at, label = (page.locator(each).bounding_box() for each in (f"#{name}", f"label[for={name}]"))
                assert at["height"] <= 24, (address, name)
                assert abs(at["y"] - label["y"]) < 12, (address, name)
                assert abs(label["x"] - at["x"]) < 40, (address, name)
                seen += 1
        assert seen >= 3
