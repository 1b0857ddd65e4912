"""Connections to the databases that playbooks name: from a credential to a pool, from a driver's error to ours.

A pool belongs to one process (a forked child makes its own, and leaves its parent's alone) and to one connection
string. Nothing here puts a password, or a connection string, into a message.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import conninfo as pq_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.session import Session
from noetl_celery.tools.pg_errors import READ_ONLY, connect_error, error_info, error_message, tool_error
from noetl_celery.tools.pg_types import adapters

__all__ = [
    "PoolSettings",
    "Pools",
    "close_all",
    "connect",
    "connection",
    "conninfo",
    "default_settings",
    "error_info",
    "error_message",
    "pool",
    "set_default_settings",
    "tool_error",
]

Connection = Session


class Pool(ConnectionPool[Connection]):
    """psycopg's pool, which tells quickly whether it has any connection (``get_stats`` writes a whole report)."""

    def is_empty(self) -> bool:
        """Whether nothing is connected: its next borrower waits for a connection to be made."""
        return self._nconns == 0


CONNECT_TIMEOUT_SECONDS = 10
IDLE_IN_TRANSACTION_SECONDS = 600
#: a pool that has lost its server tries no longer by itself: its pauses grow, and the next caller would wait with it
RECONNECT_SECONDS = 3.0
_UNLIMITED = nullcontext()
_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("host", ("db_host", "host", "hostname", "server")),
    ("port", ("db_port", "port")),
    ("user", ("db_user", "user", "username")),
    ("password", ("db_password", "password")),
    ("dbname", ("db_name", "dbname", "database", "db")),
)
_NEEDED = frozenset({"host", "user", "dbname"})
_DSN = ("dsn", "url", "uri", "connection_string")
#: passed on to libpq under their own names
_PASSED_ON = ("sslmode", "sslrootcert", "sslcert", "sslkey", "hostaddr", "target_session_attrs", "channel_binding")


def conninfo(credential: Mapping[str, Any]) -> str:
    """The libpq connection string of a credential, with our keepalives, timeouts and ``search_path``.

    Read are NoETL's fields (``db_host``, ``db_port``, ``db_user``, ``db_password``, ``db_name``), their short forms, a
    ``dsn`` (also ``url``, ``connection_string``) that single fields override, ``sslmode`` and the other TLS keys. A
    host that starts with ``/`` is a socket folder. ``search_path`` (``public``) may be set by the credential, and
    ``options`` replace the server settings that we would send; ``""`` sends none (some poolers refuse them).
    Raises ``ToolError`` of kind ``credential`` that names what is missing, never a value. Quick for one seen before.
    """
    return _conninfo(tuple(sorted((str(key), str(value)) for key, value in credential.items() if value is not None)))


@lru_cache(maxsize=256)
def _conninfo(items: tuple[tuple[str, str], ...]) -> str:
    credential = dict(items)
    hiding.learn_credential(credential)
    fields = _dsn_fields(credential)
    for name, keys in _FIELDS:
        given = next((credential[key] for key in keys if credential.get(key) not in (None, "")), None)
        if given is not None:
            fields[name] = str(given)
    fields.update({key: str(credential[key]) for key in _PASSED_ON if credential.get(key)})
    for name, keys in _FIELDS:
        if name in _NEEDED and not fields.get(name) and not (name == "host" and "hostaddr" in fields):
            raise _bad_credential(f"the credential has no `{keys[0]}` (also read: {', '.join(keys[1:])}, or a `dsn`)")
    if not fields.get("port", "5432").replace(",", "").isdigit():
        raise _bad_credential("the credential's `db_port` is not a number")
    options = credential.get("options", fields.pop("options", None))
    fields["options"] = _options(credential) if options is None else str(options)
    defaults = {
        "application_name": "noetl-celery",
        "connect_timeout": str(CONNECT_TIMEOUT_SECONDS),
        "keepalives": "1",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "60000",
    }
    # sorted: two spellings of one credential are one pool
    return pq_conninfo.make_conninfo(**dict(sorted({**defaults, **fields}.items())))


def _dsn_fields(credential: Mapping[str, Any]) -> dict[str, Any]:
    dsn = next((str(credential[key]) for key in _DSN if credential.get(key)), None)
    if dsn is None:
        return {}
    scheme, separator, rest = dsn.partition("://")
    if separator:
        # SQLAlchemy's spelling: postgresql+psycopg://
        dsn = f"{scheme.partition('+')[0]}://{rest}"
    try:
        return {key: str(value) for key, value in pq_conninfo.conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.Error:
        # libpq quotes the part that it did not understand, which may well be the password
        raise _bad_credential("the credential's `dsn` is not a PostgreSQL connection string") from None


def _options(credential: Mapping[str, Any]) -> str:
    path = str(credential.get("search_path") or credential.get("db_schema") or "public")
    settings = {
        "search_path": path,
        "datestyle": "ISO",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS}s",
    }
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """A space ends a setting in ``options`` unless a backslash stands before it."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _bad_credential(message: str) -> ToolError:
    return ToolError(ErrorInfo("credential", message))


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many connections of one credential a process keeps; ``timeout``: seconds to wait for a free one."""

    min_size: int = 0
    max_size: int = 10
    timeout: float = 30.0
    max_idle: float = 300.0
    #: tasks that name the same pool share it; other names get connections of their own
    name: str = ""


