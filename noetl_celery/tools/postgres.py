"""The ``postgres`` tool: the statements of one command, in one transaction, as their author wrote them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.jsonable import jsonable
from noetl_celery.tools import pg, sql
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.keys import (
    Complaint,
    auth_of,
    bad_config,
    check_seconds,
    is_blank,
    is_template,
    one_of,
    present,
    seconds,
    unknown_keys,
)

SQL_KEYS = ("command", "query", "commands", "sql")
_KNOWN = frozenset({*SQL_KEYS, "params", "script"})
_BEGINS = frozenset({"BEGIN", "START TRANSACTION"})
_ENDS = frozenset({"COMMIT", "END"})
#: fine inside our transaction
_ALLOWED = frozenset({"SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT"})
#: what outlives the task in its session: such a connection is closed, not lent to the next task
_TOUCHES_SESSION = re.compile(
    r"\bset_config\s*\(|\bpg_(?:try_)?advisory_lock(?:_shared)?\s*\(|\bcreate\s+(?:global\s+|local\s+)?temp|\binto\s+temp",
    re.IGNORECASE,
)
_SESSION_COMMANDS = frozenset({"SET", "RESET", "LISTEN", "PREPARE", "LOAD", "DISCARD", "DECLARE"})


@dataclass(slots=True)
class _Script:
    """What one call sends: statements with their values, and how much time it has."""

    statements: list[sql.Statement]
    known: Mapping[str, Any] = field(default_factory=dict)
    positional: list[Any] | None = None
    deadline: float | None = None

    def remaining(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()


class PostgresTool:
    """Runs SQL with a credential of its own; one pool per credential and process, see :mod:`noetl_celery.tools.pg`.

    All statements run in one transaction; a single statement runs by itself, so that VACUUM, CREATE DATABASE or a CALL
    that commits are possible. The result: ``{rows, row_count, columns, command_0: {rows, row_count}, …}``, where
    ``rows`` are those of the last statement that returned any columns; without one, ``row_count`` is that of the last
    statement.
    """

    kind = "postgres"
    raw_keys: frozenset[str] = frozenset()

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Keys, the SQL that has to be there, the credential, and transaction commands that cannot work."""
        complaints = unknown_keys(config, _KNOWN)
        if not is_blank(config.get("script")):
            complaints.append(("script", "`script` is not supported for postgres: write the SQL in `command`"))
        else:
            complaints += one_of(config, SQL_KEYS, required=True)
        if is_blank(auth_of(config)):
            complaints.append(("auth", "needs `auth`: the name of a postgres credential"))
        complaints += check_seconds(config, "timeout")
        for key in present(config, SQL_KEYS):
            complaints += [(key, error.message) for error in _script_errors(config[key])]
        return complaints

    def run(self, call: ToolCall) -> Any:
        """The result of the command. Raises ``ToolError`` with the kind, SQLSTATE and SQL line of what went wrong."""
        script = _script(call)
        settings = _pool_settings(call.config.get("pool"))
        _milliseconds(script)  # no connection for what is too late
        with pg.connection(_credential(call), settings, timeout=script.remaining()) as connection:
            return Reply(_execute(connection, script))

    def close(self) -> None:
        """Closes every pool of this process, also those that cursors use."""
        pg.close_all()


def _script(call: ToolCall) -> _Script:
    config = call.config
    given = present(config, SQL_KEYS)
    if len(given) != 1:
        raise bad_config(one_of(config, SQL_KEYS, required=True)[0][1])
    statements = _statements(config[given[0]])
    limit = seconds(config.get("timeout"), "timeout")
    own = None if limit is None else time.monotonic() + limit
    script = _Script(statements, deadline=min((d for d in (own, call.deadline) if d is not None), default=None))
    params = config.get("params")
    if isinstance(params, Mapping):
        script.known = params
    elif isinstance(params, list | tuple):
        script.positional = list(params)
    elif not is_blank(params):
        raise bad_config(f"`params` has to be a mapping or a list, not {type(params).__name__}")
    return script


