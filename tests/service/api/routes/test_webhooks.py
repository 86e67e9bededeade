"""Webhooks over HTTP and from the command line: who has them, what is shown of them, and what is refused."""

import base64
import json

from obscura.client import Client
from service.webhooks.delivering import WEBHOOKS_MAX
from tests.service.api.conftest import OwnSettings, serving
from tests.service.webhooks.receiver import receiving

URL = "https://hooks.example.org/obscura"


def test_a_secret_is_shown_once_and_never_again(served):
    made = served.send("webhooks", {"url": URL}, status=201)
    assert made["secret"].startswith("whsec_")
    assert len(base64.b64decode(made["secret"].removeprefix("whsec_"), validate=True)) == 32
    (listed,) = served.read("webhooks", scope="admin")["items"]
    assert listed == {name: value for name, value in made.items() if name != "secret"}
    assert (listed["state"], listed["project_id"]) == ("active", None)
    assert served.send("webhooks", {"url": URL}, status=201)["secret"] != made["secret"]
    assert served.send("webhooks", {"url": "https://127.0.0.1/"}, status=422)["code"] == "address_refused"
    assert served.ask("DELETE", f"webhooks/{made['id']}")["id"] == made["id"]
    assert made["id"] not in [each["id"] for each in served.read("webhooks", scope="admin")["items"]]


def test_a_name_that_leads_inside_is_refused_when_it_is_asked(served):
    made = served.send("webhooks", {"url": "https://localhost:1/"}, status=201)
    tried = served.send(f"webhooks/{made['id']}/test")
    assert (tried["delivered"], tried["status"]) == (False, None)
    assert "not public" in tried["reason"]


def test_each_project_has_a_bounded_number_that_others_do_not_see(served):
    heart, lung = (served.member(served.project(name), "owner") for name in ("heart", "lung"))
    made = [heart.send("webhooks", {"url": URL}, status=201)["id"] for _ in range(WEBHOOKS_MAX)]
    assert "Remove one first" in heart.send("webhooks", {"url": URL}, status=409)["detail"]
    assert {each["id"] for each in heart.everything("webhooks")} == {*made}
    assert lung.read("webhooks")["items"] == []
    lung.send("webhooks", {"url": URL}, status=201)


def test_the_command_line_and_the_library_do_it_all(own_settings: OwnSettings):
    with serving(own_settings(webhooks_private=True), "admin") as served, receiving() as receiver:

        def run(*words: str) -> tuple[int, str]:
            done = served.obscura("webhooks", *words)
            return done.exit_code, done.stdout

        code, told = run("create", receiver.url, "--json")
        assert code == 0
        made = json.loads(told)
        assert run("test", made["id"])[0] == 0
        assert json.loads(receiver.bodies[0])["type"] == "test"
        receiver.status = 500
        assert run("test", made["id"])[0] == 1
        with Client(served.url, served.tokens["admin"]) as client:
            assert [each.id for each in client.webhooks()] == [made["id"]]
            second = client.create_webhook(receiver.url)
            client.remove_webhook(second.id)
        assert run("remove", made["id"])[0] == 0
        assert json.loads(run("list", "--json")[1]) == []
