"""The model of the jobs, on top of that of the ledger."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from privacy.accounting.filter import Filter
from tests.service.ledger.model import LedgerModel, in_columns, require

ATTEMPTS_MAX = 3
LEASE_SECONDS = 60
ENDED = ("succeeded", "failed", "cancelled")
SALVAGED = ("time_limit", "worker_lost", "training_failed", "out_of_memory")  # failures


@dataclass
class Model(LedgerModel):
    """The ledger with jobs, idempotency keys, releases and samples, each a dictionary by id.

    Args:
        price: (budget, price) in nano-units of an epsilon under a filter; None if no plan is possible.
        datasets: the account of each.
    """

    price: Callable[[Filter, float], tuple[int, int] | None] = lambda _filter, _epsilon: None
    datasets: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[Any, str]] = field(default_factory=dict)
    releases: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)

    def submit_training(
        self,
        *,
        principal: str,
        idempotency_key: str | None,
        dataset_id: str,
        epsilon: float,
        now: datetime,
        made: tuple[str, str],
        **_: Any,
    ) -> tuple[str, str]:
        body = ("train", dataset_id, epsilon)
        first = self._remembered(principal, idempotency_key, body)
        if first is not None:
            return first, self.jobs[first]["hold_id"]
        account_id = self.datasets[dataset_id]
        require(not self.accounts[account_id]["frozen"], "account_frozen")
        price = self.price(self.accounts[account_id]["filter"], epsilon)
        require(price is not None, "invalid_input")
        budget_nano, cost_nano = price or (0, 0)
        require(budget_nano <= self.left(account_id), "insufficient_budget")
        job_id, hold_id = made
        self.hold(account_id=account_id, job_id=job_id, amount_nano=cost_nano, made=hold_id)
        self._accept(job_id, "train", principal, idempotency_key, body, account=account_id, hold=hold_id, now=now)
        return made

    def submit_sample(
        self,
        *,
        principal: str,
        idempotency_key: str | None,
        release_id: str,
        seed: int,
        now: datetime,
        made: tuple[str, None],
        **_: Any,
    ) -> tuple[str, str | None]:
        body = ("sample", release_id, seed)
        first = self._remembered(principal, idempotency_key, body)
        if first is not None:
            return first, self.jobs[first]["hold_id"]
        require(release_id in self.releases, "not_found")
        account_id = self.releases[release_id]["account_id"]
        self._accept(made[0], "sample", principal, idempotency_key, body, account=account_id, hold=None, now=now)
        self.jobs[made[0]]["release_id"] = release_id
        self.samples[made[0]] = {"release_id": release_id, "sha256": None}
        return made

    def claim(
        self, *, worker: str, now: datetime, job_id: str, attempts_max: int = ATTEMPTS_MAX, **_: Any
    ) -> tuple[str, int] | None:
        if job_id not in self.claimable(now):
            return None
        job = self.jobs[job_id]
        lost = job["state"] == "running"
        salvaging = job["salvage"] == job["attempt"]
        too_often = job["attempts_lost"] + 1 >= attempts_max * (2 if salvaging else 1)
        again = self._may_publish(job) and not (salvaging and too_often)
        if lost and (job["cancel_requested"] or job["early"] or too_often) and not again:
            job["attempts_lost"] += 1
            self._end_unpublished(job_id, "worker_lost")
            return None
        job["early"] = job["early"] or ("worker_lost" if lost and too_often else None)
        job["salvage"] = job["attempt"] + 1 if job["early"] else None
        job["state"], job["attempt"], job["lease_owner"] = "running", job["attempt"] + 1, worker
        job["attempts_lost"] += lost
        job["lease_until"] = now + timedelta(seconds=LEASE_SECONDS)
        if job["hold_id"]:
            self.fence(hold_id=job["hold_id"], attempt=job["attempt"])
        return job_id, job["attempt"]

    def claimable(self, now: datetime) -> list[str]:
        """Return jobs without a living worker, oldest first."""
        free = [
            (job["created"], job_id)
            for job_id, job in self.jobs.items()
            if job["state"] == "queued" or (job["state"] == "running" and job["lease_until"] <= now)
        ]
        return [job_id for _created, job_id in sorted(free)]

    def heartbeat(
        self, *, job_id: str, attempt: int, now: datetime, lease_seconds: float = LEASE_SECONDS, **_: Any
    ) -> None:
        self._running(job_id, attempt)["lease_until"] = now + timedelta(seconds=lease_seconds)

    def drop_lease(self, *, job_id: str, attempt: int, now: datetime, **_: Any) -> None:
        self.heartbeat(job_id=job_id, attempt=attempt, now=now, lease_seconds=0)

    def report_progress(self, *, job_id: str, attempt: int, progress: dict[str, Any], **_: Any) -> None:
        require(set(progress) <= {"stage", "step", "charged_nano", "eta_seconds"}, "invalid_input")
        self._running(job_id, attempt)

    def secret_of(self, *, job_id: str, attempt: int, **_: Any) -> None:
        self._running(job_id, attempt)

    def give_back(self, *, job_id: str, attempt: int, **_: Any) -> None:
        job = self._running(job_id, attempt)
        job["state"], job["lease_owner"], job["lease_until"] = "queued", None, None

    def request_cancel(self, *, job_id: str, **_: Any) -> None:
        job = self.jobs[job_id]
        if job["state"] in ENDED:
            require(job["state"] == "cancelled", "conflict")
            return
        job["cancel_requested"] = True
        if job["kind"] == "train":
            job["early"] = job["early"] or "cancelled"
        if job["state"] == "queued" and not self._may_publish(job):
            self._close(job_id, "cancelled")

    def publish(self, *, job_id: str, attempt: int, release_id: str, artifact_sha256: str, **_: Any) -> None:
        job = self._running(job_id, attempt, or_ended="succeeded")
        require(job["kind"] == "train", "conflict")
        release = {"job_id": job_id, "account_id": job["account_id"], "artifact_sha256": artifact_sha256}
        if job["state"] == "succeeded":
            require(self.releases.get(release_id) == release, "stale_attempt")
            return
        self.capture(hold_id=job["hold_id"], attempt=attempt, artifact_sha256=artifact_sha256)
        self.releases[release_id] = release
        job["release_id"] = release_id
        self._end(job_id, "succeeded")

    def finish_sample(self, *, job_id: str, attempt: int, sha256: str, **_: Any) -> None:
        job = self._running(job_id, attempt, or_ended="succeeded")
        require(job["kind"] == "sample", "conflict")
        sample = self.samples[job_id]
        if job["state"] == "succeeded":
            require(sample["sha256"] == sha256, "stale_attempt")
            return
        sample["sha256"] = sha256
        self._end(job_id, "succeeded")

    def finish_failed(self, *, job_id: str, attempt: int, failure_code: str, **_: Any) -> None:
        job = self._running(job_id, attempt, or_ended="failed")
        if job["state"] == "failed":
            return
        early = job["early"] or (failure_code if failure_code in SALVAGED else None)
        if early and self._may_publish(job) and job["salvage"] != job["attempt"]:
            job.update(state="queued", early=str(early), lease_owner=None, lease_until=None)
        else:
            self._end_unpublished(job_id, failure_code)

    def finish_cancelled(self, *, job_id: str, attempt: int, **_: Any) -> None:
        job = self._running(job_id, attempt, or_ended="cancelled")
        if job["state"] == "running":
            require(job["cancel_requested"] and not self._may_publish(job), "conflict")
            self._close(job_id, "cancelled")

    def _remembered(self, principal: str, key: str | None, body: Any) -> str | None:
        known = None if key is None else self.keys.get((principal, key))
        if known is None:
            return None
        require(known[0] == body, "idempotency_mismatch")
        return known[1]

    def _accept(
        self, job_id: str, kind: str, principal: str, key: str | None, body: Any, *, account: str, hold: Any, now: Any
    ) -> None:
        if key is not None:
            self.keys[principal, key] = body, job_id
        facts = {"kind": kind, "account_id": account, "hold_id": hold, "state": "queued", "created": now}
        facts |= {"attempt": 0, "attempts_lost": 0, "cancel_requested": False}
        unset = ("lease_owner", "lease_until", "early", "salvage", "failure_code", "release_id")
        self.jobs[job_id] = facts | dict.fromkeys(unset)

    def _running(self, job_id: str, attempt: int, *, or_ended: str | None = None) -> dict[str, Any]:
        job = self.jobs[job_id]
        require(job["attempt"] == attempt and job["state"] in ("running", or_ended), "stale_attempt")
        return job

    def _end_unpublished(self, job_id: str, failure: str) -> None:
        """The reason of an early end takes precedence over the failure of the last attempt."""
        job = self.jobs[job_id]
        if job["early"] == "cancelled" or (job["early"] is None and job["cancel_requested"]):
            self._close(job_id, "cancelled")
        else:
            self._close(job_id, "failed", job["early"] or failure)

    def _may_publish(self, job: dict[str, Any]) -> bool:
        return job["hold_id"] is not None and self.holds[job["hold_id"]]["charged_nano"] > 0

    def _close(self, job_id: str, state: str, failure: str | None = None) -> None:
        job = self.jobs[job_id]
        if job["hold_id"]:
            self.settle(hold_id=job["hold_id"], attempt=job["attempt"])
        self._end(job_id, state, failure)

    def _end(self, job_id: str, state: str, failure: str | None = None) -> None:
        self.jobs[job_id].update(state=state, lease_owner=None, lease_until=None, failure_code=failure)

    def view(self) -> dict[str, dict[Any, Any]]:
        """Return what a database must show, in the shape of `machine_rows.view_of`."""
        tables = {"accounts": self.accounts, "holds": self.holds, "decisions": self.requests, "jobs": self.jobs}
        log = {account_id: account["log"] for account_id, account in self.accounts.items()}
        keys = {key: job_id for key, (_body, job_id) in self.keys.items()}
        return {**in_columns(tables | {"releases": self.releases, "samples": self.samples}), "log": log, "keys": keys}
