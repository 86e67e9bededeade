"""Forms for admins: the freeze switch, and limits that two of them raise."""

from __future__ import annotations

import math

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse

from service import ledger
from service.auth import Principal
from service.dashboard.access import Admin, Dashboard, Form, Running, find_viewer
from service.dashboard.pages import PageRoute
from service.db.session import transaction
from service.errors import InvalidInput

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.post("/accounts/{account_id}/freeze")
def freeze(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    """Take no new jobs and let no waiting one open its data."""
    return _switch(dashboard, admin, form, account_id, frozen=True)


@router.post("/accounts/{account_id}/unfreeze")
def unfreeze(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    """Take jobs again."""
    return _switch(dashboard, admin, form, account_id, frozen=False)


@router.post("/accounts/{account_id}/lower-limit")
def lower_limit(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    """Lower the limit at once; below what is spent and held the account is frozen."""
    with transaction(dashboard.factory) as session:
        ledger.lower_limit(
            session,
            account_id=account_id,
            epsilon=_epsilon(form),
            reason=read_reason(form),
            by=admin.id,
            now=dashboard.clock(),
        )
    return _back(account_id)


@router.post("/accounts/{account_id}/limit-requests")
def request_raise(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    """Ask for a higher limit, which another admin must approve."""
    with transaction(dashboard.factory) as session:
        ledger.request_raise(
            session,
            account_id=account_id,
            epsilon=_epsilon(form),
            reason=read_reason(form),
            requested_by=admin.id,
            now=dashboard.clock(),
        )
    return _back(account_id)


@router.post("/limit-requests/{request_id}/approve")
def approve_raise(dashboard: Running, admin: Admin, request_id: str) -> RedirectResponse:
    """Raise the limit as another admin has asked for."""
    with transaction(dashboard.factory) as session:
        decided = ledger.approve_raise(session, request_id=request_id, decided_by=admin.id, now=dashboard.clock())
    return _back(decided.account_id)


@router.post("/limit-requests/{request_id}/decline")
def decline_raise(dashboard: Running, admin: Admin, request_id: str) -> RedirectResponse:
    """Leave the limit as it is."""
    with transaction(dashboard.factory) as session:
        decided = ledger.decline_raise(session, request_id=request_id, decided_by=admin.id, now=dashboard.clock())
    return _back(decided.account_id)


def _switch(
    dashboard: Dashboard, admin: Principal, form: dict[str, str], account_id: str, *, frozen: bool
) -> RedirectResponse:
    with transaction(dashboard.factory) as session:
        ledger.set_frozen(
            session, account_id=account_id, frozen=frozen, reason=read_reason(form), by=admin.id, now=dashboard.clock()
        )
    return _back(account_id)


def _back(account_id: str) -> RedirectResponse:
    return RedirectResponse(f"/accounts/{account_id}#control-title", status_code=303)


def read_reason(form: dict[str, str]) -> str:
    """Read the reason of a form.

    Raises:
        InvalidInput: It is not one line.
    """
    reason = form.get("reason", "").strip()
    if not reason.isprintable():
        raise InvalidInput("A reason is one line of printable characters.")
    return reason


def _epsilon(form: dict[str, str]) -> float:
    try:
        epsilon = float(form.get("epsilon", ""))
    except ValueError:
        epsilon = math.nan
    if not math.isfinite(epsilon):
        raise InvalidInput("The limit must be a number.")
    return epsilon
