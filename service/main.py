"""Assemble the web application: routes, middleware, dashboard and background threads of one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from obscura.extras import MissingExtra, extras
from obscura.private_files import make_private_folder, make_tree_private
from service import background, dashboard, dependencies, disk, inspection, installation, logs, metrics, queue
from service.api import auditing, deps, events, limits, middleware, problems, routes, uploading
from service.audit import signing
from service.datasets import deletion, fingerprints, receiving, states, vault, withdrawal
from service.db.schema import upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction, with_info
from service.errors import DatabaseUnsuitable, InvalidInput
from service.identity import access, admins, auth, recording
from service.settings import Settings
from service.storage.interface import StorageUnavailable
from service.webhooks import delivering, sending
from workers.supervise import dispatch, reconcile

POOL_SIZE = 20  # up to twice as many may be open: one per worker thread of the server


def utc_now() -> datetime:
    """Return the current time, timezone-aware."""
    return datetime.now(UTC)


def operation_id(route: APIRoute) -> str:
    """Return an operation's id, such as `accounts.close` or `releases.list_shares`: its tag and its action."""
    tag = str(route.tags[0]) if route.tags else "pages"
    return f"{tag}.{'_'.join(word for word in route.name.split('_') if word not in (tag, tag.removesuffix('s')))}"


def create_app(
    settings: Settings,
    *,
    clock: Callable[[], datetime] = utc_now,
    stream_limits: events.StreamLimits = events.StreamLimits(),
    upload_limits: uploading.UploadLimits = uploading.UploadLimits(),
    gate_limits: middleware.GateLimits = middleware.GateLimits(),
    log_limits: auditing.LogLimits = auditing.LogLimits(),
    send: queue.Send | None = None,
) -> FastAPI:
    """Build the application. Its lifespan opens and starts everything.

    `send` notifies remote workers; None uses the broker of the settings.
    """
    app = FastAPI(
        title="Obscura",
        version=routes.health.VERSION,
        summary="Private synthetic images behind a budget that cannot be overspent.",
        description=(
            "Upload images once, set a privacy budget, train a generator under differential privacy, and sample it "
            "as often as you like. Errors are RFC 9457 problem documents; lists are pages with cursors."
        ),
        openapi_url="/v1/openapi.json",
        docs_url=None,  # FastAPI's pages load third-party scripts; ours is at /reference
        redoc_url=None,
        lifespan=_lifespan,
        generate_unique_id_function=operation_id,
    )
    engine = make_engine(settings.database_url, pool_size=POOL_SIZE)
    factory = make_session_factory(engine)
    writer = None if settings.audit_log == "off" else auditing.EventWriter(factory, settings, clock, log_limits)
    factory = recording.recorded(factory, settings.audit_log, clock)  # for own acts, such as creating the first admin
    sign_on, confirming = None, list[background.Background]()
    if settings.oidc_issuer:
        try:
            with extras("Signing in with a provider (OBSCURA_OIDC_ISSUER)"):
                from service.identity import people
                from service.identity.provider import Provider
        except MissingExtra as error:
            raise InvalidInput(str(error)) from None
        sign_on = Provider(settings, clock)
        confirming = [people.Confirming(settings, factory, sign_on, clock)]
        factory = with_info(factory, **{access.PEOPLE_DECIDE: True})
    runs_jobs: dispatch.Dispatcher | reconcile.Reconciler
    if settings.mode == "embedded":
        runs_jobs = dispatch.Dispatcher(settings, factory)
        send = runs_jobs.send
    else:
        send = send or _broker(settings)
        runs_jobs = reconcile.Reconciler(settings, factory, send=send, clock=clock)
    doorbell = queue.Doorbell(factory, send, clock)
    limiter = limits.limiter_of(settings)
    app.state.settings = settings
    app.state.service = service = deps.Service(
        settings=settings,
        engine=engine,
        factory=factory,
        streams=limits.Slots(stream_limits),
        clock=clock,
        uploads=limits.Slots(upload_limits),
        ring=doorbell.ring,
        key_uses=auth.KeyUses(factory),
        disks=disk.DiskProbe(settings),
        dependencies=dependencies.Dependencies(),
        metrics=metrics.Metrics(factory, clock=clock, version=routes.health.VERSION),
        audit_trouble=writer.trouble if writer else lambda: "",
        wrong_keys=limits.WrongKeys(limiter),
        rates=limits.Rates(settings.requests_per_minute, limiter),
        provider=sign_on,
    )
    webhooks = delivering.Deliveries(factory, sending.Sender(settings.webhooks_private), clock)
    app.state.parts = (*([writer] if writer else []), service.key_uses, webhooks, runs_jobs, doorbell, *confirming)
    app.state.prepared = False
    app.state.warning = None  # one sentence for the operator
    problems.install(app)
    for router in routes.routers():
        app.include_router(router, dependencies=[Depends(deps.refuse_the_unknown)])
    dashboard.mount(app)
    app.add_middleware(dependencies.WebRequests, dependencies=service.dependencies)
    if writer is not None:
        app.add_middleware(auditing.Audit, writer=writer)
    app.add_middleware(middleware.Gate, limits=gate_limits, body_bytes_max=settings.body_bytes_max)
    app.add_middleware(middleware.Traffic, count=service.metrics.count, logged=settings.access_log)
    app.add_middleware(middleware.CommonHeaders)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: deps.Service = app.state.service
    # Started in order, and stopped in reverse.
    parts: tuple[background.Background | dispatch.Dispatcher, ...] = app.state.parts
    await run_sync(prepare, app)
    app.state.prepared = False  # so that a second start prepares again
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
    """Prepare the data folder and the database, once. The lifespan also calls this.

    Call it before the server starts to get the error itself: the server would only log that the start failed.

    Raises:
        ObscuraError, OSError, SQLAlchemyError: the service cannot start.
    """
    if app.state.prepared:
        return
    try:
        app.state.warning = _prepare(app.state.service)
    except (StorageUnavailable, DatabaseUnsuitable) as error:
        logs.get_logger(__name__).error("operator_needed", code=error.code, message=error.message)
        raise
    app.state.prepared = True


