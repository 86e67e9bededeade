"""What webhooks are told, when, how often, and when nobody tells them any more; on each kind of database."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest
import standardwebhooks

from obscura.wire.words import NoticeKind
from service import jobs
from service.audit.findings import Finding, FindingCode, stop_arming
from service.db.access_tables import ApiKey, Delivery, Person, Webhook
from service.db.session import SessionFactory, transaction
from service.identity import admins, auth, decisions, projects
from service.identity.access import Principal, Scope
from service.notices import WAITING_MAX
from service.webhooks import delivering
from service.webhooks.sending import Answer, Outgoing, Sender
from tests.service.jobs.shop import Shop
from tests.service.steps import make_key
from tests.service.webhooks.receiver import receiving
from tests.together import at_once

MINUTE = timedelta(minutes=1)


@dataclass
class Line:
    status: int | None = 200
    sent: list[Outgoing] = field(default_factory=list)

    def send(self, requests: Any) -> dict[str, Answer]:
        self.sent += requests
        return {request.id: Answer(status=self.status, reason=None if self.status else "away") for request in requests}

    async def send_all(self, requests: Any) -> dict[str, Answer]:
        return self.send(requests)


class Told(Shop):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.line = Line()

    def hook(self, project_id: str | None = None, *, key: str = "") -> str:
        by = Principal(key or "key_none", frozenset({Scope.ADMIN}), "adm_me", project_id)
        return self.do(delivering.create, by, url=f"https://hooks.example.org/{project_id}", private=False).id

    def deliver(self, after: timedelta = MINUTE) -> list[tuple[str, dict[str, Any]]]:
        """Turn the clock, send what is due, and return where it was sent and what it says."""
        self.now += after
        before = len(self.line.sent)
        delivering.deliver(self.factory, self.line, lambda: self.now)  # type: ignore[arg-type]
        return [(request.url.rpartition("/")[2], json.loads(request.body)) for request in self.line.sent[before:]]

    def end_a_job(self) -> None:
        self.cancel(self.submit())

    def project(self) -> str:
        return self.do(projects.create, name="heart").id

    def key(self, name: str) -> str:
        return self.do(make_key, name=name, scopes=["admin"])[0].id

    def ask_removal(self, reason: str) -> str:
        """Ask for an admin's removal, where there are three; returns the request's id."""
        key, _, _ = (self.key(name) for name in ("one", "two", "three"))
        person = str(self.read(decisions.acting_key, key).admin_id)
        return self.do(admins.request_removal, admin_id=person, reason=reason, requested_with=key).id

    def stop(self, code: FindingCode, account_id: str | None = None) -> int:
        return self.do(stop_arming, [Finding(code, "found", account_id)])

    def state_of(self, hook_id: str) -> str:
        return self.read(delivering.states_of, self.rows(Webhook), self.now)[hook_id]


@pytest.fixture
def told(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Told:
    return Told(factory, now.replace(second=7, microsecond=5), open_account, declare_dataset)


def test_a_job_that_ended_is_told_with_its_state_and_the_minute(told):
    told.hook()
    job_id = told.submit()
    minute = told.now.replace(second=0, microsecond=0)
    told.cancel(job_id)
    assert told.deliver(timedelta(seconds=20)) == [], "the moment of its arrival would tell that of its end"
    ((_, event),) = told.deliver()
    assert event.pop("id").startswith("whe_")
    assert event == {
        "type": "job.ended",
        "created": minute.strftime("%Y-%m-%dT%H:%M:00Z"),
        "project_id": "prj_default",
        "data": {"job_id": job_id, "kind": "train", "state": "cancelled"},
    }
    assert told.deliver() == []


def test_each_project_is_told_of_its_own_and_the_installation_of_no_ones_jobs_once_there_are_several(told):
    told.hook(None)
    told.hook("prj_default")
    told.end_a_job()
    assert sorted(where for where, _ in told.deliver()) == ["None", "prj_default"]
    heart = told.project()
    told.hook(heart)
    told.end_a_job()
    assert [where for where, _ in told.deliver()] == ["prj_default"]


def test_a_job_is_told_to_the_project_that_asked_and_not_to_the_one_whose_release_it_draws_from(told):
    heart = told.project()
    told.hook(heart)
    told.hook("prj_default")
    job_id = told.submit()
    told.sql(f"UPDATE jobs SET project_id = '{heart}' WHERE id = '{job_id}'")
    told.cancel(job_id)
    assert [where for where, _ in told.deliver()] == [heart]


def test_nothing_is_told_of_what_was_rolled_back(told):
    told.hook()
    job_id = told.submit()

    def cancel_and_fail() -> None:
        with transaction(told.factory) as session:
            jobs.request_cancel(session, job_id=job_id, now=told.now)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        cancel_and_fail()
    assert told.rows(Delivery) == []
    told.cancel(job_id)
    assert len(told.rows(Delivery)) == 1


def test_a_decision_that_waits_and_a_stop_are_told(told):
    told.hook(None)
    told.hook("prj_default")
    heart = told.project()
    told.hook(heart)
    request_id = told.ask_removal("leaves")
    assert told.stop(FindingCode.CHAIN_BROKEN, told.account_id) == 1
    assert told.stop(FindingCode.CHAIN_BROKEN, told.account_id) == 0
    said = [(where, event["type"], event["data"]) for where, event in told.deliver()]
    decision = {"request_id": request_id, "action": "remove", "state": "pending"}
    stop = {"account_id": told.account_id, "state": "stopped"}
    expected = [("None", "decision.waiting", decision), ("None", "trainings.stopped", stop)]
    expected += [("prj_default", "trainings.stopped", stop)]
    assert sorted(said, key=str) == sorted(expected, key=str)
    told.stop(FindingCode.NOT_VERIFIABLE)
    everybody = told.deliver()
    assert sorted(where for where, _ in everybody) == sorted(["None", "prj_default", heart])
    assert [event["data"] for _, event in everybody] == [{"state": "stopped"}] * 3


def test_what_is_not_answered_is_sent_again_later_and_later_with_the_same_id(told):
    told.hook()
    told.end_a_job()
    told.line.status = 503
    ((_, first),) = told.deliver()
    for wait in delivering.BACKOFF:
        assert told.deliver(wait - timedelta(seconds=1)) == []
        assert told.deliver(timedelta(seconds=1)) == [("None", first)]
    assert told.deliver(timedelta(days=2)) == [], "given up"
    assert [row.next_at for row in told.rows(Delivery)] == [None]


def test_a_webhook_that_answers_again_is_active_and_one_that_does_not_is_failing_and_still_told(told):
    hook_id = told.hook()

    def try_out() -> Answer:
        return anyio.run(delivering.try_out, told.factory, told.line, hook_id, lambda: told.now)

    told.end_a_job()
    told.line.status = None
    told.deliver()
    assert told.state_of(hook_id) == "failing"
    told.line.status = 200
    told.deliver()
    assert (told.state_of(hook_id), told.rows(Webhook)[0].failing_since) == ("active", None)
    told.line.status = 500
    for _ in range(6):
        told.end_a_job()
        assert told.deliver()
        told.now += timedelta(days=1)
    assert told.state_of(hook_id) == "failing"
    told.line.status = 404
    assert not try_out().delivered
    assert told.state_of(hook_id) == "failing"
    told.line.status = 200
    assert try_out().delivered
    assert told.state_of(hook_id) == "active"


def test_a_process_that_dies_while_it_sends_leaves_it_to_the_next_one(told):
    told.hook()
    told.end_a_job()

    class Dies(Line):
        def send(self, requests: Any) -> dict[str, Answer]:
            super().send(requests)
            raise KeyboardInterrupt

    told.line = Dies()
    with pytest.raises(KeyboardInterrupt):
        told.deliver()
    (first,) = told.line.sent
    told.line = Line()
    assert told.deliver(timedelta(minutes=4)) == []
    assert [event["id"] for _, event in told.deliver()] == [json.loads(first.body)["id"]]


def test_of_two_processes_one_sends(told):
    told.hook()
    told.end_a_job()
    told.now += MINUTE
    clock = lambda: told.now  # noqa: E731
    at_once(*[lambda: delivering.deliver(told.factory, told.line, clock)] * 3)
    assert len(told.line.sent) == 1


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_webhook_ends_with_the_key_that_made_it(told, how):
    key = told.key("contractor")
    hook_id = told.hook(key=key)
    told.end_a_job()
    if how == "revoked":
        told.do(auth.revoke, ApiKey.id == key)
    else:
        told.change(ApiKey, key, expires_at=told.now + timedelta(days=1))
    assert len(told.deliver()) == (how == "expired"), "nothing of what waited for a revoked key"
    told.now += timedelta(days=1)
    told.end_a_job()
    assert told.deliver() == []
    assert {row.next_at for row in told.rows(Delivery)} == {None}
    assert told.state_of(hook_id) == "revoked"


def test_a_webhook_goes_over_to_the_key_that_takes_the_place_of_its_own(told):
    key = told.key("machine")
    told.hook(key=key)
    by = auth.principal_of(told.read(decisions.acting_key, key))
    follower, _ = told.do(auth.rotate_key, key_id=key, overlap_seconds=60, by=by, expires_at=None)
    told.now += timedelta(days=1)
    told.end_a_job()
    assert len(told.deliver()) == 1
    told.do(auth.revoke, ApiKey.id == follower.id)
    told.end_a_job()
    assert told.deliver() == []


def test_a_removed_webhook_is_told_nothing_more(told):
    hook_id = told.hook()
    told.end_a_job()
    with transaction(told.factory) as session:
        delivering.remove(session, hook_id)
    assert told.deliver() == []
    assert (told.rows(Webhook), told.rows(Delivery)) == ([], [])


def test_more_than_a_bounded_number_does_not_wait_and_what_is_over_is_forgotten(told):
    hook_id = told.hook()
    with transaction(told.factory) as session:
        times = {"created_at": told.now, "next_at": told.now + timedelta(days=30)}
        for number in range(WAITING_MAX):
            session.add(Delivery(id=f"dlv_{number}", webhook_id=hook_id, body="{}", attempts=0, **times))
    told.end_a_job()
    assert len(told.rows(Delivery)) == WAITING_MAX
    told.sql("UPDATE deliveries SET next_at = NULL")
    told.now += timedelta(days=8)
    told.end_a_job()
    assert len(told.deliver()) == 1
    assert len(told.rows(Delivery)) == 1


def test_a_webhook_that_hangs_does_not_keep_others_waiting_for_long(told):
    full, other = told.hook("prj_default"), told.hook(None)
    for _ in range(8):
        told.end_a_job()
    told.deliver(timedelta(minutes=2))
    counts = [request.url for request in told.line.sent]
    assert counts.count("https://hooks.example.org/prj_default") == delivering.OF_ONE_MAX
    assert counts.count("https://hooks.example.org/None") == delivering.OF_ONE_MAX
    assert full != other


def test_it_goes_over_the_wire_and_its_receiver_can_tell_who_sent_it(told):
    with receiving() as receiver:
        by = Principal("key_none", frozenset({Scope.ADMIN}), "adm_me", "prj_default")
        made = told.do(delivering.create, by, url=receiver.url, private=True)
        told.end_a_job()
        told.now += MINUTE
        assert delivering.deliver(told.factory, Sender(private=True), lambda: told.now) == 1
    event = standardwebhooks.Webhook(made.secret).verify(receiver.bodies[0], receiver.headers[0])
    assert event["id"] == receiver.headers[0]["webhook-id"]
    assert told.rows(Delivery)[0].delivered_at == told.now


def test_what_is_told_holds_ids_kinds_and_states_alone(told):
    """Whatever is told has one of these names, and a value that is an id or a word."""
    told.hook()
    told.end_a_job()
    claim = told.charged(job_id=told.submit())
    told.publish(claim, release_id="rel_" + "a" * 20)
    told.stop(FindingCode.CHAIN_BROKEN, told.account_id)
    told.ask_removal("canary reason")
    events = [event for _, event in told.deliver()]
    assert {event["type"] for event in events} == set(NoticeKind)
    for event in events:
        assert set(event) == {"id", "type", "created", "project_id", "data"}
        assert set(event["data"]) <= {"job_id", "kind", "state", "account_id", "request_id", "action"}
        assert all(isinstance(value, str) for value in event["data"].values())
        assert event["created"].endswith(":00Z")
        assert "canary" not in json.dumps(event)


def test_a_webhook_of_somebody_whom_the_provider_no_longer_vouches_for_is_told_nothing(told):
    key, now = told.key("one"), told.now
    told.hook(key=key)
    names = {"issuer": "https://provider.example.org", "subject": "a", "name": "Ana"}
    times = {"created_at": now, "confirmed_at": now, "keys_until": now}
    with transaction(told.factory) as session:
        session.add(Person(id="per_" + "a" * 20, **names, **times))
    told.change(ApiKey, key, person_id="per_" + "a" * 20)
    told.end_a_job()
    assert len(told.deliver()) == 1
    told.change(Person, "per_" + "a" * 20, lapsed_at=now)
    told.end_a_job()
    assert told.deliver() == []
