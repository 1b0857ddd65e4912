"""The sweep: everything that must happen although nobody sent a message for it.

It publishes what was not taken in time, wakes parked rows, returns the rows of runs that died, and settles claims
whose process died between two commits. Every step is safe to run by several processes at once; usually one does,
whoever finds the sweep's clock due.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from noetl_celery.errors import NoetlError, ServiceError
from noetl_celery.runtime.lanes import lane_again
from noetl_celery.runtime.process import Process, stop_announced
from noetl_celery.runtime.publish import Publisher
from noetl_celery.runtime.settle import settle_claims
from noetl_celery.store import crashes, outbox, partitions, prune, rows, runs, signals, workers
from noetl_celery.store.db import Connection, changed, execute
from noetl_celery.store.outbox import Dispatch
from noetl_celery.telemetry import logs, watch

log = logging.getLogger(__name__)

Run = Mapping[str, Any]
Frame = Mapping[str, Any]

#: rows handled by one statement of a sweep; the next sweep does the rest
BATCH = 500
FORGET_WORKERS_SECONDS = 3600.0
HOUSE_SECONDS = 3600.0
#: the mark in Redis is over after so many intervals of the sweep
MARK_SWEEPS = 10


def sweep(process: Process, publisher: Publisher) -> bool:
    """One sweep, if it is due. Returns whether it was this call's turn."""
    settings = process.settings
    if not process.db.run(lambda connection: _my_turn(connection, "sweep", settings.sweep_seconds)):
        return False
    for step in (_end_still_sessions, _wake, _return_crashed, settle_claims, _publish_late, _keep_house):
        try:
            with logs.apart():
                step(process, publisher)
        except NoetlError as error:
            log.warning("sweep: %s", error)
    process.db.run(lambda connection: workers.forget_dead(connection, after_seconds=FORGET_WORKERS_SECONDS))
    return True


def _my_turn(connection: Connection, name: str, interval: float) -> bool:
    """Is it due? Then the clock is moved on, and nobody else gets this turn."""
    execute(connection, "INSERT INTO noetl.sweep (name) VALUES (%(name)s) ON CONFLICT DO NOTHING", name=name)
    return bool(
        changed(
            connection,
            """
            UPDATE noetl.sweep SET due_at = clock_timestamp() + %(interval)s * interval '1 second'
            WHERE name IN (SELECT name FROM noetl.sweep WHERE name = %(name)s AND due_at <= clock_timestamp()
                           FOR UPDATE SKIP LOCKED)
            """,
            name=name,
            interval=interval,
        )
    )


def _end_still_sessions(process: Process, publisher: Publisher) -> None:
    """First of all: others may wait for their locks."""
    ended = process.db.read(workers.end_still_sessions)
    if ended:
        log.warning("%d sessions stood still with their locks, and were ended: is a process stopped?", ended)


def _keep_house(process: Process, publisher: Publisher) -> None:
    """Now and then: the next weeks of events have a place, and nobody is told of what is not there any more."""
    if process.db.run(lambda connection: _my_turn(connection, "house", HOUSE_SECONDS)):
        process.db.run(partitions.make)
        while process.db.run(lambda connection: prune.drop_strays(connection, limit=BATCH)):
            pass


def _publish_late(process: Process, publisher: Publisher) -> None:
    seconds = MARK_SWEEPS * process.settings.sweep_seconds
    kept = publisher.kept(seconds)
    if kept is None:
        return  # attempts that nobody can hear are not counted, or the next one would be minutes away
    if not kept:
        # Before the mark: whoever dies in between leaves none, and the next one begins again.
        process.db.run(_all_due)
        publisher.mark(seconds)
    if not _publish_due(process, publisher):
        process.db.run(_all_due)


def _publish_due(process: Process, publisher: Publisher) -> bool:
    """False if something could not be sent."""
    again = process.settings.republish_seconds
    late = process.db.run(lambda connection: outbox.due(connection, limit=BATCH, republish_seconds=again))
    unread = process.db.run(lambda connection: signals.unread(connection, limit=BATCH, republish_seconds=again))
    sent = publisher.dispatch(late) and all(map(publisher.orchestrate, unread))
    if sent:
        watch.republished(Counter([dispatch.kind for dispatch in late] + ["orchestrate"] * len(unread)))
    return sent


def _all_due(connection: Connection) -> None:
    messages = outbox.all_due(connection) + signals.all_due(connection)
    if messages:
        log.warning("Redis was away or has lost messages: %d are sent again", messages)


def _wake(process: Process, publisher: Publisher) -> None:
    for frame_id in process.db.read(lambda connection: rows.due(connection, limit=BATCH)):
        with _contained(f"parked rows of frame {frame_id}"):
            publisher.dispatch(process.db.run(partial(_wake_frame, process, frame_id)))


def _wake_frame(process: Process, frame_id: int, connection: Connection) -> list[Dispatch]:
    return [lane_again(process, connection, lane) for lane in rows.wake(connection, frame_id, limit=BATCH)]


def _return_crashed(process: Process, publisher: Publisher) -> None:
    dead_after = process.settings.dead_after_seconds
    if not process.pulse.steady(dead_after):
        return
    for run_id in process.db.read(lambda connection: runs.lost(connection, dead_after_seconds=dead_after, limit=BATCH)):
        with _contained(f"rows of run {run_id}"):
            died = process.db.run(partial(_return_run, process, run_id))
            if died is not None:
                _tell(publisher, *died)


def _return_run(
    process: Process, run_id: int, connection: Connection
) -> tuple[Run, Frame | None, list[Dispatch]] | None:
    """The run, if it was lost, the frame that it worked on, and the lane to start again."""
    settings = process.settings
    run = runs.expire(connection, run_id, dead_after_seconds=settings.dead_after_seconds)
    if run is None:
        return None
    if run["frame_id"] is None:
        return run, None, []
    frame = crashes.return_rows(
        connection, run, max_crashes=settings.max_crashes, republish_seconds=settings.republish_seconds
    )
    again = [lane_again(process, connection, frame)] if frame is not None and frame["open_rows"] else []
    return run, frame, again


def _tell(publisher: Publisher, run: Run, frame: Frame | None, dispatches: list[Dispatch]) -> None:
    names = {"execution_id": run["execution_id"], "frame_id": run["frame_id"]}
    log.warning("run %s of execution %s died; its rows are run again", run["run_id"], run["execution_id"], extra=names)
    watch.run_died("claim" if run["frame_id"] is None else "lane", frame)
    publisher.dispatch(dispatches)
    if run["frame_id"] is not None and not dispatches:
        publisher.orchestrate(run["execution_id"])


@contextmanager
def _contained(what: str) -> Iterator[None]:
    """Work that this process cannot do (it cannot read the playbook, say) holds up no other: it is logged, and left."""
    try:
        yield
    except ServiceError:
        raise
    except NoetlError as error:
        log.warning("sweep: %s wait for another process: %s", what, error)


class Sweeper:
    """The thread that calls :func:`sweep` in every worker process; the clock row decides who does the work."""

    def __init__(self, process: Process, publisher: Publisher) -> None:
        self._process, self._publisher = process, publisher
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="noetl-sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        self._try(lambda: self._process.db.run(partitions.make))
        while not self._stop.wait(self._process.settings.sweep_seconds):
            if stop_announced():
                return
            self._try(lambda: sweep(self._process, self._publisher))

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            # The next one tries again: a sweep has no state of its own.
            log.warning("sweep failed: %s", error, exc_info=not isinstance(error, NoetlError))
