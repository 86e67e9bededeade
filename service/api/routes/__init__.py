"""Routes by resource. `routers()` returns all of them."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.routes import (
    accounts,
    admins,
    datasets,
    decisions,
    health,
    jobs,
    ledger,
    orders,
    releases,
    shares,
    webhooks,
)


def routers() -> tuple[APIRouter, ...]:
    return (
        health.router,
        health.metrics_router,
        accounts.router,
        admins.router,
        decisions.router,
        datasets.router,
        jobs.recipe_router,
        jobs.plan_router,
        orders.router(),
        jobs.router,
        jobs.sweep_router,
        releases.router,
        releases.sample_router,
        shares.router,
        admins.project_router,
        admins.key_router,
        webhooks.router,
        ledger.router,
        ledger.audit_router,
    )
