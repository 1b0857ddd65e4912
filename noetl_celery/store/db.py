"""Connections and transactions of the schema ``noetl``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.types.json import Json
from sqlalchemy.engine import Connection, Engine
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from noetl_celery.errors import Unreachable
from noetl_celery.settings import Settings

T = TypeVar("T")

#: serialization failure, deadlock: the transaction is to be run again as it is
_RETRY_STATES = frozenset({"40001", "40P01"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: a session that stands still inside a transaction gives up its locks after this
_IDLE_IN_TRANSACTION = "20s"


class Database:
    """One pool per process, opened when first used after a fork. Safe to share between threads."""

    def __init__(self, settings: Settings, *, pool_size: int | None = None) -> None:
        self._settings = settings
        self._size = pool_size or settings.pool_size
        self._engine: Engine | None = None
        self._pid = 0
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                # An engine of the parent is left alone: closing it here would end the parent's sessions.
                self._engine, self._pid = self._create(), os.getpid()
            return self._engine

    def _create(self) -> Engine:
        return sa.create_engine(
            self._settings.sqlalchemy_url,
            pool_size=self._size,
            max_overflow=self._size,
            pool_timeout=30,
            connect_args={
                "application_name": "noetl-celery",
                "connect_timeout": 5,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "options": f"-c search_path=public -c idle_in_transaction_session_timeout={_IDLE_IN_TRANSACTION}",
            },
        )

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back on an exception. No server: ``ServiceError``."""
        try:
            connection = self.engine.connect()
        except sa.exc.OperationalError as error:
            raise unreachable(error) from error
        with connection, connection.begin():
            yield connection

    def run(self, work: Callable[[Connection], T], *, patience_seconds: float = 60.0) -> T:
        """Runs ``work`` in a transaction, again after a deadlock, a serialization failure or a lost connection.

        ``work`` must be re-runnable: the reply of a COMMIT may be lost. Gives up with ``ServiceError`` when the
        server stays away for ``patience_seconds``.
        """

        def attempt() -> T:
            with self.begin() as connection:
                return work(connection)

        try:
            return patiently(patience_seconds)(attempt)
        except sa.exc.DBAPIError as error:
            raise unreachable(error) if _passing(error) else error from error

    def connect_raw(self) -> psycopg.Connection[Any]:
        """A session of its own outside the pool, in autocommit mode, for a thread that keeps it. ``Unreachable``."""
        try:
            return psycopg.connect(
                self._settings.libpq_url,
                autocommit=True,
                connect_timeout=5,
                application_name="noetl-celery pulse",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
        except psycopg.OperationalError as error:
            raise unreachable(error) from error

    def close(self) -> None:
        """Closes this process's pool; it may be used again, and closed again."""
        with self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self._engine.dispose()
            self._engine = None


def patiently(seconds: float) -> Retrying:
    """Calls again, with growing pauses, what fails for a passing reason; after ``seconds`` the last one is raised."""
    return Retrying(
        retry=retry_if_exception(_passing),
        wait=wait_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


def _passing(error: BaseException) -> bool:
    if isinstance(error, Unreachable):
        return True
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or state in _RETRY_STATES or (state or "").startswith(("08", "57P"))


def unreachable(error: Exception) -> Unreachable:
    """The one message for a server that does not answer; it never shows the URL with its password."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    return Unreachable(
        f"PostgreSQL is not reachable: {first_line(cause)}", hint="check NOETL_DATABASE_URL and that the server runs"
    )


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def execute(connection: Connection, sql: str, **values: Any) -> sa.CursorResult[Any]:
    """Runs hot SQL text with psycopg's own ``%(name)s`` parameters in the caller's transaction."""
    return connection.exec_driver_sql(sql, values)


def one(connection: Connection, sql: str, **values: Any) -> Mapping[str, Any] | None:
    """The first row as a mapping, or None."""
    row = execute(connection, sql, **values).mappings().first()
    return dict(row) if row is not None else None


def every(connection: Connection, sql: str, **values: Any) -> list[dict[str, Any]]:
    """All rows as mappings."""
    return [dict(row) for row in execute(connection, sql, **values).mappings()]


def json_value(value: Any) -> Json | None:
    """A JSON parameter; None becomes SQL NULL."""
    return None if value is None else Json(value)
