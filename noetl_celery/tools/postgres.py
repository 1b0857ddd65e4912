"""The ``postgres`` tool: the statements of one command, in one transaction, as their author wrote them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import pq

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.jsonable import jsonable
from noetl_celery.tools import pg, pg_script, postgres_into, sql
from noetl_celery.tools import script as loading
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.keys import (
    Complaint,
    auth_of,
    bad_config,
    check_seconds,
    is_blank,
    one_of,
    seconds,
    unknown_keys,
)
from noetl_celery.tools.limits import Room

_FETCH_ROWS = 1000
_KNOWN = frozenset({*pg_script.SQL_KEYS, "params", "script", "into"})


class PostgresTool:
    """Runs SQL with a credential of its own; one pool per credential and process, see :mod:`noetl_celery.tools.pg`.

    All statements run in one transaction; a single statement runs by itself, so that VACUUM, CREATE DATABASE or a CALL
    that commits are possible. The result: ``{rows, row_count, columns, command_0: {rows, row_count}, …}``, where
    ``rows`` are those of the last statement that returned any columns; without one, ``row_count`` is that of the last
    statement. ``into`` writes these rows into a table of the same database, in the same transaction.
    """

    kind = "postgres"
    raw_keys: frozenset[str] = frozenset()
    keys: frozenset[str] = _KNOWN

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Keys, the SQL that has to be there, the credential, and transaction commands that cannot work."""
        complaints = unknown_keys(config, _KNOWN)
        if is_blank(config.get("script")):
            complaints += pg_script.problems(config)
        else:
            complaints += one_of(config, ("script", *pg_script.SQL_KEYS), required=True) or _script_problems(config)
        if is_blank(auth_of(config)):
            complaints.append(("auth", "needs `auth`: the name of a postgres credential"))
        if not is_blank(config.get("into")):
            complaints += postgres_into.problems(config["into"])
        return complaints + check_seconds(config, "timeout")

    def run(self, call: ToolCall) -> Any:
        """The result of the command. Raises ``ToolError`` with the kind, SQLSTATE and SQL line of what went wrong."""
        script = pg_script.read(_with_sql(call), call.deadline)
        settings = _pool_settings(call.config.get("pool"))
        script.milliseconds()  # no connection for what is too late
        credential = pg_script.credential_of(call.config, call.credential)
        with pg.connection(credential, settings, timeout=script.remaining()) as connection:
            return Reply(_execute(connection, script, call.config.get("into")), plain=True)

    def close(self) -> None:
        """Closes every pool of this process, also those that cursors use."""
        pg.close_all()
        loading.close()


def _script_problems(config: Mapping[str, Any]) -> list[Complaint]:
    complaints = loading.check(config["script"])
    code = None if complaints else loading.inline(config["script"])
    if code is not None:
        complaints += [("script", message) for _, message in pg_script.problems({**config, "command": code})]
    return complaints


def _with_sql(call: ToolCall) -> Mapping[str, Any]:
    """The configuration with the SQL of a ``script`` as its command; a script is not rendered, but has ``params``."""
    if is_blank(call.config.get("script")):
        return call.config
    return {**call.config, "command": loading.load(call)}


def _pool_settings(given: Any) -> pg.PoolSettings | None:
    if not isinstance(given, Mapping):
        return None
    defaults = pg.default_settings()
    try:
        return pg.PoolSettings(
            min_size=int(given.get("min_size") or defaults.min_size),
            max_size=int(given.get("max_size") or defaults.max_size),
            timeout=seconds(given.get("timeout"), "pool.timeout") or defaults.timeout,
            name=str(given.get("name") or ""),
        )
    except (TypeError, ValueError):
        raise bad_config("`pool.min_size` and `pool.max_size` have to be whole numbers") from None


def _execute(connection: pg.Connection, script: pg_script.Script, into: Any) -> dict[str, Any]:
    statements = script.statements
    try:
        if not is_blank(into):
            results = _in_transaction(connection, script, into)
        elif len(statements) == 1 and script.deadline is None:
            results = [_send(connection, statements[0], script)]
        elif len(statements) == 1 and not _transactional(statements[0]):
            results = [_send_limited(connection, statements[0], script)]
        else:
            results = _in_transaction(connection, script)
    except psycopg.Error as error:
        # raised by BEGIN and COMMIT: a lost connection, or a constraint that was deferred
        raise pg.tool_error(error) from None
    finally:
        if script.touches_session():
            connection.close()
    return _result(results)


def _in_transaction(connection: pg.Connection, script: pg_script.Script, into: Any = None) -> list[dict[str, Any]]:
    with connection.transaction():
        results = []
        for statement in script.statements:
            if script.deadline is not None:
                connection.execute(f"SET LOCAL statement_timeout = {script.milliseconds()}")
            results.append(_send(connection, statement, script))
        if not is_blank(into):
            postgres_into.save(connection, script, _last(results)["rows"], into)
        return results


def _send_limited(connection: pg.Connection, statement: sql.Statement, script: pg_script.Script) -> dict[str, Any]:
    connection.execute(f"SET statement_timeout = {script.milliseconds()}")
    try:
        return _send(connection, statement, script)
    finally:
        connection.close()  # the limit would stay with the session


def _send(connection: pg.Connection, statement: sql.Statement, script: pg_script.Script) -> dict[str, Any]:
    cursor = connection.cursor()
    try:
        pg_script.execute(cursor, statement, script)
        return _fetched(cursor)
    except psycopg.Error as error:  # of a value that cannot be read
        raise pg_script.failure(error, script, statement) from None
    finally:
        cursor.close()


def _fetched(cursor: psycopg.Cursor[tuple[Any, ...]]) -> dict[str, Any]:
    if cursor.pgresult is not None and cursor.pgresult.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
        raise bad_config("COPY from or to the client is not supported")
    if cursor.description is None:
        return {"rows": [], "row_count": max(0, cursor.rowcount)}
    names = [column.name for column in cursor.description]
    rows: list[dict[str, Any]] = []
    room = Room()
    # Not all at once: that would be one call that stops the other rows of this process.
    while fetched := cursor.fetchmany(_FETCH_ROWS):
        page = [dict(zip(names, values, strict=True)) for values in fetched]
        room.take(page)
        rows += page
    return {"rows": rows, "row_count": len(rows), "columns": names}


def _result(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last = _last(results)
    whole: dict[str, Any] = {"rows": last["rows"], "row_count": last["row_count"], "columns": last.get("columns", [])}
    for number, result in enumerate(results):
        whole[f"command_{number}"] = {"rows": result["rows"], "row_count": result["row_count"]}
    return _plain(whole)


def _last(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the last statement that returned columns gave, or else the last one."""
    return next((result for result in reversed(results) if "columns" in result), results[-1])


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = jsonable(result)
    except TypeError as error:
        raise ToolError(ErrorInfo("result_type", f"the result cannot be kept: {error}; cast it to text")) from None
    return plain


_NO_TRANSACTION = re.compile(
    r"(?:VACUUM|CALL|ALTER\s+SYSTEM|(?:CREATE|DROP|ALTER)\s+(?:DATABASE|TABLESPACE|SUBSCRIPTION)|CLUSTER|CHECKPOINT"
    r"|REINDEX\b.*|(?:CREATE|DROP)\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY|ALTER\s+TABLE\b.*\bCONCURRENTLY)\b",
    re.IGNORECASE | re.DOTALL,
)


def _transactional(statement: sql.Statement) -> bool:
    return _NO_TRANSACTION.match(statement.text) is None
