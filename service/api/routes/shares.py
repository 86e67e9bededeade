"""Releases that are shared with other projects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session

from obscura.wire.admin_schemas import DecisionRecord
from obscura.wire.release_schemas import ShareRecord, ShareRequest
from obscura.wire.schemas import Identifier, Page
from service import jobs
from service.api.answers import answer, answer_newest
from service.api.deps import ADMIN, PROBLEMS, READ, Admin, ApiRoute, Paging, Running
from service.api.routes.decisions import answer_asked
from service.api.routes.releases import ReleaseId
from service.db.job_tables import Share
from service.db.session import transaction
from service.views import releases as views

router = APIRouter(
    prefix="/v1/releases/{release_id}/shares", tags=["releases"], responses=PROBLEMS, route_class=ApiRoute
)


@router.get("", dependencies=[READ], response_model=Page[ShareRecord], summary="List with whom it is shared")
def list_shares(service: Running, request: Request, release_id: ReleaseId, page: Paging) -> Response:
    """List with whom a release is shared and was, newest first. To others than its own project the list is empty."""

    def show(session: Session, rows: Sequence[Share]) -> list[ShareRecord]:
        jobs.get_release(session, release_id)
        return views.shares(session, rows)

    return answer_newest(service, request, page, Share, show, Share.release_id == release_id)


@router.post("", status_code=201, response_model=DecisionRecord, summary="Ask for a release to be shared")
def ask_share(service: Running, admin: Admin, request: Request, release_id: ReleaseId, body: ShareRequest) -> Response:
    """Ask for a release to be shared with another project, or with all. Another owner must approve it, or an admin.

    The other project then reads the release with its card and files, what its own project has drawn from it and
    measured, and draws from it and measures it as its own. It sees no account, dataset or job of it, and neither report
    nor receipt.
    """
    ask = partial(jobs.ask_share, release_id=release_id, **body.model_dump(), asked_with=admin.id)
    return answer_asked(service, request, ask)


@router.delete("/{share_id}", dependencies=[ADMIN], response_model=ShareRecord, summary="Stop sharing it")
def end_share(
    service: Running, request: Request, release_id: ReleaseId, share_id: Annotated[Identifier, Path()]
) -> Response:
    """Stop sharing a release, at once; one owner may. What others are drawing from it is cancelled.

    What they have drawn stays theirs, and what they have downloaded stays where it is.
    """
    with transaction(service.factory) as session:
        share = jobs.end_share(session, release_id=release_id, share_id=share_id, now=service.clock())
        (record,) = views.shares(session, [share])
    return answer(request, record)
