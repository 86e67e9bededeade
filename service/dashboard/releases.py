"""Pages of releases, and their files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from obscura.wire import formats
from obscura.wire.schemas import DatasetRecord, Identifier
from obscura.wire.words import ReleaseKind
from service import gallery, jobs, reports
from service.api.deps import Running
from service.api.routes import releases as api
from service.dashboard.access import find_viewer
from service.dashboard.charts import Point, accuracy_chart
from service.dashboard.forms import Filtered
from service.dashboard.pages import PageRoute, page
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity import projects
from service.storage.interface import key_of
from service.views import releases as views
from service.views import sweeps

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RELEASES_A_PAGE = 30
COMPARED_MAX = 4  # side by side
CHARTED_MAX = 100  # newest releases of a dataset, so that its page stays small
CLASSES_A_PAGE = 24  # of a gallery
TILES_A_PAGE = 120  # of a gallery, or TILES_OF_CLASS_MIN for each class
TILES_OF_CLASS_MIN = 12
# Tabs of a release; those of other kinds than generators begin with the names below.
TABS = {"images": "Images", "usefulness": "Usefulness", "guarantee": "Guarantee", "use": "Use it", "share": "Share"}
FIRST_TABS = {ReleaseKind.CLASSIFIER: "Classifier", ReleaseKind.HISTOGRAM: "Counts"}
# Files of a release that are listed by name.
DOWNLOADS = (formats.IMAGES_FILE, "report.json", *formats.DOWNLOADS, *formats.MADE)


@dataclass(frozen=True)
class GalleryPlace:
    """The part of a gallery that a page shows: one class or all, and the image that is enlarged without a script."""

    label: Annotated[int | None, Query(ge=0, lt=2**31)] = None
    page: Annotated[int, Query(ge=0, lt=2**31)] = 0
    image: Annotated[int | None, Query(ge=0, lt=2**31)] = None

    def groups(self, count: int, classes: int) -> tuple[list[tuple[int, range]], bool]:
        """Return labels with the numbers of their images on this page, and whether another page follows.

        Pages show the first images of every class, CLASSES_A_PAGE classes at a time; then the next images.
        """
        labels = range(classes) if self.label is None else range(self.label, self.label + 1)
        parts = math.ceil(len(labels) / CLASSES_A_PAGE)
        each = classes * max(TILES_A_PAGE // min(len(labels), CLASSES_A_PAGE), TILES_OF_CLASS_MIN)
        (turn, part), (next_turn, next_part) = divmod(self.page, parts), divmod(self.page + 1, parts)
        end = min(count, each * (turn + 1))
        shown = labels[part * CLASSES_A_PAGE : (part + 1) * CLASSES_A_PAGE]
        groups = [(label, range(each * turn + label, end, classes)) for label in shown if each * turn + label < end]
        return groups, each * next_turn + labels[next_part * CLASSES_A_PAGE] < count


@router.get("/releases")
def release_list(request: Request, service: Running, filters: Filtered) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Release, ("q", "account"))
        shown, older_than = views.views(session, *narrowed, limit=RELEASES_A_PAGE, before=filters.before)
        values = filters.template_values(session, "/releases")
    return page(request, "releases.html", **values, releases=shown, older_than=older_than)


@router.get("/compare")
def compare(
    request: Request,
    service: Running,
    release: Annotated[list[Identifier], Query(max_length=RELEASES_A_PAGE)] = [],  # noqa: B006  only read
) -> HTMLResponse:
    if not 1 <= len(release) <= COMPARED_MAX:
        raise InvalidInput(f"You ticked {len(release)} releases to compare. Go back and tick two to {COMPARED_MAX}.")
    with transaction(service.factory, read_only=True) as session:
        compared = [views.view(session, release_id) for release_id in dict.fromkeys(release)]
    measures = list(dict.fromkeys(name for one in compared for name in one.release.summary.get("accuracy", {})))
    classes = list(dict.fromkeys(name for one in compared for name in one.release.accuracy_by_class or {}))
    options = sweeps.differing([one.options for one in compared])
    return page(request, "compare.html", compared=compared, measures=measures, classes=classes, options=options)


@router.get("/releases/{release_id}/tiles.png")
def tiles(service: Running, request: Request, release_id: str) -> Response:
    """Serve the tiles of a release's card. They never change, so browsers can cache them."""
    response = api.send_file(service, request, release_id, "tiles.png", "image/png")
    response.headers["Cache-Control"] = "private, max-age=3600"
    return response


