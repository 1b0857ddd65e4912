"""PostgreSQL at both ends of a transfer: rows in chunks out of a query, rows by COPY into a table.

Whoever calls owns the connection and its transaction; nothing here commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql as pg_sql
from psycopg.types.string import TextLoader

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import pg, pg_errors, pg_script, sql
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
    as_list,
    as_number,
    as_scalar,
    as_text,
    kind_of,
)

_CURSOR = "noetl_transfer_source"
_NUMBER = "__noetl_row"
#: statements that a cursor can be declared for, unless one of the words below is in them
_READS = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "INTO"})
#: where a COPY failed: line and column, in any language
_COPY_PLACE = re.compile(r"^COPY .+?, \S+ (\d+)(?:, \S+ (\"?[^:]+?\"?)\s*:)?", re.MULTILINE)

_TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind IN ('v', 'f') OR c.relrowsecurity
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'f') AND c.relname IN (%(name)s, %(folded)s)
  AND CASE WHEN %(schema)s::text IS NULL THEN pg_table_is_visible(c.oid)
      ELSE n.nspname IN (%(schema)s, %(folded_schema)s) END
ORDER BY c.relname = %(name)s DESC, n.nspname = %(schema)s DESC LIMIT 1
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.typname, b.typcategory::text, e.typname, e.typcategory::text,
  a.attnum = ANY(i.indkey)
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
  JOIN pg_type AS b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
  LEFT JOIN pg_type AS e ON e.oid = b.typelem AND b.typcategory = 'A'
  LEFT JOIN pg_index AS i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the target: its type as SQL spells it, how values become text for it, whether it is in the key."""

    name: str
    type: str
    cast: Cast
    primary: bool


