"""The Celery app: ``celery -A noetl_celery worker``, ``beat``, ``flower``.

Messages carry ids only, are acknowledged late, and are never requeued by Celery on a worker's loss: recovery is the
sweep's, and counted. Results serve chords alone and expire.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from celery import Celery, Task, platforms, signals
from celery.exceptions import WorkerShutdown
from celery.utils.log import current_process_index
from celery.worker import state
from kombu.entity import Exchange, Queue

from noetl_celery.errors import NoetlError, Unreachable
from noetl_celery.runtime import process as processes
from noetl_celery.runtime import watchdog
from noetl_celery.runtime.onward import run_on
from noetl_celery.runtime.publish import BODY, CLAIM, ORCHESTRATE, SWEEP, Publisher
from noetl_celery.runtime.sweep import Sweeper
from noetl_celery.runtime.sweep import sweep as run_sweep
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE, Settings, load
from noetl_celery.store.db import patiently
from noetl_celery.store.migrate import check
from noetl_celery.store.outbox import Dispatch
from noetl_celery.telemetry import logs, wanted, watch
from noetl_celery.telemetry.serving import Endpoint, serve_node
from noetl_celery.tools import http

log = logging.getLogger(__name__)

#: a worker may hold a message so long before Redis hands it out again. Recovery does not wait for it; it is measured
#: by the clocks of two workers: as long as those may be apart, messages would go round and round
VISIBILITY_SECONDS = 12 * 3600
RESULT_SECONDS = 3600
BACKEND = "noetl_celery.runtime.backend:ChordBackend"
CONSUMER = "noetl_celery.runtime.consumer:Consumer"
#: by scheme, and not as a part of the URL, whose password Celery and Flower could not hide then
BACKENDS = {"redis": BACKEND, "rediss": BACKEND}
#: a worker that starts before its database waits so long for it
START_PATIENCE_SECONDS = 60.0


def create(settings: Settings) -> Celery:
    """A Celery app on the settings' broker, with queues, routes and schedule; tasks are registered on it below."""
    app = Celery("noetl_celery", broker=settings.broker_url, backend=settings.result_url)
    app.loader.override_backends = BACKENDS
    transport = {
        "visibility_timeout": VISIBILITY_SECONDS,
        "socket_connect_timeout": 3,
        "socket_timeout": 10,
        "socket_keepalive": True,
        # Whoever publishes does not wait for a broker that is away: the sweep sends what could not be sent.
        "max_retries": 2,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.2,
    }
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        result_expires=RESULT_SECONDS,
        redis_socket_connect_timeout=transport["socket_connect_timeout"],
        redis_socket_timeout=transport["socket_timeout"],
        redis_socket_keepalive=transport["socket_keepalive"],
        result_backend_transport_options={**transport, "retry_policy": {"max_retries": 2, "interval_max": 0.2}},
        broker_transport_options=transport,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_publish_retry=False,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        task_track_started=False,
        task_default_queue=CONTROL_QUEUE,
        task_queues=[Queue(name, Exchange(name), routing_key=name) for name in (CONTROL_QUEUE, BODY_QUEUE)],
        task_create_missing_queues=True,
        task_routes={BODY: {"queue": BODY_QUEUE}, "noetl.*": {"queue": CONTROL_QUEUE}},
        worker_prefetch_multiplier=1,
        worker_consumer=CONSUMER,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        timezone="UTC",
        beat_schedule={
            "sweep": {"task": SWEEP, "schedule": settings.sweep_seconds, "options": {"expires": settings.sweep_seconds}}
        },
    )
    return app


app = create(load())
publisher = Publisher(app)


@app.task(name=ORCHESTRATE, throws=(NoetlError,), bind=True)
def orchestrate(self: Task[Any, Any], execution: int) -> None:
    """Decides what happens next in an execution; a worker for bodies goes on with it."""
    run_on(processes.current(), publisher, Dispatch("orchestrate", execution, queue=_body_queue(self)))


@app.task(name=CLAIM, throws=(NoetlError,), bind=True)
def claim(self: Task[Any, Any], execution: int, stage: int, claim: int) -> None:
    """Asks a cursor's source for a frame of rows."""
    run_on(processes.current(), publisher, Dispatch("claim", execution, stage, claim, queue=_body_queue(self)))


@app.task(name=BODY, ignore_result=False, bind=True)
def body(self: Task[Any, Any], execution: int, stage: int, frame: int, lane: int) -> None:
    """Works through rows of a frame, and goes on. Never raises: a failed chord member would silence the callback."""
    names = {"execution_id": execution, "frame_id": frame}
    try:
        message = Dispatch("lanes", execution, stage, frame, (lane,), _body_queue(self))
        run_on(processes.current(), publisher, message)
    except NoetlError as error:
        log.error("lane %s of frame %s: %s", lane, frame, error, extra=names)
    except Exception:
        log.exception("lane %s of frame %s failed; its rows are run again", lane, frame, extra=names)


