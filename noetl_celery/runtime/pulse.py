"""The thread that keeps a process's leases: one session of its own, one statement a beat.

Its session holds the advisory lock that says "this process is alive" (``store.workers``). A run that the database
no longer grants is marked lost, and its lane stops by itself; fencing would undo its writes anyway.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from noetl_celery.errors import ServiceError
from noetl_celery.store import runs, workers
from noetl_celery.store.db import Database, first_line

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    interval: float
    lost: Callable[[], None]


class Pulse:
    """Holds runs for lanes. ``hold`` and ``drop`` are called by lanes, from any thread."""

    def __init__(self, db: Database, worker_id: int, interval: float, name: str = "worker") -> None:
        self._db, self._worker_id, self._interval, self._name = db, worker_id, interval, name
        self._held: dict[int, _Held] = {}
        self._forfeited: set[int] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._session: psycopg.Connection[Any] | None = None
        self._locked = False
        self._since: float | None = None
        #: on the monotonic clock: the next beat, unless somebody needs it sooner
        self._next = 0.0
        self._ready = threading.Event()

    def start(self) -> None:
        """Starts the thread and waits a moment for its session, so that a first lane finds its process registered."""
        self._thread = threading.Thread(target=self._beat_forever, name="noetl-pulse", daemon=True)
        self._thread.start()
        self._ready.wait(timeout=5)

    def steady(self, seconds: float) -> bool:
        """Has this process been connected for so long without a break? One that has no pulse has nothing to lose.

        After PostgreSQL was away all processes look dead for a moment: their sessions are gone, their leases old.
        Whoever comes back first must give the others the time to come back as well.
        """
        since = self._since
        return self._thread is None or (since is not None and time.monotonic() - since >= seconds)

    def stop(self) -> None:
        """Ends the thread; the process leaves in order."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def hold(self, run_id: int, *, lease: float, heartbeat: float, lost: Callable[[], None]) -> None:
        """From now on this run's lease is extended; ``lost`` is called (once, from the pulse) when it is gone."""
        interval = min(lease / 3, heartbeat)
        with self._lock:
            self._held[run_id] = _Held(interval, lost)
            soon = time.monotonic() + interval >= self._next
        if not soon:
            self._wake.set()

    def drop(self, run_id: int) -> None:
        """The run is over."""
        with self._lock:
            self._held.pop(run_id, None)

    def forfeit(self, run_id: int) -> None:
        """Nothing is done for this run any more, though it may hold work: its lease is over as soon as the database
        can be told, so that nobody waits for the end of it."""
        with self._lock:
            self._held.pop(run_id, None)
            self._forfeited.add(run_id)
        self._wake.set()

    def _beat_forever(self) -> None:
        away = False
        while not self._stopped:
            try:
                self._beat()
                pause = self._pause()
                if away:
                    log.warning("PostgreSQL is back")
                away = False
            except Exception as error:  # whatever it is: without a pulse this process would lose all its runs
                if not away:
                    unknown = not isinstance(error, psycopg.Error | ServiceError)
                    text = "the pulse has lost PostgreSQL and tries again until it is back: %s"
                    log.warning(text, first_line(error), exc_info=unknown)
                away = True
                self._close()
                pause = _RETRY_SECONDS
            self._wake.wait(timeout=pause)
            self._wake.clear()
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                workers.leave(self._session, self._worker_id)
            self._close()

    def _pause(self) -> float:
        with self._lock:
            pause = min([self._interval, *(held.interval for held in self._held.values())])
            self._next = time.monotonic() + pause
            return pause

    def _beat(self) -> None:
        if self._session is None or self._session.closed:
            self._session = self._db.connect_raw()
            self._locked = workers.register(self._session, self._worker_id, self._name)
            self._since = time.monotonic()
            self._ready.set()
        elif not self._locked:
            self._locked = workers.lock(self._session, self._worker_id)
        workers.seen(self._session, self._worker_id)
        with self._lock:
            mine, forfeited = dict(self._held), list(self._forfeited)
        if forfeited:
            runs.forfeit(self._session, forfeited)
            with self._lock:
                self._forfeited.difference_update(forfeited)
        if not mine:
            return
        held, due = runs.extend(self._session, list(mine))
        if due:
            runs.beat(self._session, due)
        for run_id in mine.keys() - held:
            with self._lock:
                still_mine = self._held.pop(run_id, None)
            if still_mine is not None:
                log.warning("run %s lost its lease", run_id)
                still_mine.lost()

    def _close(self) -> None:
        self._since = None
        if self._session is not None:
            self._session.close()
        self._session = None
