"""Routes by resource. `routers()` returns all of them."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.routes import (
    accounts,
    admins,
    audit,
    datasets,
    health,
    jobs,
    ledger,
    orders,
    recipes,
    releases,
    shares,
    webhooks,
)


def routers() -> tuple[APIRouter, ...]:
    return (
        health.router,
        health.metrics_router,
        accounts.router,
        accounts.limit_router,
        admins.router,
        datasets.router,
        recipes.router,
        jobs.plan_router,
        orders.router(),
        jobs.router,
        jobs.sweep_router,
        releases.router,
        releases.sample_router,
        shares.router,
        shares.request_router,
        admins.project_router,
        admins.key_router,
        webhooks.router,
        ledger.router,
        audit.router,
    )
