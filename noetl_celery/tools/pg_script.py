"""What a task sends to PostgreSQL: statements, their values, whose credential, how much time. Shared by the tools."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import pg, sql
from noetl_celery.tools.base import Credential
from noetl_celery.tools.keys import (
    Complaint,
    auth_of,
    bad_config,
    deadline_of,
    is_blank,
    is_template,
    one_of,
    present,
)

SQL_KEYS = ("command", "query", "commands", "sql")
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
class Script:
    """What one call sends: statements with their values, and how much time it has."""

    statements: list[sql.Statement]
    known: Mapping[str, Any] = field(default_factory=dict)
    positional: list[Any] | None = None
    deadline: float | None = None

    def remaining(self) -> float | None:
        """Seconds left, or None without a limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def milliseconds(self) -> int:
        """The time left, for ``statement_timeout`` (0 is no limit). Raises ``ToolError`` if there is none left."""
        remaining = self.remaining()
        if remaining is None:
            return 0
        if remaining <= 0:
            raise ToolError(ErrorInfo("timeout", "the time of this task was over before its SQL had run"))
        return max(1, int(remaining * 1000))

    def touches_session(self) -> bool:
        """Whether something outlives the transaction in its session, so that nobody else should get that."""
        return any(map(_touches_session, self.statements))


def read(config: Mapping[str, Any], deadline: float | None = None) -> Script:
    """The script of a rendered configuration: its SQL, ``params`` and ``timeout`` (at most until ``deadline``).

    Raises ``ToolError`` of kind ``config`` for SQL that is missing, given twice, or has transaction commands.
    """
    given = present(config, SQL_KEYS)
    if len(given) != 1:
        raise bad_config(one_of(config, SQL_KEYS, required=True)[0][1])
    script = Script(statements_of(config[given[0]]), deadline=deadline_of(config, deadline))
    params = config.get("params")
    if params is None:
        return script
    if isinstance(params, Mapping):
        script.known = params
    elif isinstance(params, list | tuple):
        script.positional = list(params)
    elif not is_blank(params):
        raise bad_config(f"`params` has to be a mapping or a list, not {type(params).__name__}")
    return script


def texts_of(source: Any) -> list[str]:
    """SQL as written: a text, or a list of texts or of ``{sql: …}``. Raises ``ToolError`` for anything else."""
    if isinstance(source, str):
        return [source]
    parts = source if isinstance(source, list | tuple) else [source]
    texts = [part.get("sql", part.get("command")) if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise bad_config("SQL has to be text, or a list of texts")
    return texts


def split(source: Any) -> list[sql.Statement]:
    """All statements of SQL as written. Raises ``ToolError`` if there is none."""
    statements = [statement for part in texts_of(source) for statement in sql.split_statements(part)]
    if not statements:
        raise bad_config("the SQL holds no statement, only comments or blanks")
    return statements


def statements_of(source: Any) -> list[sql.Statement]:
    """The statements to send: without a BEGIN and COMMIT around all of them, which is what happens anyway."""
    statements = split(source)
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


def problems(config: Mapping[str, Any]) -> list[Complaint]:
    """What is wrong with the SQL of a configuration as written; templates pass until they are rendered."""
    complaints = one_of(config, SQL_KEYS, required=True)
    for key in present(config, SQL_KEYS):
        try:
            if not any(is_template(part) for part in texts_of(config[key])):
                statements_of(config[key])
        except ToolError as error:
            complaints.append((key, error.message))
    return complaints


def credential_of(config: Mapping[str, Any], lookup: Callable[[str], Credential]) -> Credential:
    """The credential that ``auth`` names, or is.

    A mapping may name one too (``credential``, or ``key`` beside ``source: credential``); its other fields then win
    over the stored ones. Raises ``ToolError`` of kind ``credential`` without ``auth``.
    """
    auth = auth_of(config)
    if isinstance(auth, str) and auth.strip():
        return lookup(auth)
    if isinstance(auth, Mapping) and auth:
        own = dict(auth)
        name = own.pop("credential", None)
        if own.pop("source", None) == "credential" and name is None:
            name = own.pop("key", None)
        stored = lookup(name) if isinstance(name, str) else {}
        return {**stored, **{key: value for key, value in own.items() if key not in {"type", "tool", "kind"}}}
    raise ToolError(ErrorInfo("credential", "needs `auth`: the name of a postgres credential"))


def bound(statement: sql.Statement, script: Script) -> tuple[str, Any]:
    """A statement as psycopg takes it, with its values (None: pass none). Positional values are used up in order."""
    if script.positional is None:
        return sql.bind(statement.text, script.known)
    try:
        text, values = sql.bind_list(statement.text, script.positional)
    except ValueError as error:
        raise bad_config(f"line {statement.line}: {error}") from None
    script.positional = script.positional[len(values or ()) :]
    return text, values


def execute(
    cursor: psycopg.Cursor[tuple[Any, ...]] | psycopg.ServerCursor[tuple[Any, ...]],
    statement: sql.Statement,
    script: Script,
) -> None:
    """Runs a statement. Raises ``ToolError`` with the SQLSTATE and the line of the author's SQL."""
    text, values = bound(statement, script)
    try:
        cursor.execute(text, values) if values is not None else cursor.execute(text)
    except psycopg.Error as error:
        sent = sql.as_sent(text) if values is not None else None
        raise failure(error, script, statement, sent) from None


def failure(
    error: psycopg.Error, script: Script, statement: sql.Statement | None = None, sent: str | None = None
) -> ToolError:
    """The driver's error as ours; a cancelled statement is a ``timeout`` only if the script has a limit."""
    if statement is None:
        made = pg.tool_error(error)
    else:
        made = pg.tool_error(error, statement.text, sent=sent, first_line=statement.line)
    if made.info.kind == "timeout" and script.deadline is None:
        made.info.kind = "postgres"  # somebody else's limit, or pg_cancel_backend
    return made


def _touches_session(statement: sql.Statement) -> bool:
    if sql.may_begin_with(statement, _SESSION_COMMANDS):
        words = sql.leading_words(statement, 2)
        if words[:1] and words[0] in _SESSION_COMMANDS:
            return words[1:] not in (["LOCAL"], ["CONSTRAINTS"], ["TRANSACTION"])
    small = statement.text.lower()
    if not ("temp" in small or "set_config" in small or "advisory_lock" in small):
        return False  # the pattern would take as long as all else that is asked about a statement
    return _TOUCHES_SESSION.search(small) is not None
