"""Planning a training with its price at hand, and asking for it; with another training's options, too."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import JobRequest, PlannedCohort, PlanRecord
from obscura.wire.schemas import Identifier
from obscura.wire.wording import show_epsilon, values_in_words
from obscura.wire.words import TRAIN, DatasetState, Visibility
from privacy.errors import PrivacyError
from privacy.plans.plan import Recipe
from privacy.plans.registry import RECIPES
from service import jobs, ledger
from service.access import find, visible
from service.api.ordering import order
from service.api.routes.orders import read_picture
from service.api.routes.recipes import describe
from service.dashboard.access import Dashboard, Form, Running, Trainer, find_viewer
from service.dashboard.forms import (
    Body,
    fresh_once,
    once_of,
    problems_of,
    read_body,
    read_option_fields,
    read_options,
    write_options,
)
from service.dashboard.pages import PageRoute, page
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.session import transaction
from service.errors import NotFound, ObscuraError
from service.jobs.kind import Kind, Order, Reading
from service.views import plans, releases

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
CHOICES_MAX = 50  # of a field
FREE_RELEASES = 3  # that are named where nothing more can be trained
FIRST_EPSILON = 1.0  # what the slider stands at, where the account has so much left
FIRST_RECIPE = next(name for name, recipe in RECIPES.items() if recipe.publishes == "generator")


@dataclass(frozen=True)
class Wish:
    """What a plan is asked for, as the form has it: texts."""

    dataset: str = ""
    recipe: str = FIRST_RECIPE
    epsilon: str = ""
    evaluation: str = ""
    options: str = ""
    further: str = ""  # ids with a blank between two


def asked(
    request: Request,
    dashboard: Running,
    dataset: Annotated[str, Query(max_length=64)] = "",
    recipe: Annotated[str, Query(max_length=100)] = FIRST_RECIPE,
    epsilon: Annotated[str, Query(max_length=30)] = "",
    evaluation: Annotated[str, Query(max_length=64)] = "",
    options: Annotated[str, Query(max_length=8000)] = "",
    further: Annotated[list[Identifier], Query(max_length=CHOICES_MAX)] = [],  # noqa: B006  read alone
    shown: Annotated[str, Query(max_length=100, description="The recipe whose options had fields.")] = "",
    again: Annotated[str, Query(max_length=64, description="A training whose options are taken.")] = "",
) -> Wish:
    """Read what is asked for, or take it from another training."""
    if not again:
        if shown == recipe and recipe in RECIPES:
            fields = write_options(read_option_fields(RECIPES[recipe].options, request.query_params))
            options = "\n".join(filter(None, (options, fields)))
        elif shown:
            options = ""  # they are another recipe's
        return Wish(dataset, recipe, epsilon, evaluation, options, " ".join(further))
    with transaction(dashboard.factory, read_only=True) as session:
        job = jobs.get_job(session, again)
        if not jobs.KINDS[job.kind].planned:
            raise NotFound("There is no such training.")
        return wish_of(job, [row.dataset_id for row in ledger.further_datasets(session, again)])


def wish_of(job: Job, further: Sequence[str]) -> Wish:
    """Return what a job that carries out a plan was asked for.

    Args:
        further: ids of the datasets that it reads together with its own.
    """
    return Wish(
        dataset=job.dataset_id or "",
        recipe=job.recipe,
        epsilon=f"{job.epsilon:g}" if job.epsilon is not None else "",
        evaluation=(job.evaluation_dataset_id or "") if job.kind == TRAIN else "",
        options=write_options(job.options),
        further=" ".join(further),
    )


Wished = Annotated[Wish, Depends(asked)]


@router.get("/train")
def plan_page(request: Request, dashboard: Running, wish: Wished) -> HTMLResponse:
    """Show what can be trained, and what that would cost."""
    return _page(request, dashboard, wish, "train.html")


@router.get("/train/price")
def price(request: Request, dashboard: Running, wish: Wished) -> HTMLResponse:
    """Show the price alone, for the script that follows the slider."""
    return _page(request, dashboard, wish, "_price.html")


def _add_form(kind: Kind, asked: Order) -> None:
    """Take the form that asks for the job of a plan that is shown."""

    def ask(request: Request, dashboard: Running, trainer: Trainer, form: Form) -> Response:
        wish = Wish(**{name: form.get(name, "") for name in Wish.__dataclass_fields__})
        try:
            key, fields = f"{kind.name} {once_of(form)}", _body(wish, asked.request).model_dump()
            job_id = order(dashboard.service, trainer.id, key, kind, fields, lambda _, job: job.id)
        except (ObscuraError, PrivacyError) as error:
            return _page(request, dashboard, wish, "train.html", error)
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    router.post(asked.path.removeprefix("/v1"))(ask)


def _add_picture(kind: Kind, place: Reading) -> None:
    """Send the picture of what a job has made."""

    def send(request: Request, dashboard: Running, made_id: str) -> Response:
        return read_picture(dashboard.service, request, kind, made_id)

    router.get(f"{place.path.removeprefix('/v1')}/{{made_id}}/{place.picture}.png")(send)


for _kind in jobs.KINDS.values():
    if _kind.planned and _kind.order is not None:
        _add_form(_kind, _kind.order)
    if _kind.reading is not None and _kind.reading.picture:
        _add_picture(_kind, _kind.reading)


def _body(wish: Wish, schema: type[Body]) -> Body:
    fields: dict[str, Any] = {"dataset_id": wish.dataset, "recipe": wish.recipe, "epsilon": wish.epsilon}
    fields |= {"evaluation_dataset_id": wish.evaluation, "options": read_options(wish.options)}
    fields["further_dataset_ids"] = wish.further.split()
    return read_body(schema, {name: value for name, value in fields.items() if name in schema.model_fields})


def _command(wish: Wish) -> str:
    """Write what is asked for as it is asked for from a terminal."""
    words = ["obscura", "train", wish.dataset, *wish.further.split()]
    words += ["--recipe", wish.recipe, "--epsilon", wish.epsilon]
    for line in write_options(read_options(wish.options)).splitlines():
        words += ["--option", line.replace(" = ", "=", 1)]
    words += ["--evaluate", wish.evaluation] if wish.evaluation else []
    return shlex.join([*words, "--wait"])


def _page(
    request: Request,
    dashboard: Dashboard,
    wish: Wish,
    template: str,
    refused: ObscuraError | PrivacyError | None = None,
) -> HTMLResponse:
    values: dict[str, Any] = {"plan": None, "public": [], "most": None, "free": None, "payer": None, "paying": []}
    values |= {"offered": [], "left_out": 0}
    with transaction(dashboard.factory, read_only=True) as session:
        names = _names(session, wish.dataset)
        if names:
            dataset = find(session, Dataset, wish.dataset or next(iter(names)))
            chosen = set(wish.further.split()) - {dataset.id}
            # The price names none but the chosen ones; it is asked for at every step of the slider.
            offers = template != "_price.html"
            others_max = CHOICES_MAX if offers else 0
            first, *offered = plans.read_together(session, dataset, chosen, others_max=others_max)
            read = [first, *(one for one in offered if one.dataset.id in chosen)]
            payers = {one.payer.id: one.payer for one in read}
            payer = min(payers.values(), key=lambda one: one.balance.affordable_epsilon if one.balance else -1.0)
            most = 0.0 if payer.balance is None else payer.balance.affordable_epsilon  # the one that has least left
            wish = _completed(wish, [one.dataset.id for one in read], most)
            values |= {"public": releases.datasets_like(session, first.dataset) if offers else []}
            values |= {
                "most": most,
                "payer": payer,
                "first": first,
                "offered": offered,
                "left_out": len(chosen) + 1 - len(read),
            }
            if payer.balance is not None and most == 0:
                of_account = Release.account_id == payer.id
                values["free"], _ = releases.views(session, of_account, limit=FREE_RELEASES)
            elif payer.balance is not None and refused is None:
                try:
                    plan = plans.plan(session, dashboard.service.settings, _body(wish, JobRequest))
                    values |= {"plan": plan, "command": _command(wish)}
                    parts: Sequence[PlannedCohort | PlanRecord] = plan.cohorts or [plan]
                    values["paying"] = [(payers[part.budget.account_id], part) for part in parts]
                except (ObscuraError, PrivacyError) as error:
                    refused = error
    wrong, message = problems_of(refused) if refused is not None else ({}, "")
    recipe = RECIPES.get(wish.recipe)
    return page(
        request,
        template,
        status_code=200 if refused is None else 422,
        wish=wish,
        datasets=names,
        choices_max=CHOICES_MAX,
        recipes=RECIPES,
        recipe=None if recipe is None else describe(recipe),
        **_parted(wish, recipe),
        in_words=values_in_words,
        wrong=wrong,
        message=message,
        once=fresh_once(),
        **values,
    )


def _parted(wish: Wish, recipe: Recipe | None) -> dict[str, Any]:
    """Return the options for which the form has fields, as texts, and the lines that it must show as they are."""
    try:
        options = read_options(wish.options)
    except ObscuraError:
        return {"given": {}, "other": wish.options}
    known = {} if recipe is None else recipe.options["properties"]
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    other = write_options({name: value for name, value in options.items() if name not in known})
    return {"given": {name: text for name, text in given.items() if name in known}, "other": other}


def _names(session: Session, chosen: str) -> dict[str, str]:
    """Return the names, by id, of the newest private datasets that have their images, and of the chosen one."""
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


def _completed(wish: Wish, read: Sequence[str], most: float) -> Wish:
    """Fill in what was left open: the dataset, and an epsilon that every account has left.

    Args:
        read: ids of the datasets that are read, the first one and those that can be read together with it.
    """
    values: Mapping[str, str] = vars(wish) | {"dataset": read[0], "further": " ".join(read[1:])}
    if not wish.epsilon:
        values = {**values, "epsilon": show_epsilon(min(FIRST_EPSILON, most), up=False) if most > 0 else "1"}
    return Wish(**values)