class Pools:
    """The pools of one process. Keyed by process id, so that a forked child never touches its parent's sockets."""

    def __init__(self) -> None:
        #: for callers that name no settings; a process sets it once at its start
        self.defaults = PoolSettings()
        self._pools: dict[tuple[int, str, str], Pool] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self, credential: Mapping[str, Any], settings: PoolSettings | None = None) -> Pool:
        """The pool of this credential, made when first asked for; the first caller's sizes count.

        Opening it needs no server: connections are made when somebody takes one.
        """
        settings = settings or self.defaults
        info = conninfo(credential)
        key = (os.getpid(), settings.name, info)
        found = self._pools.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self._pools:
                self._pools[key] = _open(info, settings)
            return self._pools[key]

    def close_all(self) -> None:
        """Closes the pools of this process; may be called twice."""
        with self._lock:
            mine = [key for key in self._pools if key[0] == os.getpid()]
            closing = [self._pools.pop(key) for key in mine]
        for pool in closing:
            pool.close()


def _open(info: str, settings: PoolSettings) -> Pool:
    return Pool(
        info,
        connection_class=Session,
        # rendered SQL differs from row to row, and poolers in between dislike prepared statements
        kwargs={"autocommit": True, "prepare_threshold": None, "context": adapters()},
        min_size=settings.min_size,
        max_size=max(settings.max_size, settings.min_size, 1),
        timeout=settings.timeout,
        max_idle=settings.max_idle,
        reconnect_timeout=RECONNECT_SECONDS,
        check=_check_idle,
        name=settings.name or None,
        open=True,
    )


def _check_idle(connection: Connection) -> None:
    """Raises if an idle connection has died, without a round trip: a living one has nothing to say.

    Words waiting on the socket of an idle connection are the server's good-bye or the end of the stream, seldom a
    changed parameter; only then the server is asked.
    """
    poller = select.poll()
    poller.register(connection.pgconn.socket, select.POLLIN)
    if poller.poll(0):
        ConnectionPool.check_connection(connection)


_POOLS = Pools()
pool: Callable[..., Pool] = _POOLS.get
close_all = _POOLS.close_all


def default_settings() -> PoolSettings:
    """What pools are made with when nobody says otherwise."""
    return _POOLS.defaults


def set_default_settings(settings: PoolSettings) -> None:
    """Sets the sizes of pools that this process makes from now on."""
    _POOLS.defaults = settings


@contextmanager
def connection(
    credential: Mapping[str, Any], settings: PoolSettings | None = None, *, timeout: float | None = None
) -> Iterator[Connection]:
    """Lends a connection in autocommit mode, and takes it back (a broken one, or one in a transaction, is not kept; nor
    one to a server that takes no writes: there may be another one by now).

    ``timeout``: the seconds that the borrower has. A server that is silent for a little longer is given up.
    Raises ``ToolError`` if there is none: kind ``auth`` or ``connection`` with the server's own words if it cannot
    be reached, ``connection`` and retryable if all are in use for the pool's ``timeout``.
    """
    lender = _POOLS.get(credential, settings)
    borrowed = _borrow(lender, credential, lender.timeout if timeout is None else min(timeout, lender.timeout))
    try:
        with _UNLIMITED if timeout is None else borrowed.patient(timeout):
            yield borrowed
    except ToolError as error:
        if error.info.code == READ_ONLY:
            borrowed.close()
        raise
    finally:
        lender.putconn(borrowed)


def _borrow(lender: Pool, credential: Mapping[str, Any], wait: float) -> Connection:
    until = time.monotonic() + wait
    if lender.is_empty():
        # An empty pool connects behind our back and goes on trying. Somebody has to see why it fails.
        _reach(credential, wait)
    while True:
        left = until - time.monotonic()
        try:
            return lender.getconn(min(max(left, 0.0), RECONNECT_SECONDS))
        except PoolTimeout:
            # It may have lost the server, and pause between its attempts, while that is back.
            _reach(credential, wait)
        if left <= RECONNECT_SECONDS:
            text = f"no connection became free within {wait:g} seconds (pool of {lender.max_size})"
            raise ToolError(ErrorInfo("connection", text, retryable=True))


def _reach(credential: Mapping[str, Any], timeout: float) -> None:
    connect(conninfo(credential), timeout=timeout).close()


def connect(info: str, *, timeout: float | None = None) -> Connection:
    """A connection of its own, in autocommit mode. Raises ``ToolError`` with the reason if the server says no."""
    limit = CONNECT_TIMEOUT_SECONDS if timeout is None else max(2, min(CONNECT_TIMEOUT_SECONDS, round(timeout)))
    try:
        return Session.connect(info, autocommit=True, prepare_threshold=None, context=adapters(), connect_timeout=limit)
    except psycopg.Error as error:
        raise connect_error(error, info) from None
