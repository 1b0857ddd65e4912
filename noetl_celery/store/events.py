"""The execution's story, appended only; one line per transition, never one per row."""

from __future__ import annotations

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
    """Cuts error messages at 500 characters and replaces large values by their size: events stay small."""
    if isinstance(value, Mapping):
        return {
            key: item[:MESSAGE_LIMIT] if key == "message" and isinstance(item, str) else bounded(item)
            for key, item in value.items()
        }
    if isinstance(value, str) and len(value) > VALUE_LIMIT:
        return {"_truncated": True, "_size": len(value)}
    if isinstance(value, list) and len(text := str(value)) > VALUE_LIMIT:
        return {"_truncated": True, "_size": len(text)}
    return value
