"""The execution's story, appended only; one line per transition, never one per row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.types.json import Jsonb

from noetl_celery.engine.decision import Event
from noetl_celery.engine.replay import TURN
from noetl_celery.hiding import hidden
from noetl_celery.store.db import Connection, every, execute, one

_SECRET = re.compile(r"passw|secret|token|api_?key|credential|authorization|private_?key|\bdsn\b", re.IGNORECASE)
MESSAGE_LIMIT = 500
VALUE_LIMIT = 10_000
#: nothing of an execution happened before it: older partitions need not be looked at
_SINCE = "created_at >= (SELECT created_at FROM noetl.execution WHERE execution_id = %(execution)s)"
#: written only where it is asked for: it concerns many partitions, the insert itself one
_PARENT = f"""
    CASE WHEN e.parent IS NOT NULL THEN (
        SELECT max(p.event_id) FROM noetl.event p
        WHERE p.execution_id = %(execution)s AND p.stage_id = e.stage AND p.event_type = e.parent AND p.{_SINCE}) END
"""
#: what people are told of an execution: all but the books' own
_OF_STORY = f"FROM noetl.event WHERE execution_id = %(execution)s AND {_SINCE} AND event_type <> '{TURN}'"
_STORY = f"""
    SELECT event_id, execution_id, parent_event_id, parent_execution_id, event_type, node_name, node_type, stage_id,
           frame_id, status, duration, context, result, meta, created_at {_OF_STORY}
"""


def append(
    connection: Connection,
    execution_id: int,
    events: Iterable[Event],
    *,
    frame_id: int | None = None,
) -> None:
    """Writes events in their order, in the transaction that makes them true."""
    lines: list[dict[str, Any]] = []
    written: set[tuple[int | None, str | None]] = set()
    for event in events:
        if (event.stage_id, event.parent) in written:
            # Its parent is in this batch, and a statement does not see the rows that it inserts itself.
            _insert(connection, execution_id, frame_id, lines)
            lines, written = [], set()
        written.add((event.stage_id, event.type))
        lines.append(_line(event))
    if lines:
        _insert(connection, execution_id, frame_id, lines)


def _line(event: Event) -> dict[str, Any]:
    return {
        "type": event.type,
        "status": event.status,
        "node": event.node,
        "stage": event.stage_id,
        "kind": event.node_type,
        "parent": event.parent,
        "result": bounded(event.result),
        "context": storable(event.context) if event.book else bounded(sanitised(event.context)),
        "meta": bounded(event.meta),
    }


def _insert(connection: Connection, execution_id: int, frame_id: int | None, lines: list[dict[str, Any]]) -> None:
    execute(
        connection,
        f"""
        INSERT INTO noetl.event (execution_id, parent_execution_id, parent_event_id, event_type, status, node_name,
                                 node_type, stage_id, frame_id, duration, result, context, meta)
        SELECT %(execution)s, (SELECT parent_execution_id FROM noetl.execution WHERE execution_id = %(execution)s),
               {_PARENT if any(line["parent"] for line in lines) else "NULL"},
               e.type, e.status, e.node, e.kind, e.stage, %(frame)s,
               CASE WHEN e.type = 'step.exit' THEN (
                   SELECT extract(epoch FROM clock_timestamp() - s.opened_at)
                   FROM noetl.stage s WHERE s.stage_id = e.stage) END,
               e.result, e.context, e.meta
        FROM jsonb_to_recordset(%(lines)s)
             AS e(type text, status text, node text, kind text, parent text, stage bigint,
                  result jsonb, context jsonb, meta jsonb)
        """,
        execution=execution_id,
        frame=frame_id,
        lines=Jsonb(lines),
    )


#: behind the last event
LATEST = 2**63 - 1


def read(connection: Connection, execution_id: int, *, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
    """Events of an execution with an id above ``after``, oldest first, at most ``limit``; none of the books' own."""
    return every(
        connection,
        f"{_STORY} AND event_id > %(after)s ORDER BY event_id LIMIT %(limit)s",
        execution=execution_id,
        after=after,
        limit=limit,
    )


def latest(
    connection: Connection, execution_id: int, *, before: int = LATEST, skip: int = 0, limit: int = 1000
) -> list[dict[str, Any]]:
    """Events of an execution with an id below ``before``, the latest first, but for ``skip`` of those; else as
    :func:`read`."""
    return every(
        connection,
        f"{_STORY} AND event_id < %(before)s ORDER BY event_id DESC OFFSET %(skip)s LIMIT %(limit)s",
        execution=execution_id,
        before=before,
        skip=skip,
        limit=limit,
    )


def count(connection: Connection, execution_id: int) -> int:
    """How many events :func:`read` would tell in all."""
    row = one(connection, f"SELECT count(*) AS n {_OF_STORY}", execution=execution_id)
    return int(row["n"]) if row else 0


def turns(connection: Connection, execution_id: int) -> list[dict[str, Any]]:
    """The records of an execution's turns, oldest first: ``{event_id, record}``."""
    return every(
        connection,
        f"""
        SELECT event_id, context AS record FROM noetl.event
        WHERE execution_id = %(execution)s AND event_type = '{TURN}' AND {_SINCE} ORDER BY event_id
        """,
        execution=execution_id,
    )


def sanitised(value: Any) -> Any:
    """A context without credentials: no keys that sound like secrets, none that start with ``_`` (but for the summary
    of step results, which holds no data)."""
    if isinstance(value, Mapping):
        return {
            key: sanitised(item)
            for key, item in value.items()
            if not _SECRET.search(str(key)) and (not str(key).startswith("_") or key == "_step_results")
        }
    if isinstance(value, list | tuple):
        return [sanitised(item) for item in value]
    return value


def bounded(value: Any) -> Any:
    """Hides secrets, cuts error messages at 500 characters and replaces large values by their size: events stay small.

    Text and numbers that ``jsonb`` cannot keep are replaced: an event must not undo the decision that it tells of.
    """
    if isinstance(value, Mapping):
        return {
            plain(str(key)): plain(hidden(item)[:MESSAGE_LIMIT])
            if key == "message" and isinstance(item, str)
            else bounded(item)
            for key, item in value.items()
        }
    if isinstance(value, str):
        return plain(hidden(value)) if len(value) <= VALUE_LIMIT else {"_truncated": True, "_size": len(value)}
    if isinstance(value, list | tuple):
        size = len(str(value))
        return [bounded(item) for item in value] if size <= VALUE_LIMIT else {"_truncated": True, "_size": size}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def storable(value: Any) -> Any:
    """The same as far as ``jsonb`` can keep it."""
    if isinstance(value, Mapping):
        return {plain(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if isinstance(value, str):
        return plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(text: str) -> str:
    """Text without NUL characters and half surrogate pairs."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
