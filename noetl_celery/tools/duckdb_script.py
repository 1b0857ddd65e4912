"""What a task sends to duckdb: its statements and their values, and running them on a connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import duckdb

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import duckdb_errors, pg_script, sql
from noetl_celery.tools.duckdb_extensions import extension_command, load_bundled
from noetl_celery.tools.keys import Complaint, bad_config, is_blank, is_template, one_of, present

SQL_KEYS = ("query", "command", "commands", "sql", "script")
#: what cannot run in a transaction, or brings in a second database: one transaction can write to one database only
_ALONE = frozenset({"ATTACH", "DETACH", "INSTALL", "LOAD", "CHECKPOINT", "FORCE", "VACUUM"})


@dataclass(slots=True)
class DuckScript:
    """Statements with their values. ``together``: all of them are one transaction."""

    statements: list[sql.Statement]
    together: bool = True
    known: Mapping[str, Any] = field(default_factory=dict)
    positional: list[Any] | None = None

    def words(self) -> set[str]:
        """Every word and quoted name of the script, for finding out what it uses."""
        return {
            statement.text[token.start : token.end].strip('"').lower()
            for statement in self.statements
            for token in sql.tokens(statement.text)
            if token.kind in {"word", "quoted"}
        }


def read(config: Mapping[str, Any]) -> DuckScript:
    """The script of a rendered configuration: its SQL and ``params``. Raises ``ToolError`` of kind ``config``."""
    given = present(config, SQL_KEYS)
    if len(given) != 1:
        raise bad_config(one_of(config, SQL_KEYS, required=True)[0][1])
    script = _script(config[given[0]])
    params = config.get("params")
    if isinstance(params, Mapping):
        script.known = params
    elif isinstance(params, list | tuple):
        script.positional = list(params)
    elif not is_blank(params):
        raise bad_config(f"`params` has to be a mapping or a list, not {type(params).__name__}")
    return script


def problems(config: Mapping[str, Any]) -> list[Complaint]:
    """What is wrong with the SQL of a configuration as written; templates pass until they are rendered."""
    complaints = one_of(config, SQL_KEYS, required=True)
    for key in present(config, SQL_KEYS):
        try:
            if not any(is_template(part) for part in pg_script.texts_of(config[key])):
                _script(config[key])
        except ToolError as error:
            complaints.append((key, error.message))
    return complaints


def _script(source: Any) -> DuckScript:
    statements = pg_script.split(source)
    together = not any(word in _ALONE for statement in statements for word in sql.leading_words(statement, 1))
    return DuckScript(pg_script.statements_of(source) if together else statements, together)


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection, together: bool = True) -> Iterator[None]:
    """A transaction around the block, undone by an exception; without ``together`` each statement has its own.

    Raises ``ToolError`` if the script then leaves one of its own open.
    """
    if together:
        run(connection, "BEGIN")
    try:
        yield
        if together:
            run(connection, "COMMIT")
        elif _is_open(connection):
            raise bad_config("the script begins a transaction without a COMMIT: nothing of it was kept")
    except BaseException:
        with suppress(duckdb.Error):  # there may be none
            connection.execute("ROLLBACK")
        raise


def _is_open(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute("BEGIN")
    except duckdb.Error:
        return True
    connection.execute("ROLLBACK")
    return False


def run(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyConnection:
    """Runs a statement of ours. Raises ``ToolError``."""
    try:
        return connection.execute(text)
    except duckdb.Error as error:
        raise duckdb_errors.tool_error(error) from None


def execute(connection: duckdb.DuckDBPyConnection, statement: sql.Statement, script: DuckScript) -> bool:
    """Runs a statement of the script; says whether it gives rows, which are then to be fetched from ``connection``.

    Raises ``ToolError`` with the line of the author's SQL.
    """
    with _placed(statement, script):
        command = extension_command(statement)
        if command is not None and load_bundled(connection, *command):
            return False
        statement.text.encode()  # duckdb would take text that is not valid for a wrong type
        parsed = connection.extract_statements(statement.text)
        values = _values(statement, script, parsed[-1].named_parameters if parsed else set())
        connection.execute(statement.text, values) if values is not None else connection.execute(statement.text)
        names = [column[0] for column in connection.description or ()]
        if not parsed or not names or names == ["Success"]:
            return False
        if duckdb.ExpectedResultType.CHANGED_ROWS in parsed[-1].expected_result_type:
            return _has_returning(statement.text)
        return True


@contextmanager
def _placed(statement: sql.Statement, script: DuckScript) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise duckdb_errors.tool_error(error, statement.text, first_line=statement.line) from None
    except (UnicodeError, RuntimeError):  # of the text, and of duckdb's binding for a value
        info = ErrorInfo("data", f"the statement of line {statement.line}, or a value of it, is not valid Unicode")
        raise ToolError(info) from None


def _values(statement: sql.Statement, script: DuckScript, names: set[str]) -> Any:
    if not names:
        return None
    if script.positional is None:
        unknown = sorted(name for name in names if name not in script.known)
        if unknown:
            raise bad_config(f"line {statement.line}: `params` has no `{unknown[0]}`, which the SQL names")
        return {name: script.known[name] for name in names}
    if len(names) > len(script.positional):
        raise bad_config(
            f"line {statement.line}: the SQL has {len(names)} placeholders, but only {len(script.positional)} values "
            "are left"
        )
    taken, script.positional = script.positional[: len(names)], script.positional[len(names) :]
    return taken


def _has_returning(text: str) -> bool:
    return any(
        token.kind == "word" and text[token.start : token.end].upper() == "RETURNING" for token in sql.tokens(text)
    )


def chunks(
    connection: duckdb.DuckDBPyConnection, size: int, statement: sql.Statement, script: DuckScript
) -> Iterator[list[dict[str, Any]]]:
    """The rows of the statement that ran last, at most ``size`` at once, computed as they are asked for.

    Raises ``ToolError`` as :func:`execute` does.
    """
    names = [column[0] for column in connection.description or ()]
    while True:
        with _placed(statement, script):
            rows = connection.fetchmany(size)
        if not rows:
            return
        yield [dict(zip(names, values, strict=True)) for values in rows]