@app.task(name=SWEEP, throws=(NoetlError,))
def sweep() -> None:
    """Looks for what was lost; beat may run it beside the workers' own timer."""
    run_sweep(processes.current(), publisher)


def _body_queue(task: Task[Any, Any]) -> str:
    """The queue of bodies that a message came from; empty if it is none of those."""
    queue = str((task.request.delivery_info or {}).get("routing_key", ""))
    return "" if queue == CONTROL_QUEUE else queue


_sweeper: Sweeper | None = None
#: the name of this node, and its own endpoint for Prometheus, if nobody else serves for it
_node = ""
_endpoint: Endpoint | None = None


def _start_process(slot: int | None = None) -> None:
    """``slot``: which one of the node's processes for bodies this is."""
    global _sweeper
    process = processes.current()
    watch.start(process.settings, _node if slot is None else f"{_node}-{slot}")
    _sweeper = Sweeper(process, publisher)
    _sweeper.start()


@signals.worker_init.connect
def _check_schema(**_: Any) -> None:
    """A worker that finds another schema version says so and stops; one that finds no PostgreSQL waits for it."""
    settings = load()
    try:
        try:
            check(settings)
        except Unreachable as error:
            print(f"noetl-celery: {error}; waiting for it", file=sys.stderr)
            patiently(START_PATIENCE_SECONDS)(check, settings)
    except NoetlError as error:
        print(f"noetl-celery: {error}", file=sys.stderr)
        raise WorkerShutdown(1) from error


@signals.worker_init.connect
def _warm(**_: Any) -> None:
    """What takes a while to load is there before the first row, and shared by all processes of the node."""
    http.certificates()


@signals.worker_init.connect
def _answering(**_: Any) -> None:
    """Nodes answer what `noetl-celery doctor` asks them."""
    from noetl_celery.runtime import panel  # noqa: F401 - registers its command


@signals.worker_init.connect
def _watched(sender: Any, **_: Any) -> None:
    """What this node's processes count can be asked for."""
    global _node, _endpoint
    _node = sender.hostname
    try:
        _endpoint = serve_node(load())
    except NoetlError as error:
        print(f"noetl-celery: {error}", file=sys.stderr)
        raise WorkerShutdown(1) from error


@signals.worker_process_init.connect
def _child_started(**_: Any) -> None:
    if _endpoint is not None:
        _endpoint.forget()
    _start_process(current_process_index())


@signals.worker_ready.connect
def _node_ready(sender: Any, **_: Any) -> None:
    global _kill_pool
    watchdog.watch(sender)
    if lacking := wanted.lacking():
        log.warning("there will be no traces: %s", lacking)
    _kill_pool = platforms.signals["SIGQUIT"]
    platforms.signals["SIGQUIT"] = _stop_now
    # With a thread pool the tasks run in this process; a prefork node's children start by themselves.
    if not sender.pool.__module__.endswith("prefork"):
        _start_process()


#: Celery's own answer to these is to kill its pool
HURRY = ("SIGINT", "SIGQUIT")
_kill_pool: Any = platforms.signals.default


@signals.worker_shutting_down.connect
def _stopping(**_: Any) -> None:
    """SIGTERM or SIGINT: rows at work may end. Whoever sends SIGINT or SIGQUIT now does not want to wait for them."""
    processes.announce_stop(load().grace_seconds)
    platforms.signals.update(dict.fromkeys(HURRY, _stop_now))


def _stop_now(*_: Any) -> None:
    """SIGQUIT, or a second SIGINT: rows at work are handed over at once. What comes next is for Celery: it kills."""
    processes.announce_stop(0)
    state.should_stop = state.should_stop or platforms.EX_OK
    platforms.signals.update(dict.fromkeys(HURRY, _kill_pool))


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def _stopped(**_: Any) -> None:
    if _sweeper is not None:
        _sweeper.stop()
    watch.stop()
    processes.close()
    if _endpoint is not None:
        _endpoint.close()
    if processes.rows_abandoned():
        logging.shutdown()
        os._exit(state.should_stop or platforms.EX_OK)  # Python itself would wait for their threads


@signals.setup_logging.connect
def _logging(loglevel: int | str | None = None, logfile: str | None = None, **_: Any) -> None:
    """Lines that say which execution, step, frame and row they are about."""
    settings = load()
    handler = logging.FileHandler(logfile) if logfile else logging.StreamHandler()
    handler.setFormatter(logs.formatter(settings))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(loglevel or settings.log_level)
    logging.captureWarnings(True)
    # They log what is sent and read, secrets that nobody knows as such among it.
    for noisy in ("httpx", "httpcore", "psycopg", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
