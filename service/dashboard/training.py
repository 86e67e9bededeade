"""The page that plans and starts a training or a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import JobRequest, PlanRecord
from obscura.wire.sweep_schemas import SweepRequest
from obscura.wire.wording import show_epsilon, values_in_words
from obscura.wire.words import TRAIN, DatasetState, Visibility
from privacy.errors import PrivacyError
from privacy.plans.registry import RECIPES
from service import jobs
from service.api.ordering import order, order_sweep
from service.api.routes.orders import read_picture
from service.api.routes.recipes import describe
from service.dashboard.access import Dashboard, Form, Running, Trainer, Viewer, find_viewer
from service.dashboard.forms import FieldsRefused, fresh_once, once_of, problems_of
from service.dashboard.pages import PageRoute, page
from service.dashboard.wishes import (
    CHOICES_MAX,
    Wish,
    Wished,
    at_their_places,
    body_of,
    command_of,
    parted,
    tried,
    wish_from,
)
from service.db.access_tables import Idempotency
from service.db.dataset_tables import Dataset
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import NotFound, ObscuraError
from service.identity.access import Principal, find, visible
from service.jobs.kind import Kind, Order, Reading
from service.settings import Settings
from service.views import accounts, datasets, plans, releases

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
FREE_RELEASES = 3  # that are named where nothing more can be trained
PART_PREFILLED = 1 / 3  # of the epsilon that is left
PART_CONFIRMED = 1 / 2  # of the epsilon that is left: a higher price needs a confirmation
EPSILON_STEP = 0.05  # of the slider


@router.get("/train")
def plan_page(request: Request, dashboard: Running, wish: Wished) -> HTMLResponse:
    """Show the planning form with its price."""
    return _page(request, dashboard, wish, "train.html")


@router.get("/train/price")
def price(request: Request, dashboard: Running, wish: Wished) -> HTMLResponse:
    """Render the price alone, for the script that follows the slider."""
    return _page(request, dashboard, wish, "_price.html")


@router.post("/sweeps")
def search(request: Request, dashboard: Running, trainer: Trainer, form: Form) -> Response:
    """Start a sweep: hold the price of all trials, or do nothing."""
    wish = wish_from(form)
    try:
        key, body = f"sweep {once_of(form)}", body_of(wish, SweepRequest)
        _require_confirmed(dashboard, trainer, key, wish, form)
        sweep_id = order_sweep(dashboard.service, trainer.id, key, body, lambda _, sweep: sweep.id)
    except (ObscuraError, PrivacyError) as error:
        return _page(request, dashboard, wish, "train.html", error)
    return RedirectResponse(f"/sweeps/{sweep_id}", status_code=303)


def _add_form(kind: Kind, asked: Order) -> None:
    def ask(request: Request, dashboard: Running, trainer: Trainer, form: Form) -> Response:
        wish = replace(wish_from(form), grids="")
        try:
            key, fields = f"{kind.name} {once_of(form)}", body_of(wish, asked.request).model_dump()
            if kind.name == TRAIN:
                _require_confirmed(dashboard, trainer, key, wish, form)
            job_id = order(dashboard.service, trainer.id, key, kind, fields, lambda _, job: job.id)
        except (ObscuraError, PrivacyError) as error:
            return _page(request, dashboard, wish, "train.html", error)
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    router.post(asked.path.removeprefix("/v1"))(ask)


def _add_picture(kind: Kind, place: Reading) -> None:
    def send(request: Request, dashboard: Running, made_id: str) -> Response:
        return read_picture(dashboard.service, request, kind, made_id)

    router.get(f"{place.path.removeprefix('/v1')}/{{made_id}}/{place.picture}.png")(send)


for _kind in jobs.KINDS.values():
    if _kind.planned and _kind.order is not None:
        _add_form(_kind, _kind.order)
    if _kind.reading is not None and _kind.reading.picture:
        _add_picture(_kind, _kind.reading)


def _page(
    request: Request,
    dashboard: Dashboard,
    wish: Wish,
    template: str,
    refused: ObscuraError | PrivacyError | None = None,
) -> HTMLResponse:
    viewer: Viewer = request.state.viewer
    if not viewer.may("train"):
        wish = replace(wish, grids="")  # only who may start a search plans one: that takes long
    values: dict[str, Any] = {"plan": None, "public": [], "most": None, "free": None, "payer": None}
    values |= {"search": None, "part": None}
    with transaction(dashboard.factory, read_only=True) as session:
        names = _names(session, wish.dataset)
        if names:
            dataset = find(session, Dataset, wish.dataset or next(iter(names)))
            offers = template != "_price.html"  # the price is requested at every step of the slider
            payer = accounts.read(session, str(dataset.account_id))
            most = 0.0 if payer.balance is None else payer.balance.affordable_epsilon
            wish = _completed(wish, dataset.id, most)
            values |= {"public": releases.datasets_like(session, datasets.dataset(dataset)) if offers else []}
            values |= {"most": most, "payer": payer}
            if payer.balance is not None and most == 0:
                of_account = Release.account_id == payer.id
                values["free"], _ = releases.views(session, of_account, limit=FREE_RELEASES)
            elif payer.balance is not None and (refused is None or "confirmed" in problems_of(refused)[0]):
                try:
                    values |= _priced(session, dashboard.service.settings, wish)
                except (ObscuraError, PrivacyError) as error:
                    refused = error
    wrong, message = problems_of(refused) if refused is not None else ({}, "")
    recipe = RECIPES.get(wish.recipe)
    return page(
        request,
        template,
        status_code=200 if refused is None else 422,
        wish=wish,
        fields=vars(wish),
        datasets=names,
        choices_max=CHOICES_MAX,
        recipes=RECIPES,
        recipe=None if recipe is None else describe(recipe),
        **parted(wish, recipe),
        tried=tried(wish),
        in_words=values_in_words,
        wrong=at_their_places(wish, wrong),
        message=message,
        once=fresh_once(),
        part_confirmed=PART_CONFIRMED,
        **values,
    )


def _priced(session: Session, settings: Settings, wish: Wish) -> dict[str, Any]:
    part = _part(session, settings, wish)
    return {"command": command_of(wish), "part": part, "search" if wish.grids else "plan": part}


def _part(session: Session, settings: Settings, wish: Wish) -> PlanRecord | plans.PlannedSweep:
    if wish.grids:
        return plans.plan_sweep(session, settings, body_of(wish, SweepRequest))
    return plans.plan(session, settings, body_of(wish, JobRequest))


def _require_confirmed(dashboard: Dashboard, trainer: Principal, key: str, wish: Wish, form: Mapping[str, str]) -> None:
    if form.get("confirmed") == "yes":
        return
    with transaction(dashboard.factory, read_only=True) as session:
        if session.get(Idempotency, (trainer.id, key)) is not None:
            return
        part = _part(session, dashboard.service.settings, wish)
        left = part.budget.left_epsilon
        if part.budget.affordable and part.price_epsilon > PART_CONFIRMED * left:
            raise FieldsRefused(
                {
                    "confirmed": f"This costs ε {show_epsilon(part.price_epsilon, up=True)}, more than half of the "
                    f"ε {show_epsilon(left, up=False)} that is left. Confirm it, or choose a smaller epsilon."
                }
            )


def _names(session: Session, chosen: str) -> dict[str, str]:
    private = Dataset.state == DatasetState.READY, Dataset.visibility == Visibility.PRIVATE
    ready = visible(session, Dataset, select(Dataset.id, Dataset.name)).where(*private)
    newest = session.execute(ready.order_by(Dataset.created_at.desc()).limit(CHOICES_MAX)).all()
    names = {row.id: row.name for row in newest}
    if chosen and chosen not in names:
        row = find(session, Dataset, chosen)
        if row.visibility is not Visibility.PRIVATE:
            raise NotFound("There is no such private dataset.")
        names = {row.id: row.name, **names}
    return names


def _completed(wish: Wish, dataset_id: str, most: float) -> Wish:
    values: Mapping[str, str] = vars(wish) | {"dataset": dataset_id}
    if not wish.epsilon:
        values = {**values, "epsilon": _prefilled(most) if most > 0 else "1"}
    return Wish(**values)


def _prefilled(most: float) -> str:
    third = PART_PREFILLED * most
    return show_epsilon(math.floor(third / EPSILON_STEP) * EPSILON_STEP if third >= EPSILON_STEP else third, up=False)
