"""Releases: cards, receipts, reports, files, evaluations, samples, and shares with other projects."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import select

from obscura.wire import formats, words
from obscura.wire.admin_schemas import DecisionRecord
from obscura.wire.release_schemas import EvaluationRecord, ReleaseRecord, ShareRecord, ShareRequest
from obscura.wire.schemas import Identifier, Page
from service import cards, errors, gallery, jobs, reports
from service.api import answers, problems
from service.api.deps import ADMIN, READ, VIEW, Admin, OfAccount, Paging, ReleaseId, Running, Service
from service.api.routes.admins import request_decision
from service.db.job_tables import Evaluation, Release, Sample, Share
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.identity.access import find, visible
from service.jobs.kinds import evaluate
from service.storage import interface
from service.views import releases as views
from service.views import with_job

router = APIRouter(prefix="/v1/releases", tags=["releases"], route_class=answers.ApiRoute)
FileName = Annotated[str, Path(max_length=64, description="Name of the file.")]
ImageNumber = Annotated[int, Path(ge=0, lt=2**31, description="Number of the image; the first is 0.")]
_OF_GENERATORS = ("report.html", "report.json", "grid.png", "tiles.png", formats.IMAGES_FILE)
# A report is self-contained: inline styles and images, no script, no external resource.
REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


def _file(media_type: str) -> dict[str, Any]:
    found = {200: {"content": {media_type: {}}}, 304: {"description": "The client's copy is current."}}
    return {"dependencies": [VIEW], "response_class": Response, "responses": found}


@router.get("", dependencies=[VIEW], summary="List releases")
def list_releases(service: Running, page: Paging, account_id: OfAccount = None) -> Page[ReleaseRecord]:
    """List releases, newest first, optionally of one account. The accounts of releases shared with you are hidden."""
    if account_id is not None:
        with transaction(service.factory, read_only=True) as session:
            own = visible(session, Account, select(Account.id)).where(Account.id == account_id)
            account_id = session.scalar(own) or ""
    return answers.newest_page(service, page, Release, views.records, columns=views.RELEASES, account_id=account_id)


@router.get("/{release_id}", dependencies=[VIEW], summary="Read a release")
def read_release(service: Running, release_id: ReleaseId) -> ReleaseRecord:
    """Return a release with its measurements on public data."""
    with transaction(service.factory, read_only=True) as session:
        return views.records(session, [find(session, Release, release_id)])[0]


@router.get("/{release_id}/card", dependencies=[VIEW], summary="Read the privacy card")
def read_card(service: Running, release_id: ReleaseId) -> JSONResponse:
    """Return the privacy card: the guarantee, its cost, its public assumptions and its limits."""
    with transaction(service.factory, read_only=True) as session:
        return JSONResponse(cards.ordered_card(find(session, Release, release_id).card))


@router.get("/{release_id}/receipt", dependencies=[VIEW], summary="Read the receipt")
def read_receipt(service: Running, release_id: ReleaseId) -> JSONResponse:
    """Return the signed proof of payment: ledger entry, public terms of the account, public key and signature.

    Store it unchanged; `scripts/verify_receipt.py` checks it offline. 404 for a release shared by another project,
    because its receipt reveals the spending of that project's account.
    """
    with transaction(service.factory, read_only=True) as session:
        return JSONResponse(jobs.get_own_release(session, release_id).receipt)


@router.get("/{release_id}/report.html", **_file("text/html"))
def read_report_page(service: Running, request: Request, release_id: ReleaseId) -> Response:
    """Return the report as one HTML page, including evaluations made after publication. For a shared release, it omits
    facts about the account.
    """
    _require_generator(service, release_id, reports.PAGE)
    url = str(request.base_url).rstrip("/")
    report = reports.read_report(service.storage, service.factory, release_id, reports.PAGE, url)
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(report, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/{release_id}/report.json", **_file("application/json"))
def read_report_data(service: Running, release_id: ReleaseId) -> Response:
    """Return the report as JSON. For a shared release, it omits facts about the account."""
    _require_generator(service, release_id, reports.DATA)
    report = reports.read_report(service.storage, service.factory, release_id, reports.DATA)
    return Response(report, media_type="application/json")


@router.get("/{release_id}/grid.png", **_file("image/png"))
def read_grid(service: Running, request: Request, release_id: ReleaseId) -> Response:
    """Return a grid of synthetic images, one row per class."""
    return send_file(service, request, release_id, "grid.png", "image/png")


@router.get("/{release_id}/images/{number}.png", **_file("image/png"), summary="Read a stored image")
def read_image(service: Running, request: Request, release_id: ReleaseId, number: ImageNumber) -> Response:
    """Return one of the synthetic images that were stored when the release was published. Classes take turns: image `n`
    has the label `n` modulo the number of classes. `files/images.zip` contains all of them.
    """
    _require_generator(service, release_id, formats.IMAGES_FILE)
    content = gallery.open_gallery(service.storage, release_id).read(number)
    response = answers.with_etag(request, Response(content, media_type="image/png"))
    response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    return response


@router.get("/{release_id}/files/{name}", **_file("application/octet-stream"), summary="Download a file")
def read_file(service: Running, request: Request, release_id: ReleaseId, name: FileName) -> Response:
    """Download a file of the release. Generators have `generator.*`, a model card, `load_generator.py`, which needs
    only torch, and `images.zip` with stored images. Classifiers have `classifier.*` and `extractor.safetensors`. Class
    counts have `histogram.json`. Every release has its privacy card, and `artifact.json` with the SHA-256 of its files.
    """
    if name in formats.MADE:
        made = cards.read_made(service.storage, service.factory, release_id, name)
        return Response(made, media_type="text/plain; charset=utf-8")
    if name not in (*formats.DOWNLOADS, formats.IMAGES_FILE):
        known = ", ".join((*formats.DOWNLOADS, formats.IMAGES_FILE, *formats.MADE))
        raise errors.NotFound(f"There is no such file. The files of releases are {known}.", name=name)
    kind = "json" if name.endswith(".json") else "octet-stream"
    return send_file(service, request, release_id, name, f"application/{kind}")


@router.get("/{release_id}/evaluations", dependencies=[VIEW], summary="List a release's evaluations")
def list_evaluations(service: Running, release_id: ReleaseId, page: Paging) -> Page[EvaluationRecord]:
    """List evaluations, including unfinished ones, newest first."""
    return answers.newest_page(
        service,
        page,
        Evaluation,
        lambda _, found: [evaluate.show(row, row.job) for row in found],
        of=(Release, release_id),
        columns=select(Evaluation).options(with_job(Evaluation)),
        release_id=release_id,
    )


def _require_generator(service: Service, release_id: str, name: str) -> Release:
    with transaction(service.factory, read_only=True) as session:
        release = find(session, Release, release_id)
    if release.kind is not words.ReleaseKind.GENERATOR and name in _OF_GENERATORS:
        raise errors.NotFound(
            f"A {release.kind.value} has no {name}. GET /v1/releases/{release.id} shows this release.",
            release_id=release.id,
        )
    return release


def send_file(service: Service, request: Request, release_id: str, name: str, media_type: str) -> Response:
    release = _require_generator(service, release_id, name)
    path = service.storage.open(interface.key_of(release.id), name)
    return answers.send_file(request, path, sha256=interface.digest_file(path), media_type=media_type)


sample_router = APIRouter(prefix="/v1/samples", tags=["samples"], route_class=answers.ApiRoute)
SampleId = Annotated[Identifier, Path(description="The sample.")]

_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The whole content.",
        "content": {packing.media_type: {} for packing in formats.PACKINGS.values()},
    },
    206: {"description": "The requested byte range."},
    304: {"description": "The client's copy is current."},
    **{status: {} for status in (409, 410, 416)},  # the OpenAPI document describes errors by status
}


@sample_router.get(
    "/{sample_id}/content",
    dependencies=[VIEW],
    response_class=Response,
    responses=_CONTENT,
    summary="Download a sample",
)
def read_content(service: Running, request: Request, sample_id: SampleId) -> Response:
    """Download the images, or a byte range. The ETag is the content's SHA-256."""
    with transaction(service.factory, read_only=True) as session:
        sample = find(session, Sample, sample_id, options=[with_job(Sample)])
        job = sample.job
    if job.state in words.UNFINISHED:
        raise problems.Pending(f"Sample {sample_id} is {job.state.value}. Retry soon, or follow job {job.id}.")
    if sample.sha256 is None or sample.path is None:
        raise problems.JobNotSucceeded(
            f"Sample {sample_id} has no content: its job is in state {job.state.value}. Request a new sample."
        )
    if sample.removed_at is not None:
        raise problems.SampleRemoved(
            f"The files of sample {sample_id} were removed, because samples are kept for a limited time. Sample "
            f"release {sample.release_id} again with the same count, classes, seed and format: the images are the "
            "same, and it costs nothing.",
            release_id=sample.release_id,
            seed=sample.seed,
        )
    packing = formats.PACKINGS[sample.format.value]
    path = service.storage.open(interface.key_of(sample.id), sample.path.rpartition("/")[2])
    return answers.send_file(
        request, path, sha256=sample.sha256, media_type=packing.media_type, filename=f"{sample.id}.{packing.suffix}"
    )


