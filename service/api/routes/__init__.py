"""The routes of the API, one module for each resource.

`routers()` returns all of them, in the order of the documentation. Routes contain no rules of the domain: they parse a
request, call one function in a transaction, and return its record.
"""

from __future__ import annotations

from fastapi import APIRouter

from service.api.routes import accounts, admins, datasets, health, jobs, orders, releases
from service.jobs import KINDS


def routers() -> tuple[APIRouter, ...]:
    return (
        health.router,
        health.metrics_router,
        accounts.router,
        admins.router,
        admins.decision_router,
        datasets.router,
        jobs.recipe_router,
        jobs.plan_router,
        orders.router_of(tuple(KINDS.values())),
        jobs.router,
        jobs.sweep_router,
        releases.router,
        releases.sample_router,
        releases.share_router,
        admins.project_router,
        admins.key_router,
        admins.webhook_router,
        health.ledger_router,
        health.audit_router,
    )
