"""The inbox of an execution: durable notes, each consumed once under the execution's lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Json

from noetl_celery.engine.state import Signal
from noetl_celery.store.db import Connection, Reply, ask, changed, every, execute, one


@dataclass(frozen=True, slots=True)
class Inbox:
    """Signals read under the lock, in order, with the ids to consume them by."""

    ids: tuple[int, ...]
    signals: tuple[Signal, ...]


def add(
    connection: Connection,
    execution_id: int,
    type_: str,
    data: Mapping[str, Any] | None = None,
    *,
    republish_seconds: float,
    delay_seconds: float = 0.0,
) -> None:
    """Leaves a signal, in the transaction of the fact it tells. Unread ones are announced again by the sweep."""
    execute(
        connection,
        """
        INSERT INTO noetl.signal (execution_id, type, data, due_at, publish_at)
        VALUES (%(execution)s, %(type)s, %(data)s, clock_timestamp() + %(delay)s * interval '1 second',
                clock_timestamp() + (%(delay)s + %(republish)s) * interval '1 second')
        """,
        execution=execution_id,
        type=type_,
        data=Json(data or {}),
        delay=delay_seconds,
        republish=0.0 if delay_seconds else republish_seconds,
    )


def telling(type_: str, data: str, of: str) -> str:
    """SQL that leaves a signal for the ``execution_id`` of each row of ``of``, as :func:`add` does, as a part of the
    statement that makes the fact. ``type_`` and ``data`` are SQL; ``%(again)s`` are its ``republish_seconds``."""
    return f"""
        INSERT INTO noetl.signal (execution_id, type, data, due_at, publish_at)
        SELECT execution_id, {type_}, {data}, clock_timestamp(), clock_timestamp() + %(again)s * interval '1 second'
        FROM {of}
    """


def pending(connection: Connection, execution_id: int) -> Reply[bool]:
    """Is there anything to read? Asked without the lock."""
    asked = ask(
        connection,
        """
        SELECT EXISTS (SELECT FROM noetl.signal
                       WHERE execution_id = %(execution)s AND due_at <= clock_timestamp()) AS any
        """,
        execution=execution_id,
    )
    return lambda: bool(asked()[0]["any"])


def read(connection: Connection, execution_id: int, limit: int) -> Reply[Inbox]:
    """The due signals, oldest first; call it after the lock, in a statement of its own, to see what was committed."""
    asked = ask(
        connection,
        """
        SELECT signal_id, type, data FROM noetl.signal
        WHERE execution_id = %(execution)s AND due_at <= clock_timestamp()
        ORDER BY signal_id LIMIT %(limit)s
        """,
        execution=execution_id,
        limit=limit,
    )

    def inbox() -> Inbox:
        rows = asked()
        return Inbox(tuple(row["signal_id"] for row in rows), tuple(Signal(row["type"], row["data"]) for row in rows))

    return inbox


def seconds_left(connection: Connection, execution_id: int, stage_id: int) -> float | None:
    """How long the stage may go on by its timeout, below 0 if it is over; None without a timeout that is to come."""
    row = one(
        connection,
        """
        SELECT extract(epoch FROM due_at - clock_timestamp())::float8 AS seconds FROM noetl.signal
        WHERE execution_id = %(execution)s AND type = 'stage.timeout' AND (data ->> 'stage')::bigint = %(stage)s
        """,
        execution=execution_id,
        stage=stage_id,
    )
    return None if row is None else float(row["seconds"])


def drop_timers(connection: Connection, execution_id: int) -> None:
    """Removes what is due later: the execution has ended."""
    execute(
        connection,
        "DELETE FROM noetl.signal WHERE execution_id = %(execution)s AND type IN ('stage.timeout', 'stage.reclaim')",
        execution=execution_id,
    )


def unread(connection: Connection, *, limit: int, republish_seconds: float) -> list[int]:
    """Executions with signals that nobody read in time; each is announced again later and later."""
    rows = every(
        connection,
        """
        WITH late AS (
            SELECT signal_id FROM noetl.signal WHERE publish_at <= clock_timestamp()
            ORDER BY publish_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ), moved AS (
            UPDATE noetl.signal s SET published = s.published + 1,
                   publish_at = clock_timestamp() + %(republish)s * 2 ^ least(s.published, 6) * interval '1 second'
            FROM late WHERE s.signal_id = late.signal_id
            RETURNING s.execution_id
        )
        SELECT DISTINCT execution_id FROM moved
        """,
        limit=limit,
        republish=republish_seconds,
    )
    return [row["execution_id"] for row in rows]


def all_due(connection: Connection) -> int:
    """Messages may be lost: every signal that may be read is announced again now. Their number. Idempotent."""
    return changed(
        connection,
        """
        WITH waiting AS (
            SELECT signal_id FROM noetl.signal
            WHERE due_at <= clock_timestamp() AND publish_at > clock_timestamp() FOR UPDATE SKIP LOCKED
        )
        UPDATE noetl.signal s SET published = 0, publish_at = clock_timestamp()
        FROM waiting WHERE s.signal_id = waiting.signal_id
        """,
    )