class PostgresSource:
    """The rows of the last statement that returns any; the statements run in the order in which they stand.

    A plain query at the end is read through a cursor of the server. Of any other statement (``… RETURNING``) the driver
    holds the whole answer, as the postgres tool would.
    """

    def __init__(self, connection: pg.Connection, script: pg_script.Script) -> None:
        """Runs the script up to its first row. Raises ``ToolError`` as the postgres tool does."""
        self._script = script
        self._cursor = connection.cursor()
        self._fetches = False
        *before, last = script.statements
        for statement in before:
            self._run(connection, statement)
        limit(connection, script)
        if _readable(last):
            # on a line of its own, so that errors name the author's lines
            declared = sql.Statement(f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR\n{last.text}", last.line - 1)
            self._cursor = _exact(connection.cursor())
            pg_script.execute(self._cursor, declared, script)
            self._fetches = True
        else:
            self._run(connection, last)
        if not self._fetches and self._cursor.description is None:
            raise bad_config("the SQL of `source` returns no rows: end it with a query, or with RETURNING")

    def _run(self, connection: pg.Connection, statement: sql.Statement) -> None:
        limit(connection, self._script)
        cursor = _exact(connection.cursor())
        pg_script.execute(cursor, statement, self._script)
        if cursor.description is not None:
            self._cursor.close()
            self._cursor = cursor

    def chunks(self, size: int) -> Iterator[list[Row]]:
        """The rows, at most ``size`` at once. Raises ``ToolError``."""
        while True:
            try:
                if self._fetches:
                    self._cursor.execute(f"FETCH FORWARD {int(size)} FROM {_CURSOR}")
                    rows = self._cursor.fetchall()
                else:
                    rows = self._cursor.fetchmany(size)
            except psycopg.Error as error:
                raise pg_script.failure(error, self._script) from None
            names = [column.name for column in self._cursor.description or ()]
            if not rows:
                return
            yield [dict(zip(names, values, strict=True)) for values in rows]


def _exact(cursor: psycopg.Cursor[tuple[Any, ...]]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Values as they are: an interval with its months, JSON with its own spelling."""
    cursor.adapters.register_loader("interval", TextLoader)
    for name in ("json", "jsonb"):
        cursor.adapters.register_loader(name, _RawJsonLoader)
    return cursor


class _RawJsonLoader(TextLoader):
    def load(self, data: Any) -> Any:
        return RawJson(bytes(data).decode())


def _readable(statement: sql.Statement) -> bool:
    if sql.leading_words(statement.text.lstrip("( \t\r\n"), 1)[:1] not in ([word] for word in _READS):
        return False
    words = (statement.text[token.start : token.end] for token in sql.tokens(statement.text) if token.kind == "word")
    return not any(word.upper() in _CHANGES for word in words)


def limit(connection: pg.Connection, script: pg_script.Script) -> None:
    """The time that is left becomes the limit of what follows in this transaction. Raises ``ToolError`` if none is."""
    if script.deadline is not None:
        connection.execute(f"SET LOCAL statement_timeout = {script.milliseconds()}")


class PostgresTarget:
    """A table that rows are written to, by COPY; through a temporary table where COPY alone cannot do it."""

    def __init__(self, connection: pg.Connection, table: Any, script: pg_script.Script) -> None:
        """Looks the table up. Raises ``ToolError``: ``config`` for a name that is none, code 42P01 if it is not there.

        ``script`` carries the time limit only.
        """
        self._connection, self._script = connection, script
        schema, name = split_name(table)
        found = connection.execute(
            _TABLE,
            {"schema": _spelt(schema), "name": _spelt(name), "folded": _folded(name), "folded_schema": _folded(schema)},
        ).fetchone()
        if found is None:
            info = ErrorInfo(
                "postgres", f"the table {table} does not exist, or is not on the search path", code="42P01"
            )
            raise ToolError(info, extra={"pg": pg_errors.envelope_part("42P01")})
        oid, schema_name, table_name, self._needs_staging = found
        self.name = f"{schema_name}.{table_name}"
        self._table = pg_sql.Identifier(schema_name, table_name)
        rows = connection.execute(_COLUMNS, (oid,)).fetchall()
        self._columns = {row[0]: Column(row[0], row[1], _cast(*row[2:6]), bool(row[6])) for row in rows}
        self._stages: dict[tuple[str, ...], pg_sql.Identifier] = {}

    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return list(self._columns)

    def primary_key(self) -> list[str]:
        """The columns of the primary key; empty if the table has none."""
        return [column.name for column in self._columns.values() if column.primary]

    def clear(self) -> None:
        """Removes every row (TRUNCATE, in this transaction)."""
        limit(self._connection, self._script)
        self._execute(pg_sql.SQL("TRUNCATE TABLE {}").format(self._table))

    def write(self, group: Group, key: Sequence[str] | None) -> None:
        """Adds the rows, or with ``key`` replaces those that are there already; the last of several with one key wins.

        Raises ``ToolError``: ``data`` with row and column for a value that does not fit, else as the postgres tool.
        """
        limit(self._connection, self._script)
        columns = [self._columns[name] for name in group.columns]
        if key is None and not self._needs_staging:
            self._copy(self._table, columns, group, numbered=False)
            return
        lacking = [name for name in key or () if name not in group.columns]
        if lacking:
            raise ToolError(ErrorInfo("data", f"row {group.first} has nothing for `{lacking[0]}`, which is in the key"))
        stage = self._stage(group.columns)
        self._copy(stage, columns, group, numbered=True)
        self._execute(_merge(self._table, stage, group.columns, key), group)
        self._execute(pg_sql.SQL("TRUNCATE TABLE {}").format(stage))

    def _stage(self, names: tuple[str, ...]) -> pg_sql.Identifier:
        if names not in self._stages:
            stage = pg_sql.Identifier("pg_temp", f"noetl_transfer_{len(self._stages)}")
            text = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}, NULL::bigint AS {} FROM {} WITH NO DATA"
            self._execute(pg_sql.SQL(text).format(stage, _list(names), pg_sql.Identifier(_NUMBER), self._table))
            self._stages[names] = stage
        return self._stages[names]

    def _copy(self, into: pg_sql.Identifier, columns: Sequence[Column], group: Group, *, numbered: bool) -> None:
        names = [*group.columns, _NUMBER] if numbered else list(group.columns)
        rows = [_texts(columns, values, number) for number, values in enumerate(group.rows, group.first)]
        try:
            with (
                self._connection.cursor() as cursor,
                cursor.copy(pg_sql.SQL("COPY {} ({}) FROM STDIN").format(into, _list(names))) as copy,
            ):
                for number, values in enumerate(rows, group.first):
                    copy.write_row([*values, str(number)] if numbered else values)
        except psycopg.Error as error:
            raise self._failure(error, columns, group) from None

    def _execute(self, statement: pg_sql.Composed, group: Group | None = None) -> None:
        try:
            self._connection.execute(statement)
        except psycopg.Error as error:
            raise self._failure(error, (), group) from None

    def _failure(self, error: psycopg.Error, columns: Sequence[Column], group: Group | None) -> ToolError:
        made = pg_script.failure(error, self._script)
        diag = error.diag
        place = _COPY_PLACE.search(diag.context or "") if group is not None else None
        if place is not None and group is not None:
            row = group.first + int(place[1]) - 1
            named = next((column for column in columns if column.name == (place[2] or "").strip('"')), None)
            if named is not None:
                value = group.rows[row - group.first][group.columns.index(named.name)]
                what = f"{kind_of(value)} that cannot be read as {named.type}"
                made.info.message = f'row {row}, column "{named.name}": {what}'
            else:
                made.info.message = f"row {row}: {_brief(diag)}"
        elif group is not None and diag.message_primary:
            last = group.first + len(group.rows) - 1
            made.info.message = f"rows {group.first} to {last}: {_brief(diag)}"
        return made


def _brief(diag: Any) -> str:
    """The server's message; of details only those that show no whole row."""
    detail = diag.message_detail if diag.message_detail and diag.sqlstate in {"23505", "23503"} else None
    parts = [diag.message_primary or "", f"detail: {detail}" if detail else "", diag.message_hint or ""]
    return "; ".join(part for part in parts if part)


def _texts(columns: Sequence[Column], values: Sequence[Any], number: int) -> list[str | None]:
    texts: list[str | None] = []
    for column, value in zip(columns, values, strict=True):
        try:
            text = None if value is None else column.cast(value)
            if text is not None:
                _check_characters(text)
        except CannotCast as error:
            message = f'row {number}, column "{column.name}": {error} cannot be stored as {column.type}'
            raise ToolError(ErrorInfo("data", message)) from None
        texts.append(text)
    return texts


def _check_characters(text: str) -> None:
    if "\0" in text:
        raise CannotCast("text with a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise CannotCast("text with half a surrogate pair") from None


def _merge(
    table: pg_sql.Identifier, stage: pg_sql.Identifier, columns: Sequence[str], key: Sequence[str] | None
) -> pg_sql.Composed:
    number = pg_sql.Identifier(_NUMBER)
    if key is None:
        text = "INSERT INTO {} ({}) SELECT {} FROM {} ORDER BY {}"
        return pg_sql.SQL(text).format(table, _list(columns), _list(columns), stage, number)
    # Keys with a NULL are never equal to each other.
    distinct = pg_sql.SQL("{}, CASE WHEN {} THEN {} END").format(
        _list(key), pg_sql.SQL(" OR ").join(pg_sql.SQL("{} IS NULL").format(pg_sql.Identifier(k)) for k in key), number
    )
    changed = [name for name in columns if name not in key]
    assign = pg_sql.SQL(", ").join(
        pg_sql.SQL("{} = EXCLUDED.{}").format(pg_sql.Identifier(name), pg_sql.Identifier(name)) for name in changed
    )
    action = pg_sql.SQL("UPDATE SET {}").format(assign) if changed else pg_sql.SQL("NOTHING")
    return pg_sql.SQL(
        "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM "
        "(SELECT DISTINCT ON ({distinct}) * FROM {stage} ORDER BY {distinct}, {number} DESC) AS latest "
        "ORDER BY {number} ON CONFLICT ({key}) DO {action}"
    ).format(
        table=table,
        columns=_list(columns),
        distinct=distinct,
        stage=stage,
        number=number,
        key=_list(key),
        action=action,
    )


def _list(names: Sequence[str]) -> pg_sql.Composed:
    return pg_sql.SQL(", ").join(pg_sql.Identifier(name) for name in names)


def _spelt(part: tuple[str, bool] | None) -> str | None:
    return None if part is None else part[0]


def _folded(part: tuple[str, bool] | None) -> str | None:
    """An unquoted name as SQL would read it."""
    if part is None:
        return None
    return part[0] if part[1] else part[0].lower()


def _cast(name: str, category: str, element: str | None, element_category: str | None) -> Cast:
    if name in {"json", "jsonb"}:
        return as_json
    if name == "bytea":
        return _bytea
    if category == "A":
        inner = _cast(element or "text", element_category or "S", None, None)
        return lambda value: _array(value, inner)
    return {"S": as_text, "N": as_number, "B": as_boolean}.get(category, as_scalar)


def _bytea(value: Any) -> str | None:
    raw = as_bytes(value)
    return None if raw is None else "\\x" + raw.hex()


def _array(value: Any, inner: Cast) -> str | None:
    items = as_list(value)
    if not isinstance(items, list):
        return items
    return "{" + ",".join(_element(item, inner) for item in items) + "}"


def _element(item: Any, inner: Cast) -> str:
    if isinstance(item, list | tuple) and inner is not as_json:
        return _array(list(item), inner) or "NULL"
    text = inner(item)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
