"""Accept new jobs and sweeps, and build the routes that each kind's `order` and `reading` describe."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session, undefer
from sqlalchemy.orm.interfaces import ORMOption

from obscura.wire.job_schemas import FINAL_STATES
from obscura.wire.schemas import Identifier
from privacy.plans.registry import plan_from_json
from service import jobs
from service.api.answers import ApiRoute, with_etag
from service.api.deps import READ, VIEW, IdempotencyKey, ReleaseId, Running, Service, Trainer
from service.api.middleware import LARGE_BODY_BYTES_MAX, body_limit
from service.api.problems import JobNotSucceeded, Pending
from service.db.job_tables import Job
from service.db.session import transaction
from service.errors import NotFound, ObscuraError
from service.failpoints import failpoint
from service.identity.access import find
from service.jobs.kind import Kind, Order, Reading
from service.jobs.planning import plan_on, training_set
from service.views import jobs as views
from service.views import plans, with_job


@contextmanager
def accepting(service: Service, *plans: Mapping[str, Any]) -> Iterator[Session]:
    """Open the transaction that accepts new jobs, and notify workers after it.

    Planning may take a second and is cached, so it runs first, outside the writing transaction. Its errors are ignored
    here: they occur again in the transaction, with the right message.
    """
    with transaction(service.factory, read_only=True) as session, suppress(ObscuraError):
        for plan in plans:
            asked = (plan[name] for name in ("recipe", "epsilon", "options"))
            plan_on(session, training_set(session, plan["dataset_id"]), *asked)
    with transaction(service.factory) as session:
        yield session
        failpoint("accept.before")
    failpoint("accept.after")
    service.ring()


def require_extractors(service: Service, *planned: Job) -> None:
    """Raise InvalidInput unless the operator has installed every extractor that the jobs need."""
    for job in planned:
        if job.plan:
            plans.require_extractor(service.settings, plan_from_json(job.plan))


@cache  # building the routes is the slowest part of creating an application
def router_of(kinds: tuple[Kind, ...]) -> APIRouter:
    """Return the routes of kinds of jobs."""
    made = APIRouter(route_class=ApiRoute)
    for kind in kinds:
        if kind.order is not None:
            _add_order(made, kind, kind.order)
        if kind.reading is not None:
            _add_reading(made, kind, kind.reading)
    return made


def image_endpoint(kind: Kind, place: Reading, alias: str) -> Callable[..., Response]:
    """Return an endpoint that sends the image of a job's result. `alias` is the path parameter of the result's id."""
    noun = kind.noun
    MadeId = Annotated[Identifier, Path(alias=alias, description=f"The {noun}.")]

    def send_image(service: Running, request: Request, made_id: MadeId) -> Response:
        with transaction(service.factory, read_only=True) as session:
            made, job = _find(session, kind, made_id, undefer(getattr(kind.makes, place.image)))
            image, ended = getattr(made, place.image), made.finished_at is not None
        name = f"{noun.capitalize()} {made_id}"
        if image is None and job.state.value not in FINAL_STATES:
            raise Pending(f"{name} is {job.state.value}. Retry soon, or follow job {job.id}.")
        if image is None and ended:
            raise NotFound(f"A {noun} of a classifier has no image.", **{f"{noun}_id": made_id})
        if image is None:
            raise JobNotSucceeded(f"{name} has no image: its job is in state {job.state.value}. Request a new {noun}.")
        return with_etag(request, Response(image, media_type="image/png"))

    return send_image


def _add_order(router: APIRouter, kind: Kind, asked: Order) -> None:
    def create(service: Running, principal: Trainer, response: Response, key: IdempotencyKey, body: Any) -> Any:
        return ordered(service, principal.id, response, key, body.model_dump())

    def create_of_release(
        service: Running, principal: Trainer, response: Response, release_id: ReleaseId, key: IdempotencyKey, body: Any
    ) -> Any:
        return ordered(service, principal.id, response, key, body.model_dump() | {"release_id": release_id})

    def ordered(service: Service, by: str, response: Response, key: str, fields: dict[str, Any]) -> Any:
        order = {"principal": by, "idempotency_key": key, "samples_max": service.settings.samples_max, **fields}
        with accepting(service, *([fields] if kind.planned else [])) as session:
            job = jobs.submit(session, kind, now=service.clock(), **order)
            require_extractors(service, job)
            record: Any = views.made(session, job)
        job_id = record.id if kind.makes is None else record.job_id
        place = f"/v1/jobs/{job_id}" if kind.reading is None else f"{kind.reading.path}/{record.id}"
        response.headers["Location"] = place
        return record

    endpoint = create_of_release if "{release_id}" in asked.path else create
    endpoint.__annotations__["body"] = asked.request
    facts: dict[str, Any] = {"response_model": kind.record, "summary": asked.summary, "description": asked.description}
    add = router.post(asked.path, name=f"create_{kind.noun}", status_code=202, tags=[asked.tag], **facts)
    add(body_limit(LARGE_BODY_BYTES_MAX)(endpoint))


def _add_reading(router: APIRouter, kind: Kind, place: Reading) -> None:
    common: dict[str, Any] = {"dependencies": [{"read": READ, "releases": VIEW}[place.scope]], "tags": [place.tag]}
    noun, made_at = kind.noun, f"{place.path}/{{{kind.noun}_id}}"
    MadeId = Annotated[Identifier, Path(alias=f"{noun}_id", description=f"The {noun}.")]

    def read(service: Running, response: Response, made_id: MadeId) -> Any:
        with transaction(service.factory, read_only=True) as session:
            record: Any = views.made(session, _find(session, kind, made_id)[1])
        if record.state not in FINAL_STATES:
            response.headers["Retry-After"] = "2"
        return record

    facts = common | {"summary": f"Read a {noun}", "description": place.description}
    router.get(made_at, name=f"read_{noun}", response_model=kind.record, **facts)(read)
    if place.image:
        found: dict[int, Any] = {200: {"content": {"image/png": {}}}, 304: {"description": "Unchanged."}}
        found[409] = {"description": f"Pending (with Retry-After), or the {noun} failed."}
        facts = common | {"responses": found, "description": place.image_description}
        address, name = f"{made_at}/{place.image}.png", f"read_{noun}_{place.image}"
        router.get(address, name=name, response_class=Response, **facts)(image_endpoint(kind, place, f"{noun}_id"))


def _find(session: Session, kind: Kind, made_id: str, *options: ORMOption) -> tuple[Any, Job]:
    assert kind.makes is not None
    made: Any = find(session, kind.makes, made_id, options=[with_job(kind.makes), *options])
    return made, made.job
