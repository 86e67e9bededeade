"""The web application: it assembles the routes, middleware, dashboard and background threads of one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from obscura.extras import MissingExtra, extras
from obscura.private_files import make_private_folder, make_tree_private
from service import dashboard, installation, queue
from service.api import middleware, problems
from service.api.auditing import Audit, EventWriter, LogLimits
from service.api.deps import Service, refuse_the_unknown
from service.api.events import StreamLimits
from service.api.rates import Rates, WrongKeys, limiter_of
from service.api.routes import routers
from service.api.routes.health import VERSION
from service.api.slots import Slots
from service.api.uploading import UploadLimits
from service.audit.signing import SigningKeyUnusable, make_signing_key
from service.background import Background
from service.datasets import deletion, fingerprints, receiving, states, vault, withdrawal
from service.db.schema import upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction, with_info
from service.dependencies import Dependencies, WebRequests
from service.disk import DiskProbe
from service.errors import DatabaseUnsuitable, InvalidInput
from service.identity import admins
from service.identity.access import PEOPLE_DECIDE
from service.identity.auth import KeyUses
from service.identity.recording import recorded
from service.inspection import inspect_at_start, require_clock
from service.logs import get_logger
from service.metrics import Metrics
from service.settings import Settings
from service.storage.interface import StorageUnavailable
from service.webhooks.delivering import Deliveries
from service.webhooks.sending import Sender
from workers.supervise.dispatch import Dispatcher
from workers.supervise.reconcile import Reconciler

POOL_SIZE = 20  # as many again may be opened: one for each worker thread of the server


def utc_now() -> datetime:
    """The time, aware."""
    return datetime.now(UTC)


def operation_id(route: APIRoute) -> str:
    """Return an operation's id, such as `accounts.close` or `releases.list_shares`: its tag, then what it does."""
    tag = str(route.tags[0]) if route.tags else "pages"
    return f"{tag}.{'_'.join(word for word in route.name.split('_') if word not in (tag, tag.removesuffix('s')))}"


def create_app(
    settings: Settings,
    *,
    clock: Callable[[], datetime] = utc_now,
    stream_limits: StreamLimits = StreamLimits(),
    upload_limits: UploadLimits = UploadLimits(),
    gate_limits: middleware.GateLimits = middleware.GateLimits(),
    log_limits: LogLimits = LogLimits(),
    send: queue.Send | None = None,
) -> FastAPI:
    """Build the application. Nothing is opened or started before its lifespan begins.

    Args:
        send: notifies remote workers; None uses the broker of the settings.
    """
    app = FastAPI(
        title="Obscura",
        version=VERSION,
        summary="Private synthetic images behind a budget that cannot be overspent.",
        description=(
            "Upload images once, set a privacy budget, train a generator under differential privacy, and sample it "
            "as often as you like. Errors are RFC 9457 problem documents; lists are pages with cursors."
        ),
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these pages load third-party scripts; ours is at /reference
        redoc_url=None,
        lifespan=_lifespan,
        generate_unique_id_function=operation_id,
    )
    engine = make_engine(settings.database_url, pool_size=POOL_SIZE)
    factory = make_session_factory(engine)
    events = None if settings.audit_log == "off" else EventWriter(factory, settings, clock, log_limits)
    factory = recorded(factory, settings.audit_log, clock)  # its own acts, such as creating the first admin
    provider, confirming = None, list[Background]()
    if settings.oidc_issuer:
        try:
            with extras("Signing in with a provider (OBSCURA_OIDC_ISSUER)"):
                from service.identity.people import Confirming
                from service.identity.provider import Provider
        except MissingExtra as error:
            raise InvalidInput(str(error)) from None
        provider = Provider(settings, clock)
        confirming = [Confirming(settings, factory, provider, clock)]
        factory = with_info(factory, **{PEOPLE_DECIDE: True})
    runs_jobs: Dispatcher | Reconciler
    if settings.mode == "embedded":
        runs_jobs = Dispatcher(settings, factory)
        doorbell = queue.Doorbell(factory, runs_jobs.send, clock)
    else:
        send = send or _broker(settings)
        runs_jobs = Reconciler(settings, factory, send=send, clock=clock)
        doorbell = queue.Doorbell(factory, send, clock)
    dependencies = Dependencies.of_one_process()
    key_uses, limiter = KeyUses(factory), limiter_of(settings)
    metrics = Metrics(factory, clock=clock, version=VERSION)
    app.state.settings = settings
    app.state.service = Service(
        settings=settings,
        engine=engine,
        factory=factory,
        streams=Slots(stream_limits),
        clock=clock,
        uploads=Slots(upload_limits),
        ring=doorbell.ring,
        key_uses=key_uses,
        disks=DiskProbe(settings),
        dependencies=dependencies,
        metrics=metrics,
        audit_trouble=events.trouble if events else lambda: "",
        wrong_keys=WrongKeys(limiter),
        rates=Rates(settings.requests_per_minute, limiter),
        provider=provider,
    )
    webhooks = Deliveries(factory, Sender(settings.webhooks_private), clock)
    app.state.parts = (*([events] if events else []), key_uses, webhooks, runs_jobs, doorbell, *confirming)
    app.state.prepared = False
    app.state.warning = None  # for the operator, in one sentence
    problems.install(app)
    for router in routers():
        app.include_router(router, dependencies=[Depends(refuse_the_unknown)])
    dashboard.mount(app)
    app.add_middleware(WebRequests, dependencies=dependencies)
    if events is not None:
        app.add_middleware(Audit, writer=events)
    app.add_middleware(middleware.Gate, limits=gate_limits, body_bytes_max=settings.body_bytes_max)
    app.add_middleware(middleware.CloseUnread)
    app.add_middleware(middleware.Traffic, count=metrics.count, logged=settings.access_log)
    app.add_middleware(middleware.CommonHeaders)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    parts: tuple[Background | Dispatcher, ...] = app.state.parts  # started in order, and stopped in reverse
    await run_sync(prepare, app)
    app.state.prepared = False  # a second start prepares again
    for part in parts:
        part.start()
    try:
        yield
    finally:
        service.stopping.set()
        for part in reversed(parts):
            await run_sync(part.stop)
        service.engine.dispose()


