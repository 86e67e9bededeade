"""Pages that plan and start trainings, previews and sweeps; and the pages of jobs and sweeps."""

from __future__ import annotations

import json
import shlex
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire import texts, wording
from obscura.wire.budgets import PART_CONFIRMED
from obscura.wire.job_schemas import JobRequest, PlanRequest, PreviewRequest, SweepRequest
from obscura.wire.words import TRAIN, DatasetState, Visibility
from privacy.errors import PrivacyError
from privacy.plans.registry import RECIPES
from service import errors, jobs
from service.api.deps import Running, cookie_name
from service.api.routes.jobs import stream_events
from service.api.routes.orders import image_endpoint
from service.dashboard import forms, pages
from service.dashboard.access import Reader, Viewer, find_viewer
from service.dashboard.charts import Point, accuracy_chart, plan_chart
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.session import transaction
from service.identity.access import find, visible
from service.identity.auth import find_session
from service.views import accounts, plans, releases, sweeps
from service.views import jobs as views

router = APIRouter(route_class=pages.PageRoute, dependencies=[Depends(find_viewer)])
JOBS_A_PAGE = 25
FREE_RELEASES = 3  # offered if no budget is left
CHOICES_MAX = 50  # options per field
GRIDS_SHOWN = 3  # number of form rows for options with several values
NAME_MAX = 100
NO_GRIDS: dict[str, list[str]] = {"vary": [], "values": []}
FIRST_RECIPE = next(iter(RECIPES))  # in order of recommendation
Line = Annotated[str, Field(max_length=2000)]


class TrainingForm(BaseModel, frozen=True):
    """The fields of the planning form, as strings."""

    dataset: Annotated[str, Field(max_length=64)] = ""
    recipe: Annotated[str, Field(max_length=100)] = FIRST_RECIPE
    epsilon: Annotated[str, Field(max_length=30)] = ""
    expected_units: Annotated[str, Field(max_length=30)] = ""  # for the forecast alone
    evaluation: Annotated[str, Field(max_length=64)] = ""
    options: Annotated[str, Field(max_length=8000)] = ""
    name: Annotated[str, Field(max_length=NAME_MAX)] = ""  # of the sweep
    shown: Annotated[str, Field(max_length=100)] = ""  # recipe whose options are shown as fields
    again: Annotated[str, Field(max_length=64)] = ""  # earlier training to copy the options from
    vary: Annotated[list[Line], Field(max_length=CHOICES_MAX)] = []  # names of options with several values
    values: Annotated[list[Line], Field(max_length=CHOICES_MAX)] = []  # of each of these options

    @property
    def grids(self) -> list[str]:
        """The grid of a sweep: `NAME=VALUE,VALUE` for each option with several values; empty for a single training."""
        pairs = ((each.strip(), tried.strip()) for each, tried in zip_longest(self.vary, self.values, fillvalue=""))
        return [" ".join(f"{each}={tried}".split()) for each, tried in pairs if each or tried]

    def body(self, schema: type[forms.Body]) -> forms.Body:
        """Return the API request for this form.

        Raise FieldsRefused with errors by field of the request. An error under `values-1` concerns the first option
        with several values; an error under `grids`, all of these options.
        """
        fields: dict[str, Any] = {"dataset_id": self.dataset, "recipe": self.recipe, "epsilon": self.epsilon}
        fields |= {"evaluation_dataset_id": self.evaluation, "options": forms.read_options(self.options)}
        fields["expected_units"] = self.expected_units
        if schema is SweepRequest:
            try:
                fields["trials"] = texts.trials_of(self.grids, fields["options"])
            except texts.GridRefused as error:
                place = "grids" if error.position is None else f"values-{error.position + 1}"
                raise forms.FieldsRefused({place: str(error)}) from None
            fields["name"] = self.name.strip() or "; ".join(self.grids)[:NAME_MAX]
        return forms.read_body(schema, {name: value for name, value in fields.items() if name in schema.model_fields})

    def bodies(self) -> dict[str, dict[str, Any]]:
        """Return the JSON bodies that the page's forms send to the API."""
        schemas: dict[str, type[BaseModel]]
        schemas = {"sweep": SweepRequest} if self.grids else {"job": JobRequest, "preview": PreviewRequest}
        return {name: self.body(schema).model_dump(mode="json", exclude_none=True) for name, schema in schemas.items()}

    def command(self) -> str:
        words = ["obscura", "sweep" if self.grids else "train", self.dataset]
        words += ["--recipe", self.recipe, "--epsilon", self.epsilon]
        for line in forms.write_options(forms.read_options(self.options)).splitlines():
            words += ["--option", line.replace(" = ", "=", 1)]
        for line in self.grids:
            words += ["--grid", line]
        words += ["--name", self.name.strip()] if self.grids and self.name.strip() else []
        words += ["--evaluate", self.evaluation] if self.evaluation else []
        return shlex.join([*words, "--wait"])

    def parts(self) -> dict[str, Any]:
        """Return the options that have form fields, as strings, and the lines of all other options."""
        try:
            options = forms.read_options(self.options)
        except errors.ObscuraError:
            return {"given": {}, "other": self.options}
        known = RECIPES[self.recipe].options["properties"] if self.recipe in RECIPES else {}
        given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
        other = forms.write_options({name: value for name, value in options.items() if name not in known})
        return {"given": {name: text for name, text in given.items() if name in known}, "other": other}


