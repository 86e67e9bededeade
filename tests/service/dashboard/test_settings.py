"""Settings in a real browser: invitations, two admins, keys, projects and their views, webhooks, navigation."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from service.db.access_tables import DEFAULT_PROJECT, Admin, ApiKey, AuditEvent, Project
from service.identity import projects
from service.identity.auth import VIEW_NAME, create_key, principal_of
from service.ledger import limits
from service.webhooks.delivering import deliver
from service.webhooks.sending import Sender
from tests.browser import WINDOWS, a_page, barriers, in_chromium, sign_in
from tests.service.dashboard.conftest import ORIGIN, token_in
from tests.service.webhooks.receiver import receiving

pytestmark = in_chromium
ALL_PAGES = ["Budgets", "Datasets", "Jobs", "Plan", "Releases", "Decisions", "Settings"]


@pytest.fixture
def site(make_site) -> Any:
    return make_site(webhooks_private=True, audit_log="on")


@contextmanager
def pages(browser: Any, address: str, count: int) -> Iterator[list[Any]]:
    """Pages of browser contexts that share no cookies. Their consoles show no errors, except of refused requests."""
    with a_page(browser, base_url=address) as (first, said):
        others = [browser.new_page(base_url=address) for _ in range(count - 1)]
        for page in others:
            page.on("pageerror", lambda error: said.append(str(error)))
        yield [first, *others]
        for page in others:
            page.close()
    assert [text for text in said if "status of 40" not in text] == []


def invited_by(page: Any, role: str) -> str:
    """Create a link on the page of members, and return it."""
    page.goto("/settings/members")
    page.select_option("#role", role)
    page.get_by_role("button", name="Create link").click()
    link = page.locator("[data-answer] code")
    link.wait_for()
    return str(link.text_content())


def accept_as_admin(invited: Any, link: str, name: str) -> str:
    """Accept a link in the invited browser, and return the code that it shows."""
    invited.goto(link)
    invited.fill("#name", name)
    invited.get_by_role("button", name="Accept invitation").click()
    invited.get_by_role("heading", name="Your code is").wait_for()
    return str(invited.locator("[data-code]").text_content())


def admit(admin: Any, invited: Any, code: str) -> None:
    """Admit the second admin after comparing the code; the invited browser signs in."""
    admin.get_by_role("link", name="Decisions", exact=True).click()
    admin.get_by_text(f"Continue only if it is {code}").wait_for()
    admin.get_by_role("button", name="Admit").click()
    admin.wait_for_url("**/settings/members")
    invited.get_by_role("button", name="Sign in").click()
    invited.get_by_role("link", name="Settings").wait_for()


def raise_limit(asking: Any, deciding: Any, account: str, epsilon: str) -> None:
    """Request a higher limit in one browser, and approve it in the other."""
    asking.goto(f"{account}/controls")
    form = asking.locator("form[data-call$='/raise-limit']")
    form.locator("[name=epsilon]").fill(epsilon)
    form.locator("[name=reason]").fill("a second study")
    form.get_by_role("button").click()
    asking.get_by_text("Decide or withdraw it").wait_for()
    deciding.goto("/decisions")
    deciding.get_by_role("button", name=re.compile("^Approve")).click()
    deciding.locator(".state", has_text="Approved").first.wait_for()


def test_an_analyst_is_invited_by_link_trains_and_cannot_raise_a_limit(site, stock, live, browser):
    with pages(browser, live, 3) as (admin, ana, thief):
        sign_in(admin, site.key("admin"))
        link = invited_by(admin, "analyst")
        ana.goto(link)
        ana.reload()  # looking uses nothing
        ana.fill("#name", "Ana Silva")
        ana.get_by_role("button", name="Accept invitation").click()
        ana.get_by_role("heading", name="Welcome, Ana Silva").wait_for()
        token = ana.locator("pre code").text_content()
        ana.get_by_role("link", name="Continue").click()
        ana.get_by_role("link", name="Ana Silva").wait_for()
        assert ana.get_by_role("navigation", name="Main").all_inner_texts() == [
            "Budgets\nDatasets\nJobs\nPlan\nReleases"
        ]
        ana.goto(f"/train?dataset={stock.dataset}&recipe=datalens&epsilon=0.2")
        ana.get_by_role("button", name="Train for ε").click()
        ana.wait_for_url("**/jobs/job_*")
        ana.goto(f"/accounts/{stock.account}/controls")
        assert ana.get_by_role("button", name=re.compile("raise|limit", re.IGNORECASE)).count() == 0
        refused = ana.request.get("/settings/members")
        assert refused.status == 403
        thief.goto(link)
        thief.get_by_text("was used or revoked, or has expired").wait_for()
        sign_in(thief, token)  # the key signs in elsewhere, until the admin ends the access
        admin.goto("/settings/members")
        admin.get_by_role("button", name="End access of Ana Silva").click()
        admin.get_by_text("Access ended").wait_for()
        ana.goto("/")
        ana.wait_for_url("**/login?next=**")


def test_a_second_admin_is_admitted_by_link_and_two_admins_raise_a_limit(site, stock, live, browser):
    with pages(browser, live, 2) as (alice, bob):
        sign_in(alice, site.key("admin"))
        code = accept_as_admin(bob, invited_by(alice, "admin"), "Bob")
        token = bob.locator("[data-token] code").text_content()
        assert re.fullmatch(r"[0-9a-f]{4}-[0-9a-f]{4}", code)
        bob.get_by_role("button", name="Sign in").click()
        bob.get_by_text("You are not admitted yet").wait_for()
        assert len(site.rows(Admin)) == 1, "the link alone admits nobody"
        assert all(token[25:] not in str(vars(row)) for row in site.rows(ApiKey))

        admit(alice, bob, code)
        raise_limit(alice, bob, f"/accounts/{stock.account}", "20")
        bob.wait_for_load_state()
        bob.goto(f"/accounts/{stock.account}/ledger")
        bob.get_by_text("by two admins: a second study").wait_for()


def test_a_key_is_shown_once_rotated_and_revoked(site, live, browser):
    with pages(browser, live, 2) as (admin, program):
        sign_in(admin, site.key("admin"))
        admin.goto("/settings/keys")
        admin.fill("#name", "nightly")
        admin.select_option("#scopes", label="Read, train and generate")
        admin.get_by_role("button", name="Create key").click()
        section = admin.locator("section", has=admin.get_by_role("heading", name="Create a key"))
        section.get_by_text("shown only once").wait_for()
        first = section.locator("code").text_content()
        section.get_by_role("link", name="Done").click()
        row = admin.get_by_role("row", name=re.compile("nightly: read, train"))
        row.get_by_text("Change").click()
        row.get_by_label("Old key valid for").select_option("0 hours")
        row.get_by_role("button", name="Rotate key").click()
        listed = admin.locator("section", has=admin.get_by_role("heading", name="Keys", exact=True))
        listed.get_by_text("shown only once").wait_for()
        second = listed.locator("[data-answer] code").text_content()
        listed.get_by_role("link", name="Done").click()
        program.goto("/login")
        program.fill("#key", first)
        program.click("main button[type=submit]")
        program.get_by_text("expired at").wait_for()
        sign_in(program, second)
        row.first.get_by_text("Change").click()
        row.first.get_by_role("button", name="Revoke key").click()
        admin.get_by_text("Revoked, ").wait_for()
        program.goto("/")
        program.wait_for_url("**/login?next=**")
        assert admin.get_by_role("cell").get_by_text(first).count() == 0


def test_a_member_rotates_and_revokes_the_own_key(site, stock, live, browser):
    with pages(browser, live, 1) as (ana,):
        sign_in(ana, site.do(create_key, name="ana", scopes=["read", "train"], now=site.now)[1])
        ana.get_by_role("link", name="ana", exact=True).click()
        ana.get_by_role("button", name="Rotate key ana").click()
        token = ana.locator("pre code").text_content()
        ana.goto("/you")
        ana.get_by_role("button", name="Revoke key ana").click()
        ana.wait_for_url("**/login?next=**")
        assert ana.request.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status == 401, "it goes along"


def test_a_second_project_is_announced_and_hides_nothing_that_a_click_does_not_show(site, stock, live, browser):
    with pages(browser, live, 1) as (admin,):
        sign_in(admin, site.key("admin"))
        admin.goto("/settings/projects")
        admin.fill("#new-name", "heart")
        admin.get_by_text("no longer shows datasets, jobs and releases").wait_for()
        admin.get_by_role("button", name="Create project").click()
        assert len(site.rows(Project)) == 1, "it waits for the tick"
        admin.get_by_label("Separate the installation").check()
        admin.get_by_role("button", name="Create project").click()
        admin.get_by_role("button", name="View heart").wait_for()
        admin.goto("/jobs")
        assert "No jobs yet" not in admin.content()
        admin.get_by_role("note").get_by_role("button", name="default").click()
        admin.get_by_text("You view the project default as an owner").wait_for()
        admin.goto("/jobs")
        admin.locator(f"#row-{stock.done}").wait_for()
        assert admin.request.get("/settings/members").ok
        (view,) = site.rows(ApiKey, ApiKey.name == VIEW_NAME)
        assert view.project_id == DEFAULT_PROJECT
        events = [(event.action, event.object_id) for event in site.rows(AuditEvent)]
        assert ("project viewed", view.id) in events
        admin.get_by_role("note").get_by_role("button", name="Back to installation").click()
        admin.locator("details.switch summary").click()
        admin.locator("details.switch").get_by_role("button", name="default").click()
        admin.get_by_text("You view the project default").wait_for()
        assert len(site.rows(ApiKey, ApiKey.name == VIEW_NAME)) == 1, "the same key again"


def test_only_a_session_that_views_a_project_returns_to_the_installation(site, stock):
    """An owner's key that the admin has handed out opens no session of the installation."""
    admin = site.signed_in("admin")
    (row,) = site.rows(ApiKey)
    facts = {"by": principal_of(row), "project_id": DEFAULT_PROJECT, "now": site.now}
    owner, analyst = site.client(), site.signed_in("train", "read")
    assert (
        owner.post("/login", data={"key": site.do(create_key, name="o", role="owner", **facts)[1]}).status_code == 303
    )
    for client in (admin, owner, analyst):
        token = token_in(client.get("/").text)
        assert client.post("/view", data={"token": token}, headers=ORIGIN).status_code == 403
        assert client.post("/view", data={"token": "0" * 64, "project": DEFAULT_PROJECT}).status_code == 403
    for client in (owner, analyst):
        fields = {"token": token_in(client.get("/").text), "project": DEFAULT_PROJECT}
        assert client.post("/view", data=fields, headers=ORIGIN).status_code == 403
    fields = {"token": token_in(admin.get("/").text), "project": "prj_" + "a" * 20}
    assert admin.post("/view", data=fields, headers=ORIGIN).status_code == 404


