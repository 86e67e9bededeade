"""Metrics for operators, served by `GET /metrics`. See docs/operate/monitor.md.

Metrics are sampled at most once a minute, so that they reveal times only to the minute. There are no metrics of the
process (memory, CPU time), because these depend on the content of requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from sqlalchemy import func, select

from obscura.wire.schemas import minutes_between
from obscura.wire.words import JobState
from service.audit.findings import verifications
from service.audit.proofs import newest_checkpoint
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.ledger.stops import arming_stops

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


# The `_created` series would publish the moment of the first request of each route.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counters for one API process, and gauges for the database."""

    def __init__(self, factory: SessionFactory, *, clock: Callable[[], datetime], version: str) -> None:
        self._factory, self._clock = factory, clock
        self._lock = threading.Lock()
        self._minute, self._text = "", b""
        self.registry = registry = CollectorRegistry()
        gauge = partial(Gauge, namespace="obscura", registry=registry)
        Info("obscura_build", "The version that runs.", registry=registry).info({"version": version})
        self._requests = Counter(
            "obscura_requests", "Responses, by template of the route.", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "obscura_request_seconds",
            "Seconds until the response began, for GET routes of the API whose path has no id.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self._jobs = gauge("jobs", "Jobs, by kind, recipe and state.", ("kind", "recipe", "state"))
        self._waiting = gauge("queue_oldest_seconds", "Age of the job that has waited longest, in whole minutes.")
        self._workers = gauge("workers_busy", "Workers that hold the lease of a running job.")
        self._overdue = gauge("jobs_lease_over", "Running jobs whose worker has not renewed its lease in time.")
        self._entries = gauge("ledger_entries_signed", "Entries of the ledger that the newest checkpoint covers.")
        self._signed = gauge("ledger_signed_timestamp_seconds", "When the newest checkpoint was signed, to the hour.")
        self._verified = gauge("ledger_verified_timestamp_seconds", "When the ledger was last verified.", ("kind",))
        self._findings = gauge("ledger_findings", "Findings of the last verification.", ("kind",))
        self._stops = gauge("trainings_stopped", "Number of accounts whose trainings are stopped; 1 if all are.")

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response by its status class. Times are only recorded for `is_timed` routes."""
        self._requests.labels(method, route, f"{status // 100}xx").inc()
        if is_timed(method, route):
            self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus, sampled at the first call in this minute."""
        with self._lock:
            now = self._clock()
            minute = now.strftime("%Y%m%dT%H%M")
            if minute == self._minute:
                return self._text
            with transaction(self._factory, read_only=True) as session:
                self._jobs.clear()
                counted = select(Job.kind, Job.recipe, Job.state, func.count(Job.id).label("number"))
                for row in session.execute(counted.group_by(Job.kind, Job.recipe, Job.state)):
                    self._jobs.labels(row.kind, row.recipe, row.state.value).set(row.number)
                oldest = session.scalar(select(func.min(Job.created_at)).where(Job.state == JobState.QUEUED))
                self._waiting.set(0 if oldest is None else minutes_between(oldest, now).total_seconds())
                running = Job.state == JobState.RUNNING
                owners = select(func.count(func.distinct(Job.lease_owner))).where(running, Job.lease_until >= now)
                self._workers.set(session.scalar(owners) or 0)
                overdue = select(func.count(Job.id)).where(running, Job.lease_until < now)
                self._overdue.set(session.scalar(overdue) or 0)
                newest = newest_checkpoint(session)
                if newest is not None:
                    self._entries.set(sum(int(head[0]) for head in newest.heads.values()))
                    self._signed.set(newest.created_at.timestamp())
                for last in verifications(session):
                    self._verified.labels(last.kind.value).set(last.verified_at.timestamp() // 60 * 60)
                    self._findings.labels(last.kind.value).set(last.findings)
                self._stops.set(len(arming_stops(session)))
            self._minute, self._text = minute, generate_latest(self.registry)
            return self._text


def is_timed(method: str, route: str) -> bool:
    """Return whether a route's times may be published: GET routes of the API whose path names no object."""
    return method == "GET" and "{" not in route and route.startswith("/v1/")
