"""Signing in with a real browser, whose rules about cookies no other test has: the provider is another site."""

from scripts.with_services import free_port
from tests.browser import WINDOWS, a_page, barriers, in_chromium, served
from tests.service.sign_on.conftest import ANA, RunningProvider, opened

pytestmark = in_chromium


def test_a_browser_is_led_to_the_provider_and_back_and_stays_signed_in(program, sqlite_url, tmp_path):
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    provider = RunningProvider(program, free_port(), site, "localhost")
    provider.start()
    provider.people(ana=ANA)
    try:
        with opened(provider, sqlite_url, tmp_path / "data") as house, served(house.app, port):
            walk(site, provider)
    finally:
        provider.stop()


def walk(site: str, provider: RunningProvider) -> None:
    with a_page(base_url=site) as (page, said):
        page.goto("/datasets")
        assert barriers(page) == []
        page.get_by_role("link", name="Sign in with your organisation's account").click()
        page.wait_for_url(f"{provider.issuer}/**")
        page.locator("[name=login]").fill("ana")
        page.locator("[name=password]").fill("any")
        page.locator("[type=submit]").click()
        page.get_by_role("button", name="Continue").click()
        page.wait_for_url(f"{site}/datasets")
        said.clear()  # of the provider's own pages
        page.get_by_role("link", name=ANA["name"]).click()
        page.get_by_label("Name").fill("nightly")
        page.get_by_role("button", name="Create key").click()
        assert page.locator("code").inner_text().startswith("obs_")
        for width, colours in WINDOWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=colours)
            assert barriers(page) == []
        kept = {cookie["name"]: cookie["sameSite"] for cookie in page.context.cookies(site)}
        assert kept == {"obscura_session": "Strict"}
        assert said == []