@router.get("/releases/{release_id}/report")
def report(service: Running, request: Request, release_id: str) -> Response:
    """Serve the report in a sandbox, because its origin has access to the session cookie."""
    response = api.read_report_page(service, request, release_id)
    response.headers["Content-Security-Policy"] = f"{api.REPORT_POLICY}; sandbox"
    return response


@router.get("/releases/{release_id}/receipt")
def receipt(service: Running, release_id: str) -> Response:
    return _attached(api.read_receipt(service, release_id), f"{release_id}-receipt.json")


@router.get("/releases/{release_id}/files/{name}")
def release_file(service: Running, request: Request, release_id: str, name: str) -> Response:
    is_data = name == reports.DATA
    file = api.read_report_data(service, release_id) if is_data else api.read_file(service, request, release_id, name)
    # Do not rename files of a generator: its program opens them by name.
    return _attached(file, name if name in formats.MADE or name.startswith("generator.") else f"{release_id}-{name}")


router.get("/releases/{release_id}/images/{number}.png")(api.read_image)
router.get("/samples/{sample_id}/content")(api.read_content)


@router.get("/releases/{release_id}")
@router.get("/releases/{release_id}/{tab}")
def release(
    request: Request, service: Running, release_id: str, place: Annotated[GalleryPlace, Depends()], tab: str = "images"
) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        view = views.view(session, release_id)
        kind, classes = ReleaseKind(view.release.kind), len(view.dataset.classes)
        tabs = TABS | {"images": FIRST_TABS.get(kind, TABS["images"])}
        hidden = {"usefulness": kind is ReleaseKind.HISTOGRAM, "share": view.payer is None}
        tabs = {name: title for name, title in tabs.items() if not hidden.get(name)}
        if tab not in tabs:
            raise NotFound("There is no such part of a release's page.")
        project = projects.names(session, [view.release.project_id])[view.release.project_id]
        values: dict[str, Any] = {"view": view, "tab": tab, "tabs": tabs, "project": project, "place": place}
        match tab:
            case "usefulness":
                values |= tradeoff(session, view.dataset, release_id) if view.payer else {"trained": []}
                values |= {"evaluations": views.evaluations(session, release_id), "reference_of": reports.reference_of}
                values["public"], values["unfit"] = views.public_datasets(session, view.dataset)
            case "use":
                values["samples"] = views.samples(session, release_id)
            case "share":
                values["shares"] = views.shares(session, jobs.shares(session, release_id))
    present = {*service.storage.list(key_of(release_id))} | {*(formats.MADE if kind is ReleaseKind.GENERATOR else ())}
    if tab == "images" and kind is ReleaseKind.GENERATOR:
        values["stored"] = stored = gallery.open_gallery(service.storage, release_id)
        if place.label is not None and place.label >= classes:
            raise NotFound(f"This release has {classes} classes, numbered from 0.", label=place.label)
        values["groups"], values["more"] = place.groups(len(stored.images), classes)
    return page(
        request,
        f"release_{tab}.html",
        **values,
        downloads=[name for name in DOWNLOADS if name in present],
        packings=formats.PACKINGS,
        samples_max=service.settings.samples_max,
        url=str(request.base_url).rstrip("/"),
    )


def tradeoff(session: Session, dataset: DatasetRecord, marked: str = "") -> dict[str, Any]:
    """Return template values: the newest releases of a dataset of the caller's project, and the chart of their
    accuracies by share of the budget in percent. `marked` is the id of the page's own release.
    """
    trained, _ = views.views(session, Release.dataset_id == dataset.id, limit=CHARTED_MAX, with_costs=True)
    points = [
        Point(100 * one.used_fraction, accuracy, one.release.epsilon, one.release.id == marked)
        for one in trained
        if one.used_fraction is not None and (accuracy := one.release.compared_by) is not None
    ]
    return {"trained": trained, "chart": accuracy_chart(points, len(dataset.classes))}


def _attached(response: Response, name: str) -> Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
