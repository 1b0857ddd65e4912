"""What is open at this moment, in numbers: for those who draw them over time.

Each statement looks only at what is open, by an index, or at tables that hold nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_celery.store.db import Connection, every, one
from noetl_celery.store.health import ALIVE

#: few of many, found by ``execution_status_idx``
_OPEN = "status IN ('PENDING', 'RUNNING', 'PAUSED', 'CANCELLING')"


def executions(connection: Connection) -> dict[str, int]:
    """Executions that have not ended, by status."""
    rows = every(connection, f"SELECT status, count(*) AS n FROM noetl.execution WHERE {_OPEN} GROUP BY status")
    return {row["status"]: row["n"] for row in rows}


def work(connection: Connection, *, sweep_seconds: float) -> Mapping[str, Any]:
    """Open frames and their open rows; rows at work, and parked until a time or a child; signals and the age of the
    oldest; overdue leases; sessions of ours that wait for a lock; the last sweep's age (None: there was none)."""
    row = one(
        connection,
        f"""
        SELECT open.frames, open.rows, at_work, until_time, until_child, signals, signals_age, overdue, lock_waits,
               swept
        FROM (SELECT count(*) AS frames, coalesce(sum(open_rows), 0) AS rows FROM noetl.frame
              WHERE status IN ('TENTATIVE', 'RUNNING')) AS open,
             (SELECT coalesce(sum(cardinality(begun)), 0) AS at_work,
                     count(*) FILTER (WHERE lease_until < clock_timestamp()) AS overdue FROM noetl.run) AS held,
             (SELECT count(*) AS until_time FROM noetl.wakeup) AS parked,
             (SELECT count(*) AS until_child FROM noetl.execution
              WHERE {_OPEN} AND parent_frame_id IS NOT NULL) AS called,
             (SELECT count(*) AS signals,
                     coalesce(max(extract(epoch FROM clock_timestamp() - due_at)), 0)::float8 AS signals_age
              FROM noetl.signal WHERE due_at <= clock_timestamp()) AS unread,
             (SELECT count(*) AS lock_waits FROM pg_stat_activity
              WHERE wait_event_type = 'Lock' AND datname = current_database()
                AND application_name LIKE 'noetl-celery%%') AS waiting,
             (SELECT max(greatest(0, extract(epoch FROM clock_timestamp() - due_at) + %(interval)s))::float8 AS swept
              FROM noetl.sweep WHERE name = 'sweep') AS last
        """,
        interval=sweep_seconds,
    )
    assert row is not None
    return row


def outbox(connection: Connection, *, republish_seconds: float) -> list[dict[str, Any]]:
    """By queue: dispatches that nobody took, and for how long the oldest has been asked for.

    The outbox does not keep when that was; it follows from how often it was published (see :func:`outbox.due`).
    """
    return every(
        connection,
        """
        SELECT queue, count(*) AS n, greatest(0, max(
                   extract(epoch FROM clock_timestamp() - publish_at) + %(again)s * (
                       2 ^ least(published, 7) + 64 * greatest(published - 7, 0))))::float8 AS seconds
        FROM noetl.outbox GROUP BY queue ORDER BY queue
        """,
        again=republish_seconds,
    )


def workers(connection: Connection, *, dead_after_seconds: float) -> tuple[int, int]:
    """Registered processes that are alive, and that have gone without a word."""
    row = one(
        connection,
        f"SELECT count(*) FILTER (WHERE {ALIVE}) AS alive, count(*) AS registered FROM noetl.worker w",
        dead=dead_after_seconds,
    )
    assert row is not None
    return row["alive"], row["registered"] - row["alive"]
