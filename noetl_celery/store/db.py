"""Connections and transactions of the schema ``noetl``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Json
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import PoolProxiedConnection, QueuePool
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential, wait_random

from noetl_celery.errors import Unreachable
from noetl_celery.session import GRACE_SECONDS, Session
from noetl_celery.settings import Settings
from noetl_celery.store import partitions

T = TypeVar("T")
#: what a store function is given: a connection of ours, mostly in a transaction of the caller
Connection = Session
#: what has been asked, and is answered when it is called: until then a batch goes on
Reply = Callable[[], T]
#: rows as mappings
Rows = list[dict[str, Any]]

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
#: a session that stands still inside a transaction gives up its locks after so many seconds
STILL_SECONDS = 20
POOL_SESSIONS = "noetl-celery store"
#: Our statements find what they want by an index, and are many: each is planned once for a session, and for tables that
#: grow from nothing. SQL of others is to be planned as usual (``cursors/postgres.py``).
_PLANS = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}
_SERVER = {
    **_PLANS,
    "search_path": "public",
    "idle_in_transaction_session_timeout": f"{STILL_SECONDS}s",
    **{name if name.startswith("tcp") else f"tcp_{name}": value for name, value in _KEEPALIVE.items()},
}


class Database:
    """One pool per process, opened when first used after a fork. Safe to share between threads."""

    def __init__(self, settings: Settings, *, pool_size: int | None = None) -> None:
        self._settings = settings
        self._size = pool_size or settings.pool_size
        self._pool: QueuePool | None = None
        self._pid = 0
        self._lock = threading.Lock()
        #: on the monotonic clock: a connection was lost then, so those that are older may be gone as well
        self._lost_at = 0.0

    def _open(self) -> QueuePool:
        with self._lock:
            if self._pool is None or self._pid != os.getpid():
                # A pool of the parent is left alone: closing it here would end the parent's sessions.
                self._pool, self._pid = self._create(), os.getpid()
            return self._pool

    def _create(self) -> QueuePool:
        def connect() -> Any:  # a DBAPI connection, though not to the letter of SQLAlchemy's protocol
            return self._session(POOL_SESSIONS, self._settings.statement_seconds + GRACE_SECONDS)

        # The one that was used last comes first: it has most statements prepared.
        return QueuePool(connect, self._size, self._size, timeout=POOL_SECONDS, use_lifo=True)

    def _session(self, name: str, silence_seconds: float) -> Session:
        session = Session.connect(self._settings.libpq_url, autocommit=True, **connect_args(self._settings, name))
        session.silence_seconds = silence_seconds
        return session

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection of the pool, on which each statement is a transaction of its own.

        ``Unreachable`` if there is no server, none is left in the pool for too long, or it is lost meanwhile.
        """
        place, connection = self._check_out()
        try:
            yield connection
        except psycopg.Error as error:
            if connection.closed and error.sqlstate is None:
                raise away(error) from error
            raise
        finally:
            if connection.closed:
                self._lost_at = time.monotonic()
                place.invalidate()
            else:
                place.close()  # which undoes what was left open

    def _check_out(self) -> tuple[PoolProxiedConnection, Connection]:
        pool = self._open()
        while True:
            try:
                place = pool.connect()
            except psycopg.OperationalError as error:
                raise away(error) from error
            except PoolTimeout as error:
                text = f"all database connections of this process ({2 * self._size}) are in use"
                raise Unreachable(text, hint="a larger NOETL_POOL_SIZE gives it more") from error
            connection = place.driver_connection
            assert isinstance(connection, Session)
            if connection.opened_at > self._lost_at:
                return place, connection
            place.invalidate()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back on an exception. No server: ``Unreachable``."""
        with self.connect() as connection:
            connection.execute("BEGIN")
            yield connection
            connection.commit()

    def read(self, look: Callable[[Connection], T], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Runs ``look``, which only reads, each statement for itself; again while what disturbs it is passing.

        Gives up with ``Unreachable`` after ``patience_seconds``.
        """

        def attempt() -> T:
            with self.connect() as connection:
                return look(connection)

        return _patiently(patience_seconds, attempt)

    def run(
        self,
        work: Callable[[Connection], T],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        batched: bool = True,
        then: Callable[[Connection], None] = lambda connection: None,
    ) -> T:
        """Runs ``work`` in a transaction, again while what undoes it is passing: a deadlock, a lost connection, a
        server that is away or takes no writes.

        It is committed once: where the reply of a COMMIT was lost, the server is asked what became of it. ``work`` must
        be re-runnable all the same; what it changes outside the database has to be that of its last run. Gives up with
        ``Unreachable`` after ``patience_seconds``. ``batched``: as :meth:`Session.batch` has it; not for SQL of others.
        ``then`` asks something that is read after the COMMIT, together with it; it may remain without an answer.
        """
        return _patiently(patience_seconds, _Once(self, work, batched, then))

    def connect_raw(self, purpose: str = "pulse") -> Session:
        """A session of its own outside the pool, in autocommit mode, for whoever keeps it. ``Unreachable``.

        It counts as lost when the server says nothing for as long as a process may before it counts as dead.
        """
        try:
            return self._session(f"noetl-celery {purpose}", self._settings.dead_after_seconds)
        except psycopg.OperationalError as error:
            raise away(error) from error

    def close(self) -> None:
        """Closes this process's pool; it may be used again, and closed again."""
        with self._lock:
            if self._pool is not None and self._pid == os.getpid():
                self._pool.dispose()
            self._pool = None


