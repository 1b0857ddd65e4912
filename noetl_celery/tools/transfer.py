"""The ``transfer`` tool: rows from a source into a table, in chunks and in one transaction of the target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import duckdb_attach, duckdb_files, duckdb_script, pg, pg_script
from noetl_celery.tools import transfer_config as keys
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.http import HttpTool
from noetl_celery.tools.keys import Complaint, check_seconds, deadline_of
from noetl_celery.tools.transfer_duckdb import DuckdbSource, DuckdbTarget
from noetl_celery.tools.transfer_postgres import PostgresSource, PostgresTarget, limit
from noetl_celery.tools.transfer_rows import Group, Row, Shape, rows_of

#: rows that an http source may send; they are written, and no result
MOST_HTTP_BYTES = 64 * 1024 * 1024


class Source(Protocol):
    """Where rows come from, a chunk of at most ``size`` at a time. Raises ``ToolError``."""

    def chunks(self, size: int) -> Iterator[list[Row]]: ...


class Target(Protocol):
    """A table in an open transaction. Every method raises ``ToolError``."""

    name: str

    def columns(self) -> list[str]: ...

    def primary_key(self) -> list[str]: ...

    def clear(self) -> None: ...

    def write(self, group: Group, key: Sequence[str] | None) -> None: ...


@dataclass(slots=True)
class _Open:
    """What a running transfer holds: everything in ``stack`` is undone by an exception, and committed without one."""

    stack: ExitStack
    call: ToolCall
    transfer: keys.Transfer
    deadline: float | None
    #: of a postgres source, which a target in the same database shares
    connection: pg.Connection | None = None
    place: str | None = None


class TransferTool:
    """Moves rows. The result: ``{status, rows, row_count, transferred, chunks, mode, source, target, duration}``.

    All rows are written, or none: the target has one transaction. A source with the same postgres credential is part of
    it; any other is committed after the target, so a source that changes data may do so again after a crash between
    the two.
    """

    kind = "transfer"
    raw_keys: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._http = HttpTool(max_body_bytes=MOST_HTTP_BYTES)

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Kinds and keys of both ends, modes, the table's name, SQL that cannot work."""
        return [*keys.problems(config), *check_seconds(config, "timeout")]

    def run(self, call: ToolCall) -> Any:
        """Transfers the rows. Raises ``ToolError``: that of the tool of either end, or ``data`` with the row."""
        started = time.monotonic()
        transfer = keys.read(call.config)
        deadline = deadline_of(call.config, call.deadline)
        try:
            with ExitStack() as stack:
                opened = _Open(stack, call, transfer, deadline)
                source = self._source(opened)
                rows, chunks, name = _move(source, opened)
        except psycopg.Error as error:
            # raised by BEGIN and COMMIT: a lost connection, or a constraint that was deferred
            raise pg.tool_error(error) from None
        return Reply(
            {
                "status": "success",
                **dict.fromkeys(("rows", "row_count", "transferred"), rows),
                "chunks": chunks,
                "mode": transfer.mode,
                "source": {"kind": transfer.source_kind},
                "target": {"kind": transfer.target_kind, "table": name},
                "duration": round(time.monotonic() - started, 3),
            }
        )

    def close(self) -> None:
        """Closes the connections that this tool keeps; may be called twice."""
        self._http.close()
        pg.close_all()

    def _source(self, opened: _Open) -> Source:
        transfer = opened.transfer
        makers: Mapping[str, Callable[[_Open], Source]] = {
            "data": _data_source,
            "http": self._http_source,
            "postgres": _postgres_source,
            "duckdb": _duckdb_source,
        }
        return makers[transfer.source_kind](opened)

    def _http_source(self, opened: _Open) -> Source:
        config = {key: value for key, value in opened.transfer.source.items() if key not in ("path", "data_path")}
        reply: Reply = self._http.run(
            ToolCall(
                config=config,
                input={},
                credential=opened.call.credential,
                print=opened.call.print,
                names=opened.call.names,
                deadline=opened.deadline,
            )
        )
        return _Rows(rows_of(reply.data, keys.path_of(opened.transfer.source)))