def read_query(request: Request, service: Running, form: Annotated[TrainingForm, Query()]) -> TrainingForm:
    """Parse the planning form, or fill it in from an earlier training."""
    if form.again:
        with transaction(service.factory, read_only=True) as session:
            job = jobs.get_job(session, form.again)
            if not jobs.KINDS[job.kind].planned:
                raise errors.NotFound("There is no such training.")
            return TrainingForm(
                dataset=job.dataset_id or "",
                recipe=job.recipe,
                epsilon=f"{job.epsilon:g}" if job.epsilon is not None else "",
                evaluation=(job.evaluation_dataset_id or "") if job.kind == TRAIN else "",
                options=forms.write_options(job.options),
            )
    if not form.shown:
        return form
    if form.shown != form.recipe or form.recipe not in RECIPES:
        return form.model_copy(update={"options": "", **NO_GRIDS})
    options = {}
    for name, schema in RECIPES[form.recipe].options["properties"].items():
        if text := request.query_params.get(f"option.{name}", "").strip():
            options[name] = text if schema.get("type") == "string" else texts.json_or_text(text)
    lines = filter(None, (form.options, forms.write_options(options)))
    return form.model_copy(update={"options": "\n".join(lines)})


Chosen = Annotated[TrainingForm, Depends(read_query)]


@router.get("/train")
@router.get("/train/price")
def plan_page(request: Request, service: Running, chosen: Chosen) -> HTMLResponse:
    """Show the planning form. For the slider's script, show only the price."""
    price_alone = request.scope["path"].endswith("/price")
    wrong, message = dict[str, str](), ""
    viewer: Viewer = request.state.viewer
    if not viewer.may("train"):
        chosen = chosen.model_copy(update=NO_GRIDS)  # planning a sweep is slow: only for viewers who may start one
    values: dict[str, Any] = {"public": []}
    values |= dict.fromkeys(("plan", "most", "free", "payer", "sweep", "part", "chart", "steps"))
    with transaction(service.factory, read_only=True) as session:
        names = _names(session, chosen.dataset)
        if names:
            dataset = find(session, Dataset, chosen.dataset or next(iter(names)))
            payer = accounts.read(session, str(dataset.account_id))
            most = 0.0 if payer.balance is None else payer.balance.affordable_epsilon
            prefilled = f"{wording.proposed_epsilon(most):g}" if most > 0 else "1"
            chosen = chosen.model_copy(update={"dataset": dataset.id, "epsilon": chosen.epsilon or prefilled})
            if not price_alone:  # the price is requested at every slider step
                values["public"], _ = releases.public_datasets(session, releases.dataset_record(dataset))
            values |= {"most": most, "payer": payer}
            if payer.balance is not None and most == 0:
                of_account = Release.account_id == payer.id
                values["free"], _ = releases.views(session, of_account, limit=FREE_RELEASES)
            elif payer.balance is not None:
                try:
                    if chosen.grids:
                        values["sweep"] = plans.plan_sweep(session, service.settings, chosen.body(SweepRequest))
                    else:
                        values["plan"] = plans.plan(session, service.settings, chosen.body(PlanRequest))
                    values |= {"command": chosen.command(), "part": values["sweep"] or values["plan"]}
                    values["bodies"] = chosen.bodies()
                    if planned := values["plan"]:
                        values["chart"] = plan_chart(planned, payer.balance.left_fraction)
                except (errors.ObscuraError, PrivacyError) as error:
                    wrong, message = forms.problems_of(error)
                trials = len(values["sweep"].trials) if values["sweep"] else 1
                values["steps"] = plans.slider_steps(session, payer.id, trials)
    tried = [line.partition("=")[::2] for line in chosen.grids]
    places = {option: f"values-{number}" for number, (option, _) in enumerate(tried, start=1)}
    places["trials"] = places.pop(texts.EPSILON, "grids")  # for a trial, the schema validates only epsilon
    recipe = RECIPES.get(chosen.recipe)
    return pages.page(
        request,
        "_price.html" if price_alone else "train.html",
        status_code=422 if message else 200,
        chosen=chosen,
        datasets=names,
        recipes=RECIPES,
        recipe=None if recipe is None else plans.describe_recipe(recipe),
        **chosen.parts(),
        tried=[*tried, *[("", "")] * (GRIDS_SHOWN - len(tried))],
        in_words=wording.values_in_words,
        wrong={places.get(name, name): fault for name, fault in wrong.items()},
        message=message,
        part_confirmed=PART_CONFIRMED,
        **values,
    )


