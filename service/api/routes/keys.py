"""API keys, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import select

from service import auth
from service.api import views
from service.api.conditional import answer
from service.api.deps import ADMIN, PROBLEMS, Admin, Paging, Running
from service.api.pages import cut, newest_first
from service.api.schemas import Identifier, KeyRecord, KeyRequest, NewKeyRecord, Page
from service.db.access_tables import ApiKey
from service.db.session import transaction

router = APIRouter(prefix="/v1/keys", tags=["keys"], responses=PROBLEMS)


@router.post("", status_code=201, response_model=NewKeyRecord, summary="Create a key")
def create_key(service: Running, admin: Admin, body: KeyRequest) -> Response:
    """Create a key. Its token is in this answer and nowhere else: only a hash is kept.

    One with the scope `admin` is another key of yours: it decides as you, never as a second person.
    """
    with transaction(service.factory) as session:
        key, token = auth.create_key(
            session,
            name=body.name,
            scopes=body.scopes,
            created_by=admin.id,
            admin_id=admin.admin_id,
            now=service.clock(),
        )
        record = NewKeyRecord(**dict(views.key(key)), token=token)
    headers = {"Location": f"/v1/keys/{record.id}", "Cache-Control": "no-store"}
    return Response(record.model_dump_json(), status_code=201, headers=headers, media_type="application/json")


@router.get("", dependencies=[ADMIN], response_model=Page[KeyRecord], summary="List keys")
def list_keys(service: Running, request: Request, page: Paging) -> Response:
    """List the keys, revoked ones too, newest first."""
    with transaction(service.factory, read_only=True) as session:
        query = newest_first(select(ApiKey), ApiKey.created_at, ApiKey.id, page.cursor, page.limit)
        rows, cursor = cut(session.scalars(query).all(), page.limit)
        shown = [views.key(row) for row in rows]
    return answer(request, Page[KeyRecord](items=shown, next_cursor=cursor))


@router.post("/{key_id}/revoke", dependencies=[ADMIN], response_model=KeyRecord, summary="Revoke a key")
def revoke_key(service: Running, request: Request, key_id: Annotated[Identifier, Path()]) -> Response:
    """Revoke a key at once and for good. Revoking twice keeps the first time."""
    with transaction(service.factory) as session:
        record = views.key(auth.revoke_key(session, key_id=key_id, now=service.clock()))
    return answer(request, record)