class _Rows:
    """Rows that are there already."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def chunks(self, size: int) -> Iterator[list[Row]]:
        for start in range(0, len(self._rows), size):
            yield self._rows[start : start + size]


def _data_source(opened: _Open) -> Source:
    source = opened.transfer.source
    return _Rows(rows_of(source.get("data", source.get("rows")), keys.path_of(source)))


def _postgres_source(opened: _Open) -> Source:
    script = pg_script.read(opened.transfer.source, opened.deadline)
    credential = pg_script.credential_of(opened.transfer.source, opened.call.credential)
    opened.connection, opened.place = _begin(opened, credential, script), pg.conninfo(credential)
    return PostgresSource(opened.connection, script)


def _begin(opened: _Open, credential: Mapping[str, Any], script: pg_script.Script) -> pg.Connection:
    """A connection in a transaction; both end with the stack."""
    script.milliseconds()  # no connection for what is too late
    connection = opened.stack.enter_context(pg.connection(credential, timeout=script.remaining()))
    if script.touches_session():
        opened.stack.callback(connection.close)
    opened.stack.enter_context(connection.transaction())
    return connection


def _duckdb_source(opened: _Open) -> Source:
    source = opened.transfer.source
    script = duckdb_script.read(source)
    grants = duckdb_attach.grants(source, opened.call.credential, script)
    path = _duckdb_path(opened, source)
    connection = opened.stack.enter_context(duckdb_files.connection(path, opened.deadline))
    opened.stack.enter_context(duckdb_attach.granted(connection, path, grants, script))
    together = script.together and not any(grant.kind == "postgres" for grant in grants)
    opened.stack.enter_context(duckdb_script.transaction(connection, together))
    return DuckdbSource(connection, script)


def _duckdb_path(opened: _Open, fields: Mapping[str, Any]) -> str:
    return duckdb_files.path_of(fields.get("database"), opened.call.names.get("execution_id"))


def _target(opened: _Open) -> Target:
    target = opened.transfer.target
    if opened.transfer.target_kind == "duckdb":
        made = opened.stack.enter_context(duckdb_files.connection(_duckdb_path(opened, target), opened.deadline))
        opened.stack.enter_context(duckdb_script.transaction(made))
        return DuckdbTarget(made, target["table"])
    credential = pg_script.credential_of(target, opened.call.credential)
    shared = opened.connection if opened.place == pg.conninfo(credential) else None
    script = pg_script.Script([], deadline=opened.deadline)
    connection = shared or _begin(opened, credential, script)
    limit(connection, script)
    return PostgresTarget(connection, target["table"], script)


def _move(source: Source, opened: _Open) -> tuple[int, int, str]:
    """Reads and writes chunk by chunk; returns rows, chunks and the table's name."""
    transfer = opened.transfer
    chunks = source.chunks(transfer.chunk_rows)
    # The first chunk comes before the target's transaction: whatever the source does first takes its time there.
    chunk = next(chunks, None)
    target = _target(opened)
    shape = Shape(transfer.mapping, target.columns(), target.name)
    key = upsert_key(transfer, target, shape)
    if chunk is not None and transfer.source_kind in ("postgres", "duckdb"):
        shape.check_source(chunk[0])
    if transfer.mode == "replace":
        target.clear()
    rows = count = 0
    while chunk is not None:
        if opened.deadline is not None and time.monotonic() >= opened.deadline:
            raise ToolError(ErrorInfo("timeout", f"the time of this task was over after {rows} rows; none was kept"))
        for group in shape.groups(chunk, rows + 1):
            target.write(group, key)
        rows, count = rows + len(chunk), count + 1
        chunk = next(chunks, None)
    return rows, count, target.name


def upsert_key(transfer: keys.Transfer, target: Target, shape: Shape) -> list[str] | None:
    """The columns that an upsert finds its rows by; None for other modes. Raises ``ToolError`` where there are none."""
    if transfer.mode != "upsert":
        return None
    if transfer.key:
        return [shape.column(name) for name in transfer.key]
    key = target.primary_key()
    if not key:
        text = f"`upsert` needs `key`, the columns of a unique constraint: {target.name} has no primary key"
        raise ToolError(ErrorInfo("config", text))
    return key
