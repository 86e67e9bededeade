"""What a training, or a search of several, is asked for: as a form has it, as the API's request, and as a command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import Field

from obscura.wire.grids import EPSILON, GridRefused, trials_of
from obscura.wire.sweep_schemas import SweepRequest
from obscura.wire.words import TRAIN
from privacy.plans.plan import Recipe
from privacy.plans.registry import RECIPES
from service import jobs
from service.dashboard.access import Running
from service.dashboard.forms import (
    Body,
    FieldsRefused,
    read_body,
    read_option_fields,
    read_options,
    write_options,
)
from service.db.job_tables import Job
from service.db.session import transaction
from service.errors import NotFound, ObscuraError

CHOICES_MAX = 50  # of a field
GRIDS_SHOWN = 3  # options of which a search may try several values, as the form has places for them
NAME_MAX = 100
FIRST_RECIPE = next(iter(RECIPES))  # they are in order of recommendation
Line = Annotated[str, Field(max_length=2000)]


@dataclass(frozen=True)
class Wish:
    """What a plan is asked for, as the form has it: texts."""

    dataset: str = ""
    recipe: str = FIRST_RECIPE
    epsilon: str = ""
    evaluation: str = ""
    options: str = ""
    grids: str = ""  # of a search, one `NAME=VALUE,VALUE` a line; empty for one training
    name: str = ""  # of a search

    @property
    def grid_lines(self) -> list[str]:
        """The options of which a search tries several values, each with them."""
        return self.grids.splitlines()

    @property
    def title(self) -> str:
        """Name of the search: its own, or else what it tries."""
        return self.name.strip() or "; ".join(self.grid_lines)[:NAME_MAX]


def asked(
    request: Request,
    dashboard: Running,
    dataset: Annotated[str, Query(max_length=64)] = "",
    recipe: Annotated[str, Query(max_length=100)] = FIRST_RECIPE,
    epsilon: Annotated[str, Query(max_length=30)] = "",
    evaluation: Annotated[str, Query(max_length=64)] = "",
    options: Annotated[str, Query(max_length=8000)] = "",
    shown: Annotated[str, Query(max_length=100, description="The recipe whose options had fields.")] = "",
    again: Annotated[str, Query(max_length=64, description="A training whose options are taken.")] = "",
    vary: Annotated[list[Line], Query(max_length=CHOICES_MAX, description="Options that a search tries.")] = [],  # noqa: B006
    values: Annotated[list[Line], Query(max_length=CHOICES_MAX, description="Of each, what is tried.")] = [],  # noqa: B006
    name: Annotated[str, Query(max_length=NAME_MAX, description="Of the search.")] = "",
) -> Wish:
    """Read what is asked for, or take it from another training."""
    if not again:
        if shown == recipe and recipe in RECIPES:
            fields = write_options(read_option_fields(RECIPES[recipe].options, request.query_params))
            options = "\n".join(filter(None, (options, fields)))
        elif shown:
            options, vary, values = "", [], []  # they are another recipe's
        grids = "\n".join(_grids(vary, values))
        return Wish(dataset, recipe, epsilon, evaluation, options, grids, name)
    with transaction(dashboard.factory, read_only=True) as session:
        job = jobs.get_job(session, again)
        if not jobs.KINDS[job.kind].planned:
            raise NotFound("There is no such training.")
        return wish_of(job)


def _grids(vary: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    for option, tried in zip_longest(vary, values, fillvalue=""):
        if option.strip() or tried.strip():
            yield " ".join(f"{option}={tried}".split())


def wish_of(job: Job) -> Wish:
    """Return what a job that carries out a plan was asked for."""
    return Wish(
        dataset=job.dataset_id or "",
        recipe=job.recipe,
        epsilon=f"{job.epsilon:g}" if job.epsilon is not None else "",
        evaluation=(job.evaluation_dataset_id or "") if job.kind == TRAIN else "",
        options=write_options(job.options),
    )


Wished = Annotated[Wish, Depends(asked)]


def wish_from(form: Mapping[str, str]) -> Wish:
    """Read what a form that acts asks for: what the page has written into it."""
    return Wish(**{name: form.get(name, "") for name in Wish.__dataclass_fields__})


def body_of(wish: Wish, schema: type[Body]) -> Body:
    """Return what is asked for as the API is asked for it."""
    fields: dict[str, Any] = {"dataset_id": wish.dataset, "recipe": wish.recipe, "epsilon": wish.epsilon}
    fields |= {"evaluation_dataset_id": wish.evaluation, "options": read_options(wish.options)}
    if schema is SweepRequest:
        fields |= {"name": wish.title, "trials": _trials(wish, fields["options"])}
    return read_body(schema, {name: value for name, value in fields.items() if name in schema.model_fields})


def at_their_places(wish: Wish, wrong: Mapping[str, str]) -> dict[str, str]:
    """Return refusals by the names of the form's fields: of an option that a search tries, where its values stand."""
    places = {line.partition("=")[0]: f"values-{number}" for number, line in enumerate(wish.grid_lines, start=1)}
    places["trials"] = places.pop(EPSILON, "grids")  # of a trial the request's schema looks at epsilon alone
    return {places.get(name, name): said for name, said in wrong.items()}


def _trials(wish: Wish, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return trials_of(wish.grid_lines, fixed)
    except GridRefused as error:
        place = "grids" if error.position is None else f"values-{error.position + 1}"
        raise FieldsRefused({place: str(error)}) from None


def tried(wish: Wish) -> list[tuple[str, str]]:
    """Return the options of which several values are tried, each with them, and empty places for more."""
    lines = [line.partition("=")[::2] for line in wish.grid_lines]
    return [*lines, *[("", "")] * (GRIDS_SHOWN - len(lines))]


def command_of(wish: Wish) -> str:
    """Write what is asked for as it is asked for from a terminal."""
    words = ["obscura", "sweep" if wish.grids else "train", wish.dataset]
    words += ["--recipe", wish.recipe, "--epsilon", wish.epsilon]
    for line in write_options(read_options(wish.options)).splitlines():
        words += ["--option", line.replace(" = ", "=", 1)]
    for line in wish.grid_lines:
        words += ["--grid", line]
    words += ["--name", wish.name.strip()] if wish.grids and wish.name.strip() else []
    words += ["--evaluate", wish.evaluation] if wish.evaluation else []
    return shlex.join([*words, "--wait"])


def parted(wish: Wish, recipe: Recipe | None) -> dict[str, Any]:
    """Return the options for which the form has fields, as texts, and the lines that it must show as they are."""
    try:
        options = read_options(wish.options)
    except ObscuraError:
        return {"given": {}, "other": wish.options}
    known = {} if recipe is None else recipe.options["properties"]
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    other = write_options({name: value for name, value in options.items() if name not in known})
    return {"given": {name: text for name, text in given.items() if name in known}, "other": other}
