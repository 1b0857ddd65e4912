"""duckdb at both ends of a transfer: rows in chunks out of a script, rows into a table.

Whoever calls owns the connection and its transaction; nothing here commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import duckdb_errors, duckdb_script, sql
from noetl_celery.tools.duckdb_files import identifier
from noetl_celery.tools.keys import bad_config
from noetl_celery.tools.transfer_names import split_name
from noetl_celery.tools.transfer_rows import Group, Row
from noetl_celery.tools.transfer_values import (
    CannotCast,
    Cast,
    RawJson,
    as_boolean,
    as_bytes,
    as_json,
    as_number,
    as_scalar,
    as_text,
    kind_of,
)

_NUMBER = '"__noetl_row"'
_NUMBERS = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    }
)
_TABLE = """
SELECT schema_name, table_name FROM duckdb_tables()
WHERE database_name = current_database() AND lower(table_name) = lower($name)
  AND lower(schema_name) = lower(coalesce($schema, current_schema()))
ORDER BY table_name = $name DESC, schema_name = coalesce($schema, current_schema()) DESC LIMIT 1
"""
_COLUMNS = """
SELECT column_name, data_type FROM duckdb_columns()
WHERE database_name = current_database() AND schema_name = $schema AND table_name = $name ORDER BY column_index
"""
_KEY = """
SELECT unnest(constraint_column_names) FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'
  AND database_name = current_database() AND schema_name = $schema AND table_name = $name
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the target: its type, how values become text, and the SQL that makes a value of the text ``v``."""

    name: str
    type: str
    cast: Cast
    made_of: Callable[[str], str]


class DuckdbSource:
    """The rows of the last statement that returns any, computed as they are read."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, script: duckdb_script.DuckScript) -> None:
        """Runs the script. Raises ``ToolError`` as the duckdb tool does."""
        self._connection, self._script = connection, script
        self._statement: sql.Statement | None = None
        self._kept: list[Row] | None = None
        for number, statement in enumerate(script.statements):
            if duckdb_script.execute(connection, statement, script):
                self._statement, self._kept = statement, None
                if number < len(script.statements) - 1:  # the next statement ends the reading of this one
                    self._kept = [row for chunk in self._read(1000) for row in chunk]
        if self._statement is None:
            raise bad_config("the SQL of `source` returns no rows: end it with a query, or with RETURNING")

    def chunks(self, size: int) -> Iterator[list[Row]]:
        """The rows, at most ``size`` at once. Raises ``ToolError``."""
        if self._kept is None:
            yield from self._read(size)
            return
        for start in range(0, len(self._kept), size):
            yield self._kept[start : start + size]

    def _read(self, size: int) -> Iterator[list[Row]]:
        assert self._statement is not None
        of_json = {str(column[0]) for column in self._connection.description or () if str(column[1]) == "JSON"}
        for chunk in duckdb_script.chunks(self._connection, size, self._statement, self._script):
            for row in chunk:
                row.update({name: RawJson(row[name]) for name in of_json if row[name] is not None})
            yield list(chunk)


