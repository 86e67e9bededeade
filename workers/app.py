"""The Celery application: the doorbell of a deployment with several machines. The database stays the queue of record.

`celery --app workers.app worker` finds `app` here; it is made from the environment when it is first asked for.
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
import weakref
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_init, worker_shutting_down
from sqlalchemy.exc import SQLAlchemyError

from service.db.session import make_engine, make_session_factory
from service.inspection import inspect_at_start
from service.logs import configure_logging, get_logger
from service.private_files import keep_new_files_private
from service.settings import Settings
from workers import tasks
from workers.reconcile import RECONCILE_SECONDS
from workers.tasks import Workplace


def make_app(settings: Settings) -> Celery:
    """Return the Celery application of a worker, with its tasks.

    Messages are acknowledged early and may be lost or repeated: the claim in the database decides who runs what.
    Nothing is ever terminated by Celery: `revoke(terminate=True)` would kill a supervisor and orphan its runner.
    """
    app = Celery("obscura", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=False,  # late acknowledgement would run a long training twice when Redis loses patience
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=settings.redis_url.startswith(("redis://", "rediss://")),
        worker_max_tasks_per_child=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3600},
        timezone="UTC",
        # For a worker started with --beat; without one, the API's reconciler does the same.
        beat_schedule={"reconcile": {"task": tasks.TASK_RECONCILE, "schedule": RECONCILE_SECONDS}},
    )
    # Made before Celery forks, so that the main process can tell its children that the worker shuts down.
    draining = multiprocessing.get_context("fork").Event()
    slot = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    weakref.finalize(app, slot.close)
    workplace = Workplace(settings, slot, draining=draining.is_set, send=functools.partial(_send, app))
    tasks.register(app, workplace)

    def drain(**_: Any) -> None:
        draining.set()

    def log(**_: Any) -> None:
        configure_logging(settings.log_level)

    def inspect(**_: Any) -> None:
        keep_new_files_private()
        engine = make_engine(settings.database_url, pool_size=1)
        try:
            inspect_at_start(settings, make_session_factory(engine), now=datetime.now(UTC))
        except SQLAlchemyError as error:  # without a database nothing is armed either
            get_logger(__name__).error("ledger_not_verified", error=type(error).__name__)
        finally:
            engine.dispose()

    worker_init.connect(inspect, weak=False)
    worker_shutting_down.connect(drain, weak=False)
    setup_logging.connect(log, weak=False)  # a receiver keeps Celery from setting up its own
    return app


def _send(app: Celery, name: str, arguments: Any) -> None:
    app.send_task(name, args=list(arguments), ignore_result=True, retry=False)


@functools.cache
def _app() -> Celery:
    return make_app(Settings())


def __getattr__(name: str) -> Any:
    if name == "app":  # what the celery command looks for
        return _app()
    raise AttributeError(name)
