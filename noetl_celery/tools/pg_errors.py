"""psycopg's errors as ours: kind and retryability by SQLSTATE, the message with the line of SQL that it is about."""

from __future__ import annotations

import os
import re
import select
import tempfile
import time
from typing import Any

import psycopg
from psycopg import pq

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.hiding import hidden
from noetl_celery.tools.sql import line_at

_LINE_LENGTH = 200
#: the longest matching prefix of the SQLSTATE decides
_KINDS = {
    "08": "connection",
    "22": "data",
    "23": "constraint",
    "28": "auth",
    "3D": "connection",
    "40001": "serialization",
    "40P01": "deadlock",
    "42501": "permission",
    "42601": "syntax",
    "57014": "timeout",
    "57P0": "connection",
}
#: the server takes no writes: a failover, or an operator's hand
READ_ONLY = "25006"
#: classes and codes after which the same statement may well succeed
_RETRYABLE = (
    *("08", READ_ONLY, "25P03", "25P04", "40", "53", "55P03"),
    *("57014", "57P01", "57P02", "57P03", "57P05"),
)
_TRACED_STATE = re.compile(rb'^B\t\d+\tErrorResponse\t.*? C "(\w{5})"', re.MULTILINE)


def kind_of(sqlstate: str | None, *, default: str = "postgres") -> str:
    """Our error kind for a SQLSTATE."""
    state = sqlstate or ""
    return next((_KINDS[state[:size]] for size in (5, 4, 2) if state[:size] in _KINDS), default)


def is_retryable(sqlstate: str) -> bool:
    """Whether trying again makes sense, by SQLSTATE alone."""
    return sqlstate.startswith(_RETRYABLE)


def error_info(
    error: psycopg.Error, sql: str | None = None, *, sent: str | None = None, first_line: int = 1
) -> ErrorInfo:
    """Our description of a driver's error.

    ``sql``: the statement as its author wrote it; ``sent``: as the server got it, if parameters changed it;
    ``first_line``: the line where it begins in the author's text. An error without SQLSTATE comes from a lost
    connection if it is an ``OperationalError`` (retryable), and from the driver otherwise.
    """
    state = error.sqlstate
    if state is None:
        lost = isinstance(error, psycopg.OperationalError)
        kind, retryable = ("connection", True) if lost else ("postgres", False)
    else:
        kind, retryable = kind_of(state), is_retryable(state)
    message = error_message(error, sql, sent=sent, first_line=first_line)
    return ErrorInfo(kind, message, code=state, retryable=retryable)


def error_message(error: psycopg.Error, sql: str | None = None, *, sent: str | None = None, first_line: int = 1) -> str:
    """PostgreSQL's message, then ``line 3: "…"``, detail and hint where there are any."""
    diag = error.diag
    message = diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    place = _place(error, sql, sent, first_line)
    parts = [f"{message}, {place}" if place else message]
    if diag.message_detail:
        parts.append(f"detail: {diag.message_detail}")
    if diag.message_hint:
        parts.append(f"hint: {diag.message_hint}")
    return "; ".join(parts)


def _place(error: psycopg.Error, sql: str | None, sent: str | None, first_line: int) -> str | None:
    position = error.diag.statement_position
    if position is None or sql is None:
        return _inner_place(error)
    number, _ = line_at(sent or sql, int(position))
    lines = sql.split("\n")
    text = hidden(lines[min(number, len(lines)) - 1].rstrip())
    shown = text if len(text) <= _LINE_LENGTH else text[:_LINE_LENGTH] + "…"
    return f'line {first_line + number - 1}: "{shown}"'


def _inner_place(error: psycopg.Error) -> str | None:
    """Where in a function, a DO block or a trigger it happened: the innermost line of the server's context."""
    context = hidden((error.diag.context or "").strip().split("\n")[0])
    return f"in {context[:_LINE_LENGTH]}" if context else None


def tool_error(
    error: psycopg.Error, sql: str | None = None, *, sent: str | None = None, first_line: int = 1
) -> ToolError:
    """:func:`error_info` as the error that a tool raises, with ``pg`` for the envelope."""
    info = error_info(error, sql, sent=sent, first_line=first_line)
    return ToolError(info, extra={"pg": envelope_part(info.code)})


def envelope_part(sqlstate: str | None) -> dict[str, Any]:
    """The ``pg`` of an outcome."""
    return {"code": sqlstate, "sqlstate": sqlstate} if sqlstate else {}


def connect_error(error: psycopg.Error, conninfo: str) -> ToolError:
    """Why a connection could not be made. A refusal is judged by its SQLSTATE, so a wrong password is not retried.

    libpq keeps the SQLSTATE of a refused connection to itself; :func:`refusal_state` asks once more to hear it.
    """
    if error.pgconn is not None and error.pgconn.needs_password:
        state: str | None = "28P01"
    else:
        state = error.sqlstate or refusal_state(conninfo)
    message = " ".join(str(error).split())
    info = ErrorInfo(
        kind_of(state, default="connection"), message, code=state, retryable=state is None or is_retryable(state)
    )
    return ToolError(info, extra={"pg": envelope_part(state)})


def refusal_state(conninfo: str, *, timeout: float = 5.0) -> str | None:
    """The SQLSTATE with which the server refuses a connection, or None if it does not refuse (or cannot be heard).

    Reads it from libpq's trace of the protocol, the only place where it shows. The trace holds the whole handshake: it
    goes to an unlinked file that only this function sees. Needs libpq 18 for the handshake; with an older one: None.
    """
    try:
        with tempfile.TemporaryFile() as trace:
            _handshake(conninfo, trace.fileno(), time.monotonic() + timeout)
            trace.seek(0)
            found = _TRACED_STATE.search(trace.read())
    except (psycopg.Error, OSError):
        return None
    return found[1].decode() if found else None


def _handshake(conninfo: str, trace_fd: int, deadline: float) -> None:
    connection = pq.PGconn.connect_start(conninfo.encode())
    stream_fd = os.dup(trace_fd)
    connection.trace(stream_fd)
    connection.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
    try:
        while (remaining := deadline - time.monotonic()) > 0:
            polled = connection.connect_poll()
            if polled == pq.PollingStatus.READING:
                _wait(connection.socket, select.POLLIN, remaining)
            elif polled == pq.PollingStatus.WRITING:
                _wait(connection.socket, select.POLLOUT, remaining)
            else:
                return
    finally:
        connection.untrace()
        connection.finish()
        os.close(stream_fd)  # psycopg wraps it in a stream that nobody closes


def _wait(fd: int, event: int, seconds: float) -> None:
    poller = select.poll()
    poller.register(fd, event)
    poller.poll(seconds * 1000)