for _kind in jobs.KINDS.values():
    if (_place := _kind.reading) is not None and _place.image:
        _path = f"{_place.path.removeprefix('/v1')}/{{made_id}}/{_place.image}.png"
        router.get(_path)(image_endpoint(_kind, _place, "made_id"))


def _names(session: Session, chosen: str) -> dict[str, str]:
    private = Dataset.state == DatasetState.READY, Dataset.visibility == Visibility.PRIVATE
    ready = visible(session, Dataset, select(Dataset.id, Dataset.name)).where(*private)
    newest = session.execute(ready.order_by(Dataset.created_at.desc()).limit(CHOICES_MAX)).all()
    names = {row.id: row.name for row in newest}
    if chosen and chosen not in names:
        row = find(session, Dataset, chosen)
        if row.visibility is not Visibility.PRIVATE:
            raise errors.NotFound("There is no such private dataset.")
        names = {row.id: row.name, **names}
    return names


@router.get("/jobs")
def job_list(request: Request, service: Running, filters: forms.Filtered) -> HTMLResponse:
    now = service.clock()
    first = filters.before is None
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Job, ("state", "account", "recipe"))
        sweep_rows = sweeps.newest_rows(session) if first and not narrowed else []
        listed, older_than = views.page(session, now, *narrowed, limit=JOBS_A_PAGE, before=filters.before)
        values = filters.template_values(session, "/jobs")
    values |= {"states": forms.STATES[Job], "recipe_choices": forms.RECIPE_CHOICES}
    return pages.page(request, "jobs.html", **values, jobs=listed, sweeps=sweep_rows, older_than=older_than)


@router.get("/jobs/{job_id}")
@router.get("/jobs/{job_id}/part")
def job(request: Request, service: Running, job_id: str) -> HTMLResponse:
    """Show a job. For the page's script, show only the part that the script refreshes."""
    with transaction(service.factory, read_only=True) as session:
        view = views.view(session, job_id, service.clock())
    template = "_job.html" if request.scope["path"].endswith("/part") else "job.html"
    return pages.page(request, template, view=view, plan=view.row.plan or {})


@router.get("/jobs/{job_id}/events")
def follow_job(request: Request, service: Running, viewer: Reader, job_id: str) -> Response:
    """Stream events to the page's script, like the API."""

    cookie = request.cookies.get(cookie_name(request), "")

    def may_read(session: Session) -> bool:
        try:
            return viewer.principal is None or find_session(session, cookie, now=service.clock()) is not None
        except errors.Unauthorized:  # the provider no longer confirms the person, or does not respond
            return False

    return stream_events(service, viewer.principal, job_id, may_read, request.headers.get("last-event-id"))


@router.get("/sweeps/{sweep_id}")
@router.get("/sweeps/{sweep_id}/part")
def sweep(request: Request, service: Running, sweep_id: str) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        view = sweeps.view(session, sweep_id, service.clock())
    points = [
        Point(trial.epsilon, accuracy, trial.epsilon, trial.job_id == view.sweep.best_job_id)
        for trial in view.sweep.trials
        if (accuracy := trial.compared_by) is not None
    ]
    template = "_sweep.html" if request.scope["path"].endswith("/part") else "sweep.html"
    has_images = RECIPES[view.sweep.recipe].publishes == "generator"
    return pages.page(request, template, view=view, has_images=has_images, chart=accuracy_chart(points, view.classes))
