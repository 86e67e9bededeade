"""Releases side by side, and the commands that fetch one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from service.dashboard import release_queries
from service.dashboard.access import Running, find_viewer
from service.dashboard.pages import PageRoute, page
from service.dashboard.release_queries import ReleaseView
from service.db.session import transaction

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RELEASES_MAX = 4  # beside each other


@dataclass(frozen=True)
class Compared:
    """One release of several.

    Attributes:
        chance: accuracy of guessing, one in the number of classes.
        options: of its plan, those that differ between the releases.
    """

    view: ReleaseView
    chance: float
    options: dict[str, Any]


def differing(configs: list[dict[str, Any]]) -> list[str]:
    """Return the names of options that are not the same in all configurations, in their order."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


@router.get("/compare")
def compare(
    request: Request,
    dashboard: Running,
    release: Annotated[list[str], Query(min_length=1, max_length=RELEASES_MAX)],
) -> HTMLResponse:
    """Show up to four releases side by side: price, options, accuracies with the chance level, grids."""
    with transaction(dashboard.factory, read_only=True) as session:
        views = [release_queries.read_release(session, release_id) for release_id in dict.fromkeys(release)]
    configs = [{**view.release.job.plan.get("config", {}), **view.release.job.options} for view in views]
    names = differing(configs)
    compared = [
        Compared(view, 1 / len(view.release.dataset.classes), {name: config.get(name) for name in names})
        for view, config in zip(views, configs, strict=True)
    ]
    measures = list(dict.fromkeys(name for view in views for name in view.summary.get("accuracy", {})))
    return page(request, "compare.html", compared=compared, measures=measures, options=names)