def _parts(source: Any) -> list[str]:
    parts = source if isinstance(source, list | tuple) else [source]
    texts = [part.get("sql", part.get("command")) if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise bad_config("SQL has to be text, or a list of texts")
    return texts


def _statements(source: Any) -> list[sql.Statement]:
    """The statements to send: without a BEGIN and COMMIT around all of them, which is what happens anyway."""
    statements = [statement for part in _parts(source) for statement in sql.split_statements(part)]
    controls = [sql.transaction_control(statement) for statement in statements]
    if len(statements) > 1 and controls[0] in _BEGINS and controls[-1] in _ENDS:
        statements, controls = statements[1:-1], controls[1:-1]
    for statement, control in zip(statements, controls, strict=True):
        if control is not None and control not in _ALLOWED:
            raise bad_config(
                f"line {statement.line}: `{control}` cannot be used here: all statements of a command "
                "run in one transaction already; use several tasks for several transactions"
            )
    if not statements:
        raise bad_config("the SQL holds no statement, only comments or blanks")
    return statements


def _script_errors(source: Any) -> list[ToolError]:
    """What is wrong with SQL as written; nothing can be said before templates in it are rendered."""
    try:
        if not any(is_template(part) for part in _parts(source)):
            _statements(source)
    except ToolError as error:
        return [error]
    return []


def _credential(call: ToolCall) -> Mapping[str, Any]:
    auth = auth_of(call.config)
    if isinstance(auth, str) and auth.strip():
        return call.credential(auth)
    if isinstance(auth, Mapping):
        name = auth.get("credential")
        stored = call.credential(name) if isinstance(name, str) else {}
        return {**stored, **{key: value for key, value in auth.items() if key not in {"credential", "type"}}}
    raise ToolError(ErrorInfo("credential", "needs `auth`: the name of a postgres credential"))


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


def _execute(connection: pg.Connection, script: _Script) -> dict[str, Any]:
    statements = script.statements
    try:
        if len(statements) == 1 and script.deadline is None:
            results = [_send(connection, statements[0], script)]
        elif len(statements) == 1 and not _transactional(statements[0]):
            results = [_send_limited(connection, statements[0], script)]
        else:
            results = _in_transaction(connection, script)
    except psycopg.Error as error:
        # raised by BEGIN and COMMIT: a lost connection, or a constraint that was deferred
        raise pg.tool_error(error) from None
    finally:
        if any(_touches_session(statement) for statement in statements):
            connection.close()
    return _result(results)


def _in_transaction(connection: pg.Connection, script: _Script) -> list[dict[str, Any]]:
    with connection.transaction():
        results = []
        for statement in script.statements:
            if script.deadline is not None:
                connection.execute(f"SET LOCAL statement_timeout = {_milliseconds(script)}")
            results.append(_send(connection, statement, script))
        return results


def _send_limited(connection: pg.Connection, statement: sql.Statement, script: _Script) -> dict[str, Any]:
    connection.execute(f"SET statement_timeout = {_milliseconds(script)}")
    try:
        return _send(connection, statement, script)
    finally:
        connection.close()  # the limit would stay with the session


def _milliseconds(script: _Script) -> int:
    """The time left, for ``statement_timeout`` (0 is no limit). Raises ``ToolError`` if there is none left."""
    remaining = script.remaining()
    if remaining is None:
        return 0
    if remaining <= 0:
        raise ToolError(ErrorInfo("timeout", "the time of this task was over before its SQL had run"))
    return max(1, int(remaining * 1000))


def _send(connection: pg.Connection, statement: sql.Statement, script: _Script) -> dict[str, Any]:
    text, values = _bound(statement, script)
    cursor = connection.cursor()
    try:
        cursor.execute(text, values) if values is not None else cursor.execute(text)
        return _fetched(cursor)
    except psycopg.Error as error:
        sent = sql.as_sent(text) if values is not None else None
        failure = pg.tool_error(error, statement.text, sent=sent, first_line=statement.line)
        if failure.info.kind == "timeout" and script.deadline is None:
            failure.info.kind = "postgres"  # somebody else's limit, or pg_cancel_backend
        raise failure from None
    finally:
        cursor.close()


def _bound(statement: sql.Statement, script: _Script) -> tuple[str, Any]:
    if script.positional is None:
        return sql.bind(statement.text, script.known)
    try:
        text, values = sql.bind_list(statement.text, script.positional)
    except ValueError as error:
        raise bad_config(f"line {statement.line}: {error}") from None
    script.positional = script.positional[len(values or ()) :]
    return text, values


def _fetched(cursor: psycopg.Cursor[tuple[Any, ...]]) -> dict[str, Any]:
    if cursor.pgresult is not None and cursor.pgresult.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
        raise bad_config("COPY from or to the client is not supported")
    if cursor.description is None:
        return {"rows": [], "row_count": max(0, cursor.rowcount)}
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    return {"rows": rows, "row_count": len(rows), "columns": names}


def _result(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last = next((result for result in reversed(results) if "columns" in result), results[-1])
    whole: dict[str, Any] = {"rows": last["rows"], "row_count": last["row_count"], "columns": last.get("columns", [])}
    for number, result in enumerate(results):
        whole[f"command_{number}"] = {"rows": result["rows"], "row_count": result["row_count"]}
    return _plain(whole)


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


def _touches_session(statement: sql.Statement) -> bool:
    words = sql.leading_words(statement, 2)
    if words[:1] and words[0] in _SESSION_COMMANDS:
        return words[1:] not in (["LOCAL"], ["CONSTRAINTS"], ["TRANSACTION"])
    return _TOUCHES_SESSION.search(statement.text) is not None
