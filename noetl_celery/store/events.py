"""The execution's story, appended only; one line per transition, never one per row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy.engine import Connection

from noetl_celery.engine.decision import Event
from noetl_celery.store.db import every, execute

MESSAGE_LIMIT = 500
VALUE_LIMIT = 10_000


def append(
    connection: Connection,
    execution_id: int,
    events: Iterable[Event],
    *,
    frame_id: int | None = None,
) -> None:
    """Writes events in their order, in the transaction that makes them true."""
    lines = [
        {
            "type": event.type,
            "status": event.status,
            "node": event.node,
            "stage": event.stage_id,
            "result": bounded(event.result),
            "context": bounded(event.context),
            "meta": bounded(event.meta),
        }
        for event in events
    ]
    if not lines:
        return
    execute(
        connection,
        """
        INSERT INTO noetl.event
               (execution_id, event_type, status, node_name, stage_id, frame_id, result, context, meta)
        SELECT %(execution)s, e.type, e.status, e.node, e.stage, %(frame)s, e.result, e.context, e.meta
        FROM jsonb_to_recordset(%(lines)s)
             AS e(type text, status text, node text, stage bigint, result jsonb, context jsonb, meta jsonb)
        """,
        execution=execution_id,
        frame=frame_id,
        lines=Jsonb(lines),
    )


def read(connection: Connection, execution_id: int, *, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
    """Events of an execution with an id above ``after``, oldest first, at most ``limit``."""
    return every(
        connection,
        """
        SELECT event_id, execution_id, event_type, node_name, stage_id, frame_id, status, duration,
               context, result, meta, created_at
        FROM noetl.event WHERE execution_id = %(execution)s AND event_id > %(after)s
        ORDER BY event_id LIMIT %(limit)s
        """,
        execution=execution_id,
        after=after,
        limit=limit,
    )


def bounded(value: Any) -> Any:
    """Cuts error messages at 500 characters and replaces large values by their size: events stay small.

    Text and numbers that ``jsonb`` cannot keep are replaced: an event must not undo the decision that it tells of.
    """
    if isinstance(value, Mapping):
        return {
            plain(str(key)): plain(item[:MESSAGE_LIMIT])
            if key == "message" and isinstance(item, str)
            else bounded(item)
            for key, item in value.items()
        }
    if isinstance(value, str):
        return plain(value) if len(value) <= VALUE_LIMIT else {"_truncated": True, "_size": len(value)}
    if isinstance(value, list | tuple):
        size = len(str(value))
        return [bounded(item) for item in value] if size <= VALUE_LIMIT else {"_truncated": True, "_size": size}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def plain(text: str) -> str:
    """Text without NUL characters and half surrogate pairs."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