def test_a_webhook_is_added_tested_and_deleted(site, stock, live, browser):
    with pages(browser, live, 1) as (admin,), receiving() as receiver:
        sign_in(admin, site.key("admin"))
        admin.goto("/settings/webhooks")
        admin.fill("#url", receiver.url)
        admin.get_by_role("button", name="Add webhook").click()
        admin.locator("[data-answer] code").get_by_text("whsec_").wait_for()
        admin.get_by_role("link", name="Done").click()
        for status, words in ((204, "Delivered. The address answered with status 204"), (500, "Not delivered")):
            receiver.status = status
            admin.get_by_role("button", name="Send test").click()
            admin.get_by_text(words).wait_for()
        facts = {
            "account_id": stock.account,
            "epsilon": 20.0,
            "reason": "more",
            "requested_with": site.rows(ApiKey)[0].id,
        }
        site.do(limits.request_raise, **facts, now=site.now)
        with ThreadPoolExecutor() as elsewhere:  # the browser's event loop runs in this thread
            later = lambda: site.now + timedelta(minutes=5)  # noqa: E731
            assert elsewhere.submit(deliver, site.factory, Sender(private=True), later).result() == 1
        admin.reload()
        row = admin.get_by_role("row", name=re.compile("decision"))
        assert "500" in row.inner_text()
        assert "Next try" in row.inner_text()
        admin.get_by_role("button", name="Delete").click()
        admin.get_by_role("heading", name=receiver.url).wait_for(state="detached")


