"""News of executions: whoever waits for the end of one is told by PostgreSQL, and need not ask again and again.

A notification is a hint like a message: one that is lost (a pooler passes none on, the server was away) costs the time
until the next look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from noetl_celery.errors import ServiceError
from noetl_celery.session import Session
from noetl_celery.store.db import Connection, Database, execute

CHANNEL = "noetl_end"
#: seconds after which the thread looks whether anybody still waits, or tries again to reach the server
_PAUSE = 1.0


def tell_end(connection: Connection, execution_id: int) -> None:
    """Tells those who wait for this execution when the caller's transaction is committed; nobody waits for a child.

    Transactions that notify are committed one after the other, so this is for ends only.
    """
    execute(
        connection,
        """
        SELECT pg_notify(%(channel)s, execution_id::text) FROM noetl.execution
        WHERE execution_id = %(execution)s AND parent_execution_id IS NULL
        """,
        channel=CHANNEL,
        execution=execution_id,
    )


class News:
    """One session and one thread, however many wait; neither is there while nobody does. Safe between threads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._waiting: dict[int, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @contextmanager
    def of(self, execution_id: int) -> Iterator[Callable[[float], None]]:
        """Gives a function that waits until there is news of the execution, or so many seconds are over."""
        told = threading.Event()

        def wait(seconds: float) -> None:
            if told.wait(seconds):
                told.clear()

        with self._lock:
            self._waiting.setdefault(execution_id, set()).add(told)
            if self._thread is None:
                self._stopped.clear()
                self._thread = threading.Thread(target=self._hear, name="noetl-news", daemon=True)
                self._thread.start()
        try:
            yield wait
        finally:
            with self._lock:
                others = self._waiting[execution_id]
                others.discard(told)
                if not others:
                    del self._waiting[execution_id]

    def close(self) -> None:
        """Ends the thread soon."""
        self._stopped.set()

    def _hear(self) -> None:
        while not self._nobody_waits():
            try:
                with self._db.connect_raw("news") as session:
                    session.execute(f"LISTEN {CHANNEL}")
                    while self._listen(session):
                        pass
            except (ServiceError, psycopg.Error):
                self._stopped.wait(_PAUSE)

    def _listen(self, session: Session) -> bool:
        for notify in session.notifies(timeout=_PAUSE):
            with self._lock:
                for told in self._waiting.get(int(notify.payload), ()):
                    told.set()
        with self._lock:
            return bool(self._waiting) and not self._stopped.is_set()

    def _nobody_waits(self) -> bool:
        with self._lock:
            if self._waiting and not self._stopped.is_set():
                return False
            self._thread = None
            return True