def prepare(app: FastAPI) -> None:
    """Prepare the data folder and the database once, unless a caller of the lifespan has done so.

    A caller that does gets the error itself; a server would log that its application did not start.

    Raises:
        ObscuraError, OSError, SQLAlchemyError: the service cannot start.
    """
    if app.state.prepared:
        return
    try:
        app.state.warning = _prepare(app.state.service)
    except (StorageUnavailable, DatabaseUnsuitable) as error:
        get_logger(__name__).error("operator_needed", code=error.code, message=error.message)
        raise
    app.state.prepared = True


def _prepare(service: Service) -> str | None:
    """Protect the data folder, upgrade the schema, verify the ledger, create the first admin key, and clean up.

    Irreversible steps come after the verification, and only if database and data folder belong together and there are
    no findings. Returns the warning of `inspect_at_start`.
    """
    settings, factory = service.settings, service.factory
    make_private_folder(settings.data_dir)
    open_to_others = sum(make_tree_private(folder) for folder in {settings.data_dir, settings.keys_path})
    if open_to_others:
        get_logger(__name__).warning("files_open_to_others", count=open_to_others)
    upgrade_schema(settings.database_url)
    require_clock(factory, now=service.clock())
    ours = installation.pair(settings, factory, now=service.clock())
    warning = inspect_at_start(settings, factory, now=service.clock())
    if not ours:
        return warning
    with transaction(factory) as session:
        states.check_keys(session, settings)
    with transaction(factory) as session:
        fingerprints.wait_for_others(session)  # of processes that start together, one creates what all need
        admins.bootstrap_admin(session, path=settings.admin_key_path, now=service.clock())
        try:
            make_signing_key(settings.ledger_key_path)  # workers and commands only read it
        except SigningKeyUnusable as error:
            get_logger(__name__).error("ledger_not_signed", reason=error.message)
    if warning is not None:
        return warning
    # Clean up after a crash, and destroy content that must not be readable.
    receiving.clean_up(settings, factory, now=service.clock())
    receiving.keep_journal(vault.Vault.of(settings), factory)
    with transaction(factory) as session:
        fingerprints.wait_for_others(session)
        if not fingerprints.any_recorded(session):
            vault.make_fingerprint_key(settings)
        to_shred = deletion.unfinished(session, settings)
    for dataset_id in to_shred:
        deletion.complete(settings, factory, dataset_id)
    withdrawal.recall(settings, factory, now=service.clock())
    return None


def _broker(settings: Settings) -> queue.Send:
    """Return what sends a Celery task by name; no worker code is imported."""
    from celery import Celery  # half a second that the embedded mode need not wait for

    app = Celery("obscura", broker=settings.redis_url, set_as_current=False)
    app.conf.update(task_serializer="json", broker_connection_timeout=2.0, broker_connection_retry=False)

    def send(name: str, args: Sequence[Any]) -> None:
        app.send_task(name, args=list(args), ignore_result=True, retry=False)

    return send