def test_a_refused_approval_stays_on_the_page_with_its_reason_beside_the_button(site, stock, live, browser):
    """The approver was admitted after the request."""
    alice = site.key("admin")
    facts = {"account_id": stock.account, "epsilon": 20.0, "reason": "more", "requested_with": site.rows(ApiKey)[0].id}
    asked = site.do(limits.request_raise, **facts, now=site.now - timedelta(hours=1))
    with pages(browser, live, 1) as (bob,):
        sign_in(bob, site.key("admin"))
        bob.goto("/decisions")
        form = bob.locator(f"form[data-call$='{asked.id}/approve']")
        form.get_by_role("button").click()
        form.get_by_text("requested before you became an admin").wait_for()
        assert (bob.url, form.get_by_role("button").is_enabled()) == (f"{live}/decisions", True)
        assert alice


@pytest.mark.parametrize(
    ("scopes", "shown"),
    [
        (("read",), []),
        (("train", "read"), ["Plan"]),
        (("audit", "read"), ["Settings"]),
        (("admin",), ["Plan", "Decisions", "Settings"]),
    ],
)
def test_navigation_and_pages_offer_only_what_the_role_may(site, stock, scopes, shown):
    client = site.signed_in(*scopes)
    html = client.get("/").text
    offered = re.findall(r">([^<]+)</a>", html[html.index("<nav") : html.index("</nav>")])
    assert offered == [name for name in ALL_PAGES if name in shown or name in (*ALL_PAGES[:3], "Releases")]
    for page in ("/", "/datasets", "/jobs", "/releases", f"/datasets/{stock.dataset}", f"/accounts/{stock.account}"):
        html = client.get(page).text
        for link, scope in (("/train", "train"), ("/datasets/new", "data"), ("/accounts/new", "admin")):
            assert (f'href="{link}' not in html) or scope in scopes or "admin" in scopes, (page, link)
    assert client.get("/settings/members").status_code == (200 if "admin" in scopes else 403)


