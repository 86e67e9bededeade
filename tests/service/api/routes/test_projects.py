"""Quotas over HTTP, from the command line and on the page: who sets them, and who sees what is taken."""

import json
from dataclasses import replace

import httpx
from typer.testing import CliRunner

from obscura.cli.app import app as command_line
from service import jobs
from tests.service.api.conftest import Served

TAKEN = 4 * 4 * 100  # bytes of the images that a dataset declares here


def project(served: Served, name: str = "heart") -> str:
    return str(served.send("projects", {"name": name}, status=201)["id"])


def member(served: Served, project_id: str, role: str) -> Served:
    """The same service, asked with a key of a project."""
    made = served.send("keys", {"name": role, "role": role, "project_id": project_id}, status=201)
    client = served.http[made["id"]] = served.bearer(made["token"])
    return replace(served, tokens={"admin": made["token"]}, http={"admin": client, "read": client})


def test_an_admin_of_the_installation_sets_quotas_and_members_see_them(served):
    heart = project(served)
    made = served.send(f"projects/{heart}/quota", {"jobs_max": 2, "disk_bytes_max": 10**9})
    assert (made["jobs_max"], made["disk_bytes_max"], made["worker_hours_max"]) == (2, 10**9, None)
    served.send(f"projects/{heart}/quota", {"jobs_max": None})
    account = served.account(project_id=heart, name="hearts")
    owner = member(served, heart, "owner")
    owner.dataset(visibility="private", account_id=account["id"])
    seen = member(served, heart, "analyst").read(f"projects/{heart}")
    assert (seen["jobs_max"], seen["disk_bytes_max"]) == (None, 10**9)
    assert (seen["disk_bytes_declared"], seen["jobs_unfinished"], seen["worker_hours_used"]) == (10**8, 0, 0)
    owner.send(f"projects/{heart}/quota", {"jobs_max": 9}, status=403)
    served.send(f"projects/{heart}/quota", {"jobs": 9}, status=422)
    served.send(f"projects/prj_{'a' * 20}/quota", {"jobs_max": 9}, status=404)


def test_what_is_too_much_is_refused_by_what_is_declared_alone(served):
    heart = project(served)
    account = served.account(project_id=heart, name="hearts")
    owner = member(served, heart, "owner")
    served.send(f"projects/{heart}/quota", {"disk_bytes_max": 2 * TAKEN})
    first = owner.dataset(visibility="private", account_id=account["id"])
    owner.dataset()
    wish = {"name": "more", "visibility": "public", "classes": ["cat"], "height": 4, "width": 4, "channels": 1}
    refused = owner.send("datasets", wish | {"records_declared": 1}, status=409)
    assert refused["code"] == "quota_exceeded"
    assert (refused["quota"], refused["used_bytes"], refused["quota_bytes"]) == ("disk", 2 * TAKEN + 16, 2 * TAKEN)
    assert owner.client().delete(f"/v1/datasets/{first['id']}").status_code == 200
    owner.send("datasets", wish | {"records_declared": 100}, status=201)


def test_a_full_quota_of_jobs_refuses_over_http_and_an_evaluation_that_a_training_brings_comes(served):
    heart = project(served)
    account = served.account(project_id=heart, name="hearts")
    owner = member(served, heart, "owner")
    dataset, public = owner.ready_dataset(account["id"])["id"], owner.public_like_a_training()
    served.send(f"projects/{heart}/quota", {"jobs_max": 1})
    asked = owner.train(dataset, evaluation_dataset_id=public, epsilon=0.5)
    assert asked.status_code == 202, asked.text
    refused = owner.train(dataset, epsilon=0.5)
    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")
    served.send(f"projects/{heart}/quota", {"jobs_max": 0})
    job_id = asked.json()["id"]
    served.publish(job_id, served.claim(job_id))
    waiting = [job for job in owner.everything("jobs") if job["state"] == jobs.JobState.QUEUED]
    assert [job["kind"] for job in waiting] == ["evaluate"]


def test_the_command_line_reads_sizes_and_lifts_limits(served):
    heart = project(served)

    def run(*words: str) -> tuple[int, str]:
        words = ("--url", served.url, "--token", served.tokens["admin"], "projects", *words)
        done = CliRunner().invoke(command_line, words)
        return done.exit_code, done.stdout

    code, told = run("quota", "heart", "--disk", "1.5TB", "--jobs", "4", "--worker-hours", "200", "--json")
    assert code == 0, told
    said = json.loads(told)
    assert (said["disk_bytes_max"], said["jobs_max"], said["worker_hours_max"]) == (1_500_000_000_000, 4, 200)
    assert run("quota", heart, "--jobs", "none")[0] == 0
    assert json.loads(run("show", "heart", "--json")[1])["jobs_max"] is None
    for wrong in (("--disk", "lots"), ("--jobs", "-1"), ("--jobs", "some"), ()):
        assert run("quota", "heart", *wrong)[0] == 2


def browser(served: Served, token: str) -> httpx.Client:
    """Somebody who is signed in."""
    client = served.http[f"browser {len(served.http)}"] = served.stranger()
    client.headers["Origin"] = served.url
    client.post("/login", data={"key": token})
    return client


def test_the_page_shows_what_is_taken_and_sets_quotas(served):
    heart = project(served)
    owner = member(served, heart, "owner")
    admin = browser(served, served.tokens["admin"])
    owner.send("webhooks", {"url": "https://hooks.example.org/of-heart"}, status=201)
    shown = admin.get("/projects").text
    assert "heart" in shown
    token = shown.split('name="token" value="')[1].split('"')[0]
    fields = {"token": token, "gigabytes": "2", "jobs": "", "hours": "7"}
    assert admin.post(f"/projects/{heart}/quota", data=fields).headers["location"] == "/projects"
    read = served.read(f"projects/{heart}", scope="admin")
    assert (read["disk_bytes_max"], read["jobs_max"], read["worker_hours_max"]) == (2 * 10**9, None, 7)
    assert admin.post(f"/projects/{heart}/quota", data=fields | {"jobs": "many"}).status_code == 422
    seen = browser(served, owner.tokens["admin"]).get("/projects").text
    assert "of 2 GB" in seen
    assert "Set the quota" not in seen
    assert "default" not in seen
    assert "of-heart" in seen
    assert "whsec_" not in seen
    reader = member(served, heart, "analyst")
    assert "of-heart" not in browser(served, reader.tokens["admin"]).get("/projects").text
