"""Connections and transactions of the schema ``noetl``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.types.json import Json
from sqlalchemy.engine import Connection, Engine
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential, wait_random

from noetl_celery.errors import Unreachable
from noetl_celery.session import GRACE_SECONDS, Session
from noetl_celery.settings import Settings
from noetl_celery.store import partitions

T = TypeVar("T")

#: how long a transaction waits for PostgreSQL before it gives up, in seconds
PATIENCE_SECONDS = 60.0
CONNECT_SECONDS = 5
#: seconds that a caller waits for one of the pool's connections
POOL_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_READ_ONLY = "25006"
#: SQLSTATEs (and classes of them) that pass: the transaction is undone, and may be run again as it is
_PASSING = (
    "08",  # connections
    _READ_ONLY,  # a failover, or an operator's hand
    "25P03",  # too long idle in a transaction
    "25P04",  # transaction_timeout
    "40001",  # serialization
    "40003",  # unknown whether it was completed
    "40P01",  # deadlock
    "53",  # too many connections, out of memory, disk full
    "55P03",  # lock_timeout
    "57014",  # statement_timeout, or cancelled by hand
    "57P01",  # shutdown, fast or by pg_terminate_backend
    "57P02",  # crash
    "57P03",  # starting, or shutting down
    "57P05",  # idle for too long
)
#: those of them that say the server is not there
_AWAY = ("08", "53300", "57P0")
#: how soon each side notices that the other one is gone: within half a minute
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
_SERVER = {
    "search_path": "public",
    # a session that stands still inside a transaction gives up its locks after this
    "idle_in_transaction_session_timeout": "20s",
    **{name if name.startswith("tcp") else f"tcp_{name}": value for name, value in _KEEPALIVE.items()},
}


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
        engine = sa.create_engine(
            self._settings.sqlalchemy_url,
            pool_size=self._size,
            max_overflow=self._size,
            pool_timeout=POOL_SECONDS,
            hide_parameters=True,  # a statement that failed is told and logged; its values are not
            connect_args=connect_args(self._settings, "noetl-celery"),
        )
        limit = self._settings.statement_seconds + GRACE_SECONDS

        @sa.event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, args: Any, arguments: Any) -> Session:
            session = Session.connect(*args, **arguments)
            session.silence_seconds = limit
            return session

        return engine

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection of the pool. No server, or none left in the pool for too long: ``Unreachable``."""
        try:
            connection = self.engine.connect()
        except sa.exc.OperationalError as error:
            raise away(error) from error
        except sa.exc.TimeoutError as error:
            text = f"all database connections of this process ({2 * self._size}) are in use"
            raise Unreachable(text, hint="a larger NOETL_POOL_SIZE gives it more") from error
        with connection:
            yield connection

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back on an exception. No server: ``Unreachable``."""
        with self.connect() as connection, connection.begin():
            yield connection

    def run(self, work: Callable[[Connection], T], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Runs ``work`` in a transaction, again while what undoes it is passing: a deadlock, a lost connection, a
        server that is away or takes no writes.

        It is committed once: where the reply of a COMMIT was lost, the server is asked what became of it. ``work`` must
        be re-runnable all the same; what it changes outside the database has to be that of its last run. Gives up with
        ``Unreachable`` after ``patience_seconds``.
        """
        try:
            return patiently(patience_seconds)(_Once(self, work))
        except sa.exc.DBAPIError as error:
            raise away(error) if passing(error) else error from error

    def connect_raw(self, purpose: str = "pulse") -> Session:
        """A session of its own outside the pool, in autocommit mode, for whoever keeps it. ``Unreachable``.

        It counts as lost when the server says nothing for as long as a process may before it counts as dead.
        """
        arguments = connect_args(self._settings, f"noetl-celery {purpose}")
        try:
            session = Session.connect(self._settings.libpq_url, autocommit=True, **arguments)
        except psycopg.OperationalError as error:
            raise away(error) from error
        session.silence_seconds = self._settings.dead_after_seconds
        return session

    def close(self) -> None:
        """Closes this process's pool; it may be used again, and closed again."""
        with self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self._engine.dispose()
            self._engine = None


