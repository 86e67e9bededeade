"""Keys for the tests: each key with the scope admin is that of a person of its own, unless it is said whose it is."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.orm import Session

from service import ledger
from service.db.access_tables import ApiKey
from service.db.base import new_id
from service.identity import admins, auth, decisions


def make_key(
    session: Session, *, name: str, scopes: Iterable[str], now: datetime, admin_id: str | None = None
) -> tuple[ApiKey, str]:
    chosen = list(scopes)
    if "admin" not in chosen or admin_id is not None:
        return auth.create_key(session, name=name, scopes=chosen, now=now, admin_id=admin_id)
    _admin, token = admins.admit_on_machine(session, name=f"{name} {new_id('x')}", now=now)
    key = session.get_one(ApiKey, f"key_{token.split('_')[1]}")
    key.scopes = sorted(set(chosen))
    session.flush()
    return key, token


def approve_raise(session: Session, request_id: str, key_id: str, now: datetime) -> None:
    decisions.decide(session, request_id, key_id, now, ledger.limits.LIMIT_EFFECTS, approved=True)


def raise_limit(session: Session, account_id: str, epsilon: float, now: datetime) -> None:
    """Raise a limit, for which one new admin asks and which another one approves."""
    asks, approves = (make_key(session, name="admin", scopes=["admin"], now=now)[0].id for _ in range(2))
    facts = {"epsilon": epsilon, "reason": "a second study", "requested_with": asks, "now": now}
    approve_raise(session, ledger.limits.request_raise(session, account_id=account_id, **facts).id, approves, now)
