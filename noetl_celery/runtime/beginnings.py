"""Before a row begins: the database confirms that its lane still holds it, and knows from then on that it has begun.

So what a crash makes run again is counted, not guessed, and a worker that has stood still begins nothing that is not
its own any more. One session per process, one short statement for all rows that begin together. It does not wait for
the disk: what a crash of PostgreSQL itself makes it forget is a count, never a row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import psycopg

from noetl_celery.errors import LeaseLost
from noetl_celery.session import Session
from noetl_celery.store import runs
from noetl_celery.store.db import Database, away, patiently


class Beginnings:
    """Notes of the lanes of a process. Safe to share between threads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._session: Session | None = None

    def begin(self, run_id: int, rows: Sequence[int], *, seconds: float) -> None:
        """From now on these rows of a run have begun; what it said before is replaced. The run's lease is whole again.

        Raises ``LeaseLost`` if the run is gone, and ``Unreachable`` if PostgreSQL is away for ``seconds``: then no row
        may begin. Idempotent.
        """

        def attempt() -> bool:
            with self._lock:
                try:
                    return runs.begin_rows(self._open(), run_id, rows)
                except psycopg.Error as error:
                    self._close()
                    raise away(error) from error

        if not patiently(seconds)(attempt):
            raise LeaseLost(f"run {run_id} lost its lease")

    def _open(self) -> Session:
        if self._session is None or self._session.closed:
            self._session = self._db.connect_raw("lanes")
            self._session.execute("SET synchronous_commit = off")  # may be lost as early as here
        return self._session

    def close(self) -> None:
        """Ends the session, if there is one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