def _prepare(service: deps.Service) -> str | None:
    """Restrict access to the data folder, upgrade the schema, verify the ledger, create the first admin key, clean up.

    Irreversible steps follow the verification. They are skipped if it has findings, or if the database does not belong
    to the data folder. Return the warning of `inspect_at_start`.
    """
    settings, factory = service.settings, service.factory
    make_private_folder(settings.data_dir)
    open_to_others = sum(make_tree_private(folder) for folder in {settings.data_dir, settings.keys_path})
    if open_to_others:
        logs.get_logger(__name__).warning("files_open_to_others", count=open_to_others)
    upgrade_schema(settings.database_url)
    inspection.require_clock(factory, now=service.clock())
    ours = installation.pair(settings, factory, now=service.clock())
    warning = inspection.inspect_at_start(settings, factory, now=service.clock())
    if not ours:
        return warning
    with transaction(factory) as session:
        states.check_keys(session, settings)
    with transaction(factory) as session:
        fingerprints.wait_for_others(session)  # if processes start together, one creates the shared keys
        admins.bootstrap_admin(session, path=settings.admin_key_path, now=service.clock())
        try:
            signing.make_signing_key(settings.ledger_key_path)  # workers and commands only read it
        except signing.SigningKeyUnusable as error:
            logs.get_logger(__name__).error("ledger_not_signed", reason=error.message)
    if warning is not None:
        return warning
    # Clean up after a crash, and destroy content that must no longer be readable.
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
    """Return a function that sends a Celery task by name, without importing worker code."""
    from celery import Celery  # takes half a second, which the embedded mode does not need

    app = Celery("obscura", broker=settings.redis_url, set_as_current=False)
    app.conf.update(task_serializer="json", broker_connection_timeout=2.0, broker_connection_retry=False)
    return partial(app.send_task, ignore_result=True, retry=False)