def test_without_an_audit_log_the_page_says_how_to_keep_one(make_site):
    site = make_site()
    admin, auditor = site.signed_in("admin"), site.signed_in("audit", "read")
    assert "/settings/audit" not in admin.get("/settings/keys").text
    assert ">Settings<" not in auditor.get("/").text
    assert "OBSCURA_AUDIT_LOG=on" in auditor.get("/settings/audit").text


@pytest.mark.slow
def test_nothing_serious_keeps_anybody_from_using_the_settings(site, stock, live, browser):
    found = {}
    with pages(browser, live, 2) as (admin, invited):
        sign_in(admin, site.key("admin"))
        links = [invited_by(admin, role) for role in ("analyst", "admin")]
        for name in ("heart", "a project with a long name, of the department of radiology and oncology"):
            site.do(projects.create, name=name, now=site.now)
        invited.goto(links[1])
        invited.fill("#name", "Bob")
        invited.get_by_role("button", name="Accept invitation").click()
        invited.locator("[data-code]").wait_for()
        for width, scheme in WINDOWS:
            for page in (admin, invited):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
            found["accepted", width] = barriers(invited)
            for place in ("members", "keys", "projects", "webhooks", "audit"):
                admin.goto(f"/settings/{place}")
                for details in admin.locator("main details, details.switch").all():
                    details.evaluate("each => (each.open = true)")
                found[place, width] = barriers(admin)
            for address in ("/decisions", "/you", "/"):
                admin.goto(address)
                found[address, width] = barriers(admin)
    assert {where: what for where, what in found.items() if what} == {}