class _Once(Generic[T]):
    """A transaction that may be tried again and again, and is committed once."""

    def __init__(self, db: Database, work: Callable[[Connection], T]) -> None:
        self._db, self._work = db, work
        #: the transaction whose COMMIT was not answered, and what ``work`` returned in it
        self._unheard: tuple[str, T] | None = None

    def __call__(self) -> T:
        with self._db.connect() as connection:
            if self._unheard is not None:
                transaction, result = self._unheard
                if _committed(connection, transaction):
                    return result
                self._unheard = None
            try:
                return self._attempt(connection)
            except sa.exc.DBAPIError as error:
                if sqlstate(error) == _READ_ONLY:
                    connection.invalidate()  # the next one may lead to the server that takes writes now
                if not partitions.lacking(error):
                    raise
            # Nobody was there for weeks to make them.
            with connection.begin():
                partitions.make(connection)
            return self._attempt(connection)

    def _attempt(self, connection: Connection) -> T:
        with connection.begin() as transaction:
            result = self._work(connection)
            wrote = connection.exec_driver_sql("SELECT pg_current_xact_id_if_assigned()::text").scalar()
            try:
                transaction.commit()
            except sa.exc.DBAPIError as error:
                if wrote is not None and error.connection_invalidated:
                    self._unheard = (wrote, result)
                raise
        return result


def _committed(connection: Connection, transaction: str) -> bool:
    """What became of a transaction; a server that does not know it has not committed it. ``Unreachable`` while it is
    still being committed."""
    try:
        status = connection.exec_driver_sql("SELECT pg_xact_status(%s::xid8)", (transaction,)).scalar()
    except sa.exc.DBAPIError as error:
        if sqlstate(error) != "22023":  # from the future: the server that took over never saw it
            raise
        status = None
    connection.rollback()
    if status == "in progress":
        raise Unreachable("PostgreSQL is still busy with a COMMIT whose connection was lost")
    return bool(status == "committed")


def connect_args(settings: Settings, name: str) -> dict[str, Any]:
    """How every session of ours is made: soon given up by either side when the other one is gone, and with a limit to
    each statement that is our own, whatever the server's is."""
    server = {**_SERVER, "statement_timeout": int(settings.statement_seconds * 1000)}
    return {
        "application_name": name,
        "connect_timeout": CONNECT_SECONDS,
        **_KEEPALIVE,
        "options": " ".join(f"-c {setting}={value}" for setting, value in server.items()),
    }


def patiently(seconds: float) -> Retrying:
    """Calls again, with growing pauses, what fails for a passing reason; after ``seconds`` the last one is raised."""
    return Retrying(
        retry=retry_if_exception(passing),
        # apart from each other, so that those who were in each other's way do not meet again
        wait=wait_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE) + wait_random(0, _FIRST_PAUSE),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


def passing(error: BaseException) -> bool:
    """Is it worth while to wait, and do the same again?"""
    if isinstance(error, Unreachable):
        return True
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    return error.connection_invalidated or (sqlstate(error) or "").startswith(_PASSING)


def sqlstate(error: sa.exc.DBAPIError) -> str | None:
    """The server's code for what went wrong; None if the connection was lost without a word."""
    return getattr(error.orig, "sqlstate", None)


def away(error: Exception) -> Unreachable:
    """The one message for a server that does not do its work; it never shows the URL with its password."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    state = getattr(cause, "sqlstate", None)
    if state is None or state.startswith(_AWAY):
        hint = "check NOETL_DATABASE_URL and that the server runs"
        return Unreachable(f"PostgreSQL is not reachable: {first_line(cause)}", hint=hint)
    return Unreachable(f"PostgreSQL does not go on: {first_line(cause)}", hint="look at the server; then try again")


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