share_router = APIRouter(prefix="/v1/releases/{release_id}/shares", tags=["releases"], route_class=answers.ApiRoute)
ShareId = Annotated[Identifier, Path(description="The share.")]


@share_router.get("", dependencies=[READ], summary="List the shares of a release")
def list_shares(service: Running, release_id: ReleaseId, page: Paging) -> Page[ShareRecord]:
    """List the current and former shares of a release, newest first. Other projects get an empty list."""
    return answers.newest_page(service, page, Share, views.shares, of=(Release, release_id), release_id=release_id)


@share_router.post("", status_code=201, summary="Request a share")
def request_share(
    service: Running, admin: Admin, response: Response, release_id: ReleaseId, body: ShareRequest
) -> DecisionRecord:
    """Request to share a release with another project, or with all projects. Another owner or an admin must approve.

    The other project can then read the release, its card, its files and the public part of its report. It can also
    generate images from the release and evaluate it. It cannot see the account, dataset, job or receipt.
    """
    ask = partial(jobs.request_share, release_id=release_id, **body.model_dump(), requested_with=admin.id)
    return request_decision(service, response, ask)


@share_router.delete("/{share_id}", dependencies=[ADMIN], summary="Stop sharing a release")
def end_share(service: Running, release_id: ReleaseId, share_id: ShareId) -> ShareRecord:
    """Stop sharing a release at once. One owner or admin alone may do this.

    Unfinished jobs of other projects are cancelled. Other projects keep generated samples and downloaded files.
    """
    with transaction(service.factory) as session:
        share = jobs.end_share(session, release_id=release_id, share_id=share_id, now=service.clock())
        return views.shares(session, [share])[0]
