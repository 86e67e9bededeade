"""Releases shared between departments: who decides it, what the other one sees and makes, and how it ends."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from obscura.client import ApiError, AuthError, Client, NotFoundError
from service.api.deps import COOKIE
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.access_tables import Delivery
from service.db.session import transaction
from service.identity.auth import form_token
from service.settings import Settings
from tests.service.api.conftest import Served


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"audit_log": "required"})


class Two:
    """A department with a release, another one without anything, and clients for the people of both."""

    def __init__(self, served: Served, release_id: str, account: dict[str, Any]) -> None:
        self.served, self.release_id, self.account = served, release_id, account
        served.named("second", "admin")
        self.admin, self.second = self._client("admin"), self._client("second")
        self.home = self.admin.projects.get("default").id
        self.other = served.project("heart")
        served.admit("anna", project_id=self.home)
        served.admit("hugo", project_id=self.other)
        self.owner, self.their_owner = self._client("anna"), self._client("hugo")
        self.analyst = self.member("analyst", "analyst", self.home)
        self.their_analyst = self.member("their analyst", "analyst", self.other)
        self.their_viewer = self.member("their viewer", "viewer", self.other)

    def _client(self, name: str) -> Client:
        return Client(self.served.url, self.served.tokens[name])

    def member(self, name: str, role: str, project_id: str) -> Client:
        self.served.tokens[name] = self.admin.keys.create(name=name, role=role, project_id=project_id).token
        return self._client(name)

    def share(self, project_id: str | None) -> None:
        asked = self.owner.releases.get(self.release_id).share(project_id, reason="a common study")
        assert self.second.decisions.approve(asked.id).state == "approved"

    def sees(self, who: Client) -> bool:
        listed = [each.id for each in who.releases.list()]
        try:
            assert who.releases.get(self.release_id).id in listed
        except NotFoundError:
            assert listed == []
            return False
        return True


@pytest.fixture
def two(served: Served, released: Callable[[], tuple[dict[str, Any], str]]) -> Iterator[Two]:
    account, release_id = released()
    made = Two(served, release_id, account)
    yield made
    for client in vars(made).values():
        if isinstance(client, Client):
            client.close()


def test_it_takes_two_people_and_the_other_department_sees_the_release_alone(two: Two) -> None:
    with pytest.raises(NotFoundError):
        two.their_owner.releases.get(two.release_id)
    asked = two.owner.releases.get(two.release_id).share(two.other, reason="a common study")
    assert (asked.state, asked.shared_with) == ("pending", two.other)
    for alone in (two.owner, two.admin):  # who has named the owner counts as the owner
        with pytest.raises(AuthError, match="Two people"):
            alone.decisions.approve(asked.id)
    with pytest.raises(NotFoundError):
        two.their_owner.decisions.approve(asked.id)
    assert not two.sees(two.their_analyst)
    assert two.second.decisions.approve(asked.id).decided_by
    assert [each.id for each in two.owner.decisions.list()] == [asked.id]
    assert all(two.sees(who) for who in (two.their_analyst, two.their_viewer, two.their_owner, two.owner))
    assert not two.sees(two.second), "admins of the installation see no releases"
    assert two.their_analyst.releases.get(two.release_id).project_id == two.home
    (share,) = two.owner.releases.get(two.release_id).shares()
    assert (share.project_id, share.project_name, share.ended_at) == (two.other, "heart", None)
    assert list(two.their_analyst.releases.get(two.release_id).shares()) == []


def test_nothing_of_the_account_its_dataset_or_its_job_is_told(two: Two) -> None:
    """What their own addresses answer: tests/service/test_matrix.py."""
    two.share(two.other)
    http = two.served.client("their analyst")
    place = f"/v1/releases/{two.release_id}"
    parts = ("", "/card", "/evaluations", "/shares", "/report.html", "/report.json")
    shown = [http.get(f"{place}{part}").raise_for_status().text for part in parts]
    assert "1. Guarantee" in shown[4]
    assert json.loads(shown[5]).keys() == {"release", "guarantee", "synthetic", "technical", "evaluations"}
    shown += [http.get("/v1/releases").text, http.get("/v1/jobs").text, http.get("/v1/datasets").text]
    for text in shown:
        assert two.account["name"] not in text
        assert '"balance"' not in text
        assert "spent" not in text
    answer = http.get(f"{place}/receipt")
    assert answer.status_code == 404
    assert "Only the project that trained this release may see this" in answer.text
    for part in ("receipt", "report.html", "report.json"):
        assert two.served.client("analyst").get(f"{place}/{part}").status_code == 200
    assert http.get("/v1/releases", params={"account_id": two.account["id"]}).json()["items"] == []


def test_what_is_drawn_belongs_to_who_drew_it(two: Two) -> None:
    first = two.analyst.releases.get(two.release_id).sample(3, format="npz")
    two.share(two.other)
    with pytest.raises(NotFoundError):
        two.their_analyst.samples.get(first.id)  # it is not drawn yet
    two.served.finish_sample(first.model_dump(), b"images", "images.npz")
    assert two.their_viewer.samples.get(first.id).sha256 == two.analyst.samples.get(first.id).sha256
    drawn = two.their_analyst.releases.get(two.release_id).sample(4, format="npz")
    job = drawn.job()
    assert (job.account_id, job.dataset_id, job.cost_nano) == (None, None, 0)
    assert [each.id for each in two.their_analyst.jobs.list()] == [job.id]
    for stranger in (two.analyst, two.owner):
        with pytest.raises(NotFoundError):
            stranger.samples.get(drawn.id)
        with pytest.raises(NotFoundError):
            stranger.jobs.get(job.id)
    two.served.finish_sample(drawn.model_dump(), b"other images", "images.npz")
    assert two.their_analyst.samples.get(drawn.id).state == "succeeded"


def test_what_is_drawn_counts_in_the_quota_of_who_drew_it_and_its_end_is_told_there(two: Two) -> None:
    two.share(two.other)
    hooks = [owner.webhooks.create(url="https://hooks.example.org/").id for owner in (two.owner, two.their_owner)]
    release = two.their_analyst.releases.get(two.release_id)
    drawn = release.sample(3, format="npz")
    assert [two.admin.projects.get(each).jobs_unfinished for each in (two.home, two.other)] == [0, 1]
    two.served.send(f"projects/{two.other}/quota", {"jobs_max": 1})
    with pytest.raises(ApiError) as refused:
        release.sample(4, format="npz")
    assert refused.value.code == "quota_exceeded"
    two.served.finish_sample(drawn.model_dump(), b"images", "images.npz")
    assert [told.webhook_id for told in two.served.rows(Delivery)] == hooks[1:]


def test_it_is_measured_on_public_images_of_who_measures(two: Two) -> None:
    two.share(two.other)
    dataset_id = two.served.public_like_a_training(scope="hugo")
    measured = two.their_analyst.releases.get(two.release_id).evaluate(dataset_id)
    two.served.finish_evaluation(measured.model_dump(), cnn=0.9)
    assert two.their_analyst.releases.get(two.release_id).summary["accuracy"] == {"cnn": 0.9}
    assert two.analyst.releases.get(two.release_id).summary["accuracy"] == {"cnn": 0.7}
    assert list(two.analyst.releases.get(two.release_id).evaluations()) == []


def test_one_owner_ends_it_and_what_is_being_drawn_is_cancelled(two: Two) -> None:
    two.share(two.other)
    release = two.their_analyst.releases.get(two.release_id)
    done, under_way = release.sample(3, format="npz"), release.sample(4, format="npz")
    two.served.finish_sample(done.model_dump(), b"images", "images.npz")
    own = two.analyst.releases.get(two.release_id).sample(5, format="npz")
    (share,) = two.owner.releases.get(two.release_id).shares()
    for nobody in (two.their_owner, two.analyst):
        with pytest.raises((NotFoundError, AuthError)):
            nobody.transport.request("DELETE", f"/v1/releases/{two.release_id}/shares/{share.id}")
    assert two.owner.releases.get(two.release_id).unshare(two.other).ended_at is not None
    assert not two.sees(two.their_analyst)
    assert two.their_analyst.jobs.get(under_way.job_id).state == "cancelled"
    assert two.analyst.jobs.get(own.job_id).state == "queued"
    assert two.their_analyst.samples.get(done.id).state == "succeeded"
    for repeat in (release.card, lambda: release.sample(1)):
        with pytest.raises(NotFoundError, match="no such release"):
            repeat()
    with pytest.raises(NotFoundError, match="is not shared with"):
        two.owner.releases.get(two.release_id).unshare(two.other)
    two.share(two.other)
    assert two.sees(two.their_analyst)


def test_pages_tell_each_side_what_it_may_know(two: Two) -> None:
    def page(who: str, path: str) -> str:
        answer = two.served.browser(two.served.tokens[who]).get(path)
        assert answer.status_code == 200, (path, answer.status_code)
        return answer.text

    place = f"/releases/{two.release_id}"
    assert "No other project" in page("anna", f"{place}/share")
    two.share(two.other)
    drawn = two.their_analyst.releases.get(two.release_id).sample(4, format="npz")
    shown = [
        page("their analyst", path) for path in (place, "/releases", f"/compare?release={two.release_id}", "/jobs")
    ]
    shown.append(page("their analyst", f"/jobs/{drawn.job_id}"))
    for text in shown:
        assert two.account["name"] not in text
        assert ">pictures<" not in text  # the dataset
    assert "Trained by default, which shares it with you" in shown[0]
    assert two.account["name"] in page("anna", f"{place}/guarantee")
    assert "heart" in page("anna", f"{place}/share")
    assert "Share release with heart" in " ".join(page("second", "/decisions").split())
    browser = two.served.browser(two.served.tokens["anna"])
    (share,) = two.owner.releases.get(two.release_id).shares()
    token = {"X-Form-Token": form_token(browser.cookies[COOKIE])}
    assert browser.post(f"/v1{place}/shares", json={"reason": "for teaching"}, headers=token).status_code == 201
    assert [each.state for each in two.owner.decisions.list()] == ["pending", "approved"]
    assert browser.delete(f"/v1{place}/shares/{share.id}", headers=token).status_code == 200
    assert not two.sees(two.their_analyst)


def test_published_it_is_seen_by_every_department_later_ones_too(two: Two) -> None:
    two.share(None)
    later = two.admin.projects.create(name="lung").id
    assert two.sees(two.their_analyst)
    with two.member("newcomer", "analyst", later) as newcomer:
        assert two.sees(newcomer)
        two.owner.releases.get(two.release_id).unshare()
        assert not two.sees(newcomer)


def test_what_makes_no_sense_is_refused(two: Two) -> None:
    release = two.owner.releases.get(two.release_id)
    for project, code in ((two.home, 409), (f"prj_{'a' * 20}", 404)):
        with pytest.raises(ApiError) as refused:
            release.share(project, reason="a test")
        assert refused.value.status == code
    asked = release.share(two.other, reason="a test")
    with pytest.raises(ApiError, match="is pending"):
        release.share(two.other, reason="again")
    release.share(None, reason="something else")
    two.second.decisions.approve(asked.id)
    with pytest.raises(ApiError, match="already shared"):
        release.share(two.other, reason="again")
    with pytest.raises(NotFoundError, match="Only the project that trained"):
        two.their_owner.releases.get(two.release_id).share(None, reason="it is not ours")
    with pytest.raises(AuthError):
        two.analyst.releases.get(two.release_id).share(two.other, reason="no owner")


def test_the_ledger_and_the_audit_log_verify_with_what_others_drew(two: Two) -> None:
    two.share(two.other)
    drawn = two.their_analyst.releases.get(two.release_id).sample(4, format="npz")
    two.served.finish_sample(drawn.model_dump(), b"images", "images.npz")
    two.owner.releases.get(two.release_id).unshare(two.other)
    with transaction(two.served.factory, read_only=True, snapshot=True) as session:
        assert verify(session, trusted=trusted_keys(two.served.data_dir / "keys" / "ledger.pem"), full=True).clean
    lines = two.served.client("anna").get("/v1/audit-events").raise_for_status().text.splitlines()
    acts = {event["action"]: event for event in map(json.loads, lines) if event["object_id"] == two.release_id}
    assert {acts[act]["project_id"] for act in ("release shared", "release unshared")} == {two.home}


def test_the_commands_of_both_departments(two: Two) -> None:
    def obscura(who: str, *words: str, of: str = "releases") -> Any:
        ran = two.served.obscura(of, *words, "--json", scope=who)
        assert ran.exit_code == 0, ran.stderr
        return json.loads(ran.stdout)

    asked = obscura("anna", "share", "release", "--with", two.other, "--reason", "a common study")
    assert [each["id"] for each in obscura("anna", "list", of="decisions")] == [asked["id"]]
    assert obscura("second", "approve", asked["id"], of="decisions")["state"] == "approved"
    assert [each["project_name"] for each in obscura("anna", "shares", two.release_id)] == ["heart"]
    assert two.sees(two.their_analyst)
    drawn = obscura("their analyst", two.release_id, "-n", "4", "--proportions", "dog=3,cat=1", of="sample")
    assert drawn["proportions"] == {"cat": 1, "dog": 3}
    assert obscura("anna", "unshare", two.release_id, "--with", two.other)["ended_at"] is not None
    published = obscura("anna", "publish", two.release_id, "--reason", "for teaching")
    assert obscura("anna", "decline", published["id"], of="decisions")["state"] == "declined"
