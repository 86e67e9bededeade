"""Quotas over HTTP, from the command line and on the page: who sets them, and who sees what is taken."""

import json

from obscura.wire.words import JobState


def test_an_admin_of_the_installation_sets_quotas_and_members_see_them(served):
    heart = served.project()
    assert served.send(f"projects/{heart}/quota", {"jobs_max": 2})["jobs_max"] == 2
    assert served.send(f"projects/{heart}/quota", {"jobs_max": None})["jobs_max"] is None
    served.send(f"projects/{heart}/quota", {"jobs_max": 3})
    account = served.account(project_id=heart, name="hearts")
    owner = served.member(heart, "owner")
    owner.dataset(visibility="private", account_id=account["id"])
    seen = served.member(heart, "analyst").read(f"projects/{heart}")
    assert (seen["jobs_max"], seen["jobs_unfinished"]) == (3, 0)
    assert {name for name in seen if "bytes" in name or "hours" in name} == set()
    owner.send(f"projects/{heart}/quota", {"jobs_max": 9}, status=403)
    for wrong in ({}, {"jobs": 9}, {"jobs_max": 9, "disk_bytes_max": 9}, {"jobs_max": -1}):
        served.send(f"projects/{heart}/quota", wrong, status=422)
    served.send(f"projects/prj_{'a' * 20}/quota", {"jobs_max": 9}, status=404)


def test_a_full_quota_of_jobs_refuses_over_http_and_an_evaluation_that_a_training_brings_comes(served):
    heart = served.project()
    account = served.account(project_id=heart, name="hearts")
    owner = served.member(heart, "owner")
    dataset, public = owner.ready_dataset(account["id"])["id"], owner.public_like_a_training()
    served.send(f"projects/{heart}/quota", {"jobs_max": 1})
    asked = owner.train(dataset, evaluation_dataset_id=public, epsilon=0.5)
    assert asked.status_code == 202, asked.text
    refused = owner.train(dataset, epsilon=0.5)
    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")
    served.send(f"projects/{heart}/quota", {"jobs_max": 0})
    job_id = asked.json()["id"]
    served.publish(job_id, served.claim(job_id))
    waiting = [job for job in owner.everything("jobs") if job["state"] == JobState.QUEUED]
    assert [job["kind"] for job in waiting] == ["evaluate"]


def test_the_command_line_sets_and_removes_a_quota(served):
    heart = served.project()

    def run(*words: str) -> tuple[int, str]:
        done = served.obscura("projects", *words)
        return done.exit_code, done.stdout

    code, told = run("quota", "heart", "--jobs", "4", "--json")
    assert code == 0, told
    assert json.loads(told)["jobs_max"] == 4
    assert run("quota", heart, "--jobs", "none")[0] == 0
    assert json.loads(run("show", "heart", "--json")[1])["jobs_max"] is None
    for wrong in (("--disk", "1GB"), ("--jobs", "-1"), ("--jobs", "some"), ()):
        assert run("quota", "heart", *wrong)[0] == 2


def test_the_page_shows_what_is_taken_and_sets_quotas(served):
    heart = served.project()
    owner = served.member(heart, "owner")
    admin = served.browser(served.tokens["admin"])
    owner.send("webhooks", {"url": "https://hooks.example.org/of-heart"}, status=201)
    shown = admin.get("/projects").text
    assert "heart" in shown
    assert f'data-call="POST /v1/projects/{heart}/quota"' in shown
    served.send(f"projects/{heart}/quota", {"jobs_max": 7})
    seen = served.browser(owner.tokens["admin"]).get("/projects").text
    assert "of 7" in seen
    assert "Set the quota" not in seen
    assert "default" not in seen
    assert "of-heart" in seen
    assert "whsec_" not in seen
    reader = served.member(heart, "analyst")
    assert "of-heart" not in served.browser(reader.tokens["admin"]).get("/projects").text
