"""Pages of releases, and their files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from obscura.wire import formats
from obscura.wire.schemas import Identifier
from obscura.wire.words import ReleaseKind
from service import gallery, jobs, reports
from service.api.deps import Running, Service
from service.api.routes import releases as api
from service.dashboard.access import find_viewer
from service.dashboard.charts import AccuracyChart, Point, accuracy_chart
from service.dashboard.forms import Filtered
from service.dashboard.pages import PageRoute, page
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity import projects
from service.storage.interface import key_of
from service.views import admins, sweeps
from service.views import releases as views

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RELEASES_A_PAGE = 30
COMPARED_MAX = 4  # side by side
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
    """The part of a gallery that a page shows, as query parameters.

    Attributes:
        label: the only class shown; None for all.
        image: the number of the image shown enlarged, for browsers without scripts.
    """

    label: Annotated[int | None, Query(ge=0, lt=2**31)] = None
    page: Annotated[int, Query(ge=0, lt=2**31)] = 0
    image: Annotated[int | None, Query(ge=0, lt=2**31)] = None

    def groups(self, count: int, classes: int) -> tuple[list[tuple[int, range]], bool]:
        """Return labels with the numbers of their images on this page, and whether another page follows.

        Class k has the images k, k + classes, and so on. Pages show the first images of every class, CLASSES_A_PAGE
        classes at a time; then the next images of every class.
        """
        labels = range(classes) if self.label is None else range(self.label, self.label + 1)
        parts = math.ceil(len(labels) / CLASSES_A_PAGE)
        each = classes * max(TILES_A_PAGE // min(len(labels), CLASSES_A_PAGE), TILES_OF_CLASS_MIN)

        def begin(page: int) -> tuple[int, range]:
            turn, part = divmod(page, parts)
            return each * turn, labels[part * CLASSES_A_PAGE : (part + 1) * CLASSES_A_PAGE]

        first, shown = begin(self.page)
        end = min(count, first + each)
        groups = [(label, range(first + label, end, classes)) for label in shown if first + label < end]
        later, following = begin(self.page + 1)
        return groups, later + following[0] < count


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


@router.get("/releases/{release_id}/grid.png")
@router.get("/releases/{release_id}/tiles.png")
def overview(service: Running, request: Request, release_id: str) -> Response:
    """Serve the grid of a release, or the tiles of its card. They never change, so browsers can cache them.

    Releases before December 2026 have a grid alone.
    """
    name = request.scope["path"].rpartition("/")[2]
    try:
        response = api.send_file(service, request, release_id, name, "image/png")
    except NotFound:
        response = api.read_grid(service, request, release_id)
    response.headers["Cache-Control"] = "private, max-age=3600"
    return response


@router.get("/releases/{release_id}/report")
def report(service: Running, release_id: str) -> Response:
    """Serve the report in a sandbox, because its origin has access to the session cookie."""
    response = api.read_report_page(service, release_id)
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
    """Show one tab of a release."""
    with transaction(service.factory, read_only=True) as session:
        view = views.view(session, release_id)
        kind = ReleaseKind(view.release.kind)
        tabs = TABS | {"images": FIRST_TABS.get(kind, TABS["images"])}
        hidden = {"usefulness"} if kind is ReleaseKind.HISTOGRAM else set()
        hidden |= set() if view.payer else {"share"}
        if tab not in tabs or tab in hidden:
            raise NotFound("There is no such part of a release's page.")
        values: dict[str, Any] = {"view": view, "tabs": {name: tabs[name] for name in tabs if name not in hidden}}
        values["project"] = projects.names(session, [view.release.project_id])[view.release.project_id]
        match tab:
            case "usefulness":
                trained = views.of_dataset(session, view.dataset.id) if view.payer else []
                values["evaluations"] = views.evaluations(session, release_id)
                values["public"] = views.evaluable_like(session, view.dataset)
                values["chart"] = tradeoff_chart(trained, len(view.dataset.classes), release_id)
                values["trained"] = trained
            case "use":
                values["samples"] = views.samples(session, release_id)
            case "share":
                values["shares"] = views.shares(session, jobs.shares(session, release_id))
                names = admins.project_names(session).items()
                values["projects"] = {id: name for id, name in names if id != view.release.project_id}
    match tab:
        case "images" if kind is ReleaseKind.GENERATOR:
            values |= _gallery(service, view, place)
        case "use" | "guarantee":
            present = _present(service, release_id)
            values |= {"present": present, "downloads": [name for name in DOWNLOADS if name in present]}
            values |= {"packings": formats.PACKINGS, "samples_max": service.settings.samples_max}
            values["url"] = str(request.base_url).rstrip("/")
    return page(request, f"release_{tab}.html", tab=tab, **values)


def tradeoff_chart(trained: Sequence[views.ReleaseView], classes: int, marked: str = "") -> AccuracyChart | None:
    """Return the chart of a dataset's measured releases: accuracy by share of the budget, in percent."""
    points = [
        Point(100 * one.used_fraction, accuracy, one.release.epsilon, one.release.id == marked)
        for one in trained
        if one.used_fraction is not None and (accuracy := one.release.compared_by) is not None
    ]
    return accuracy_chart(points, classes)


def _gallery(service: Service, view: views.WholeRelease, place: GalleryPlace) -> dict[str, Any]:
    """Return the template values of the gallery, or of the grid if the release has no stored images."""
    classes = len(view.dataset.classes)
    if place.label is not None and place.label >= classes:
        raise NotFound(f"This release has {classes} classes, numbered from 0.", label=place.label)
    try:
        stored = gallery.open_gallery(service.storage, view.release.id)
    except NotFound:
        return {"stored": None, "has_grid": "grid.png" in _present(service, view.release.id)}
    groups, more = place.groups(len(stored.entries), classes)
    return {"stored": stored, "place": place, "groups": groups, "more": more}


def _present(service: Service, release_id: str) -> set[str]:
    """Return the names of a release's files, and of the files that are made of them."""
    present = set()
    for name in (*DOWNLOADS, "grid.png", "report.html"):
        with suppress(NotFound):
            service.storage.open(key_of(release_id), name)
            present.add(name)
    return present | set(formats.MADE if "generator.json" in present else ())


def _attached(response: Response, name: str) -> Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