class _Once(Generic[T]):
    """A transaction that may be tried again and again, and is committed once."""

    def __init__(
        self, db: Database, work: Callable[[Connection], T], batched: bool, then: Callable[[Connection], None]
    ) -> None:
        self._db, self._work, self._batched, self._then = db, work, batched, then
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
            except psycopg.Error as error:
                if error.sqlstate == _READ_ONLY:
                    connection.close()  # the next one may lead to the server that takes writes now
                if not partitions.lacking(error):
                    raise
            # Nobody was there for weeks to make them.
            connection.rollback()
            with connection.transaction():
                partitions.make(connection)
            return self._attempt(connection)

    def _attempt(self, connection: Connection) -> T:
        committing: tuple[str, T] | None = None
        try:
            with connection.batch() if self._batched else nullcontext():
                transaction = _begin(connection)
                result = self._work(connection)
                committing = transaction(), result
                with connection.batch():
                    connection.execute("COMMIT", prepare=False)
                    self._then(connection)
        except psycopg.Error:
            self._unheard = committing  # it may be committed, even if the connection is not lost
            raise
        return result


def _begin(connection: Connection) -> Reply[str]:
    """Begins a transaction; returns what tells its id."""
    with connection.batch():
        connection.execute("BEGIN")
        asked = connection.execute("SELECT pg_current_xact_id()::text")

    def transaction() -> str:
        connection.settle(asked)
        row = asked.fetchone()
        assert row is not None
        return str(row[0])

    return transaction


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """All statements of this read-only transaction see the database as it is now."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        connection.rollback()


def _committed(connection: Connection, transaction: str) -> bool:
    """What became of a transaction; a server that does not know it has not committed it. ``Unreachable`` while it is
    still being committed."""
    try:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchone()
    except psycopg.errors.InvalidParameterValue:  # from the future: the server that took over never saw it
        return False
    if row == ("in progress",):
        raise Unreachable("PostgreSQL is still busy with a COMMIT whose connection was lost")
    return row == ("committed",)


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


def _patiently(seconds: float, attempt: Callable[[], T]) -> T:
    try:
        try:
            return attempt()
        except Exception as error:  # nearly never
            if not passing(error):
                raise
        return patiently(seconds)(attempt)
    except psycopg.Error as error:
        raise away(error) if passing(error) else error from error


def passing(error: BaseException) -> bool:
    """Is it worth while to wait, and do the same again?"""
    if isinstance(error, Unreachable):
        return True
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_PASSING)


def away(error: Exception) -> Unreachable:
    """The one message for a server that does not do its work; it never shows the URL with its password."""
    state = getattr(error, "sqlstate", None)
    if state is None or state.startswith(_AWAY):
        hint = "check NOETL_DATABASE_URL and that the server runs"
        return Unreachable(f"PostgreSQL is not reachable: {first_line(error)}", hint=hint)
    return Unreachable(f"PostgreSQL does not go on: {first_line(error)}", hint="look at the server; then try again")


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def execute(connection: Connection, sql: str, **values: Any) -> None:
    """Runs hot SQL text with psycopg's own ``%(name)s`` parameters in the caller's transaction."""
    connection.execute(sql, values)


def changed(connection: Connection, sql: str, **values: Any) -> int:
    """The same; how many rows it wrote."""
    cursor = connection.execute(sql, values)
    connection.settle(cursor)
    return cursor.rowcount


def ask(connection: Connection, sql: str, **values: Any) -> Reply[Rows]:
    """All rows as mappings, when they are looked at."""
    cursor = connection.cursor(row_factory=dict_row).execute(sql, values)

    def rows() -> Rows:
        connection.settle(cursor)
        return cursor.fetchall()

    return rows


def one(connection: Connection, sql: str, **values: Any) -> dict[str, Any] | None:
    """The first row as a mapping, or None."""
    return next(iter(every(connection, sql, **values)), None)


def every(connection: Connection, sql: str, **values: Any) -> Rows:
    """All rows as mappings."""
    return ask(connection, sql, **values)()


def json_value(value: Any) -> Json | None:
    """A JSON parameter; None becomes SQL NULL."""
    return None if value is None else Json(value)
