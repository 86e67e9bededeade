"""Webhooks: addresses that are told of stops, of decisions that wait, and of jobs that ended."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from obscura.wire.schemas import Identifier, Page
from obscura.wire.webhook_schemas import NewWebhookRecord, WebhookRecord, WebhookRequest, WebhookTestRecord
from service.api.conditional import answer
from service.api.deps import ADMIN, PROBLEMS, Admin, ApiRoute, Paging, Running
from service.api.pages import answer_newest
from service.db.session import transaction
from service.db.webhook_tables import Webhook
from service.dependencies import SECONDS_MAX
from service.identity.access import find
from service.views import admins as views
from service.webhooks import delivering, hooks
from service.webhooks.sending import Sender

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], responses=PROBLEMS, route_class=ApiRoute)
WebhookId = Annotated[Identifier, Path()]


@router.post("", status_code=201, response_model=NewWebhookRecord, summary="Create a webhook")
def create_webhook(service: Running, admin: Admin, body: WebhookRequest) -> Response:
    """Have an address told of what happens in the key's project, or in the installation for an admin's of no project.

    The secret that signs is in this answer and nowhere else. With the key the webhook is revoked.
    """
    private, now = service.settings.webhooks_private, service.clock()
    with transaction(service.factory) as session:
        made = hooks.create(session, admin, **body.model_dump(), private=private, now=now)
        record = NewWebhookRecord(**dict(views.webhooks(session, [made], now)[0]), secret=made.secret)
    headers = {"Location": "/v1/webhooks", "Cache-Control": "no-store"}
    return Response(record.model_dump_json(), status_code=201, headers=headers, media_type="application/json")


@router.get("", dependencies=[ADMIN], response_model=Page[WebhookRecord], summary="List webhooks")
def list_webhooks(service: Running, request: Request, page: Paging) -> Response:
    """List the webhooks of the key's project, newest first, also those that are told nothing any more."""
    return answer_newest(service, request, page, Webhook, partial(views.webhooks, now=service.clock()))


@router.post("/{webhook_id}/test", dependencies=[ADMIN], response_model=WebhookTestRecord, summary="Try a webhook")
async def try_webhook(service: Running, request: Request, webhook_id: WebhookId) -> Response:
    """Send a request of the type `test` now, and say what came of it."""
    sender = Sender(service.settings.webhooks_private, seconds_max=SECONDS_MAX)
    sent = await delivering.try_out(service.factory, sender, webhook_id, service.clock)
    return answer(request, WebhookTestRecord(delivered=sent.delivered, status=sent.status, reason=sent.reason))


@router.delete("/{webhook_id}", dependencies=[ADMIN], response_model=WebhookRecord, summary="Remove a webhook")
def remove_webhook(service: Running, request: Request, webhook_id: WebhookId) -> Response:
    """Tell an address nothing more, nor what it was to be told already."""
    with transaction(service.factory) as session:
        (record,) = views.webhooks(session, [find(session, Webhook, webhook_id)], service.clock())
        hooks.remove(session, webhook_id)
    return answer(request, record)