class DuckdbTarget:
    """A table of a duckdb database that rows are written to."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: Any) -> None:
        """Looks the table up. Raises ``ToolError``: ``config`` for a name that is none, ``sql`` if it is not there."""
        self._connection = connection
        schema, (name, _) = split_name(table)
        found = connection.execute(_TABLE, {"name": name, "schema": schema[0] if schema else None}).fetchone()
        if found is None:
            raise ToolError(ErrorInfo("sql", f"the table {table} does not exist in this duckdb database"))
        place = {"schema": found[0], "name": found[1]}
        self.name = f"{found[0]}.{found[1]}"
        self._table = f"{identifier(found[0])}.{identifier(found[1])}"
        self._columns = {name: _column(name, kind) for name, kind in connection.execute(_COLUMNS, place).fetchall()}
        self._key = [row[0] for row in connection.execute(_KEY, place).fetchall()]

    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return list(self._columns)

    def primary_key(self) -> list[str]:
        """The columns of the primary key; empty if the table has none."""
        return self._key

    def clear(self) -> None:
        """Removes every row."""
        duckdb_script.run(self._connection, f"DELETE FROM {self._table}")

    def write(self, group: Group, key: Sequence[str] | None) -> None:
        """Adds the rows, or with ``key`` replaces those that are there already; the last of several with one key wins.

        Raises ``ToolError``: ``data`` with row and column for a value that does not fit, else as the duckdb tool.
        """
        columns = [self._columns[name] for name in group.columns]
        lacking = [name for name in key or () if name not in group.columns]
        if lacking:
            raise ToolError(ErrorInfo("data", f"row {group.first} has nothing for `{lacking[0]}`, which is in the key"))
        values: list[Any] = [_texts(column, group, index) for index, column in enumerate(columns)]
        values.append(list(range(group.first, group.first + len(group.rows))))
        try:
            self._connection.execute(_insert(self._table, columns, key), [json.dumps(items) for items in values])
        except duckdb.Error as error:
            raise self._failure(error, columns, values, group) from None

    def _failure(
        self, error: duckdb.Error, columns: Sequence[Column], values: Sequence[list[Any]], group: Group
    ) -> ToolError:
        made = duckdb_errors.tool_error(error)
        if made.info.kind == "data":
            for index, column in enumerate(columns):
                row = self._misfit(column, values[index], values[-1])
                if row is not None:
                    what = f"{kind_of(group.rows[row - group.first][index])} that cannot be read as {column.type}"
                    made.info.message = f'row {row}, column "{column.name}": {what}'
                    return made
        made.info.message = f"rows {group.first} to {values[-1][-1]}: {made.info.message}"
        return made

    def _misfit(self, column: Column, texts: list[str | None], numbers: list[int]) -> int | None:
        """The first row whose text is no value of the column; asked beside the transaction, which has failed."""
        values = f"SELECT {_listed('VARCHAR', 'v')}, {_listed('BIGINT', 'n')}"
        query = f"SELECT min(n) FROM ({values}) WHERE v IS NOT NULL AND TRY({column.made_of('v')}) IS NULL"
        try:
            with self._connection.cursor() as beside:
                found = beside.execute(query, [json.dumps(texts), json.dumps(numbers)]).fetchone()
        except duckdb.Error:
            return None
        return found[0] if found is not None else None


def _column(name: str, kind: str) -> Column:
    base = kind.partition("(")[0]
    if kind.endswith("]") or base in {"STRUCT", "MAP", "UNION"}:
        return Column(name, kind, as_json, lambda v: f"CAST({v}::JSON AS {kind})")
    if base == "JSON":
        return Column(name, kind, as_json, lambda v: f"{v}::JSON")
    if base == "BLOB":
        return Column(name, kind, _blob, lambda v: f"unhex({v})")
    if base == "VARCHAR":
        return Column(name, kind, as_text, lambda v: v)
    cast = {"BOOLEAN": as_boolean}.get(base, as_number if base in _NUMBERS else as_scalar)
    return Column(name, kind, cast, lambda v: f"CAST({v} AS {kind})")


def _blob(value: Any) -> str | None:
    raw = as_bytes(value)
    return None if raw is None else raw.hex()


def _texts(column: Column, group: Group, index: int) -> list[str | None]:
    texts: list[str | None] = []
    for number, row in enumerate(group.rows, group.first):
        try:
            text = None if row[index] is None else column.cast(row[index])
            if text is not None and not text.isascii():
                text.encode()
        except (CannotCast, UnicodeError) as error:
            what = str(error) if isinstance(error, CannotCast) else "text with half a surrogate pair"
            message = f'row {number}, column "{column.name}": {what} cannot be stored as {column.type}'
            raise ToolError(ErrorInfo("data", message)) from None
        texts.append(text)
    return texts


def _listed(kind: str, name: str) -> str:
    """A column of values out of a parameter. As JSON: binding a list takes duckdb half a millisecond for each item."""
    return f"unnest(from_json(?, '[\"{kind}\"]')) AS {name}"


def _insert(table: str, columns: Sequence[Column], key: Sequence[str] | None) -> str:
    """One statement for many rows: a list of texts for each column, and the numbers of the rows."""
    names = [identifier(column.name) for column in columns]
    listed = ", ".join(names)
    texts = ", ".join(_listed("VARCHAR", name) for name in names)
    made = ", ".join(f"{column.made_of(name)} AS {name}" for column, name in zip(columns, names, strict=True))
    source = f"(SELECT {made}, {_NUMBER} FROM (SELECT {texts}, {_listed('BIGINT', _NUMBER)}))"
    if key is None:
        return f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {source} ORDER BY {_NUMBER}"
    keys = [identifier(name) for name in key]
    same = ", ".join(keys)
    # Keys with a NULL are never equal to each other.
    apart = f"CASE WHEN {' OR '.join(f'{name} IS NULL' for name in keys)} THEN {_NUMBER} END"
    latest = f"row_number() OVER (PARTITION BY {same}, {apart} ORDER BY {_NUMBER} DESC) = 1"
    assign = ", ".join(f"{name} = EXCLUDED.{name}" for name in names if name not in keys)
    return (
        f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {source} QUALIFY {latest} ORDER BY {_NUMBER} "
        f"ON CONFLICT ({same}) DO {f'UPDATE SET {assign}' if assign else 'NOTHING'}"
    )
