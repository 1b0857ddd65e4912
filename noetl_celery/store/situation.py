"""What an execution waits for, as the tables have it. Reads only; times are seconds from now, by PostgreSQL's clock.

Each is a list of rows, few of them: whoever wants all rows of a step asks :mod:`noetl_celery.store.browse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl_celery.store.db import Connection, Rows, every, one
from noetl_celery.store.health import ALIVE

#: of each kind so many are named
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Situation:
    """``execution``: its record. ``signals``: unread ones that are due, by type. ``stages``: open ones. ``tickets``,
    ``dispatches``, ``runs``, ``sleepers`` (parked rows): by stage. ``losses``: steps whose last visit has ended with
    failed rows. ``workers``: how many processes are alive."""

    execution: Mapping[str, Any]
    signals: Rows
    stages: Rows
    tickets: Rows
    dispatches: Rows
    runs: Rows
    sleepers: Rows
    losses: Rows
    workers: int


def of(connection: Connection, execution_id: int, *, dead_after_seconds: float) -> Situation | None:
    """None if there is no such execution."""
    execution = one(
        connection,
        """
        SELECT execution_id, status, error FROM noetl.execution WHERE execution_id = %(id)s
        """,
        id=execution_id,
    )
    if execution is None:
        return None
    values = {"id": execution_id, "dead": dead_after_seconds, "shown": SHOWN}
    alive = one(connection, f"SELECT count(*) AS n FROM noetl.worker w WHERE {ALIVE}", **values)
    return Situation(
        execution,
        signals=every(connection, _SIGNALS, **values),
        stages=every(connection, _STAGES, **values),
        tickets=every(connection, _TICKETS, **values),
        dispatches=every(connection, _DISPATCHES, **values),
        runs=every(connection, _RUNS, **values),
        sleepers=every(connection, _SLEEPERS, **values),
        losses=every(connection, _LOSSES, **values),
        workers=int(alive["n"]) if alive else 0,
    )


_SIGNALS = """
    SELECT type, max(extract(epoch FROM clock_timestamp() - due_at))::float8 AS since,
           min(extract(epoch FROM publish_at - clock_timestamp()))::float8 AS again
    FROM noetl.signal WHERE execution_id = %(id)s AND due_at <= clock_timestamp() GROUP BY type ORDER BY type
"""

_STAGES = """
    SELECT s.stage_id, s.step_name AS step,
           (SELECT min(extract(epoch FROM due_at - clock_timestamp()))::float8 FROM noetl.signal t
            WHERE t.execution_id = s.execution_id AND t.type = 'stage.timeout'
              AND (t.data ->> 'stage')::bigint = s.stage_id) AS time_left,
           f.ready, f.parked
    FROM noetl.stage s
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE r.status = 'READY') AS ready,
               count(*) FILTER (WHERE r.status = 'PARKED') AS parked
        FROM noetl.frame f JOIN noetl.row r USING (frame_id) WHERE f.stage_id = s.stage_id AND f.status = 'RUNNING'
    ) f ON true
    WHERE s.execution_id = %(id)s AND s.status = 'OPEN' ORDER BY s.opened_at, s.stage_id
"""

_LOSSES = """
    SELECT * FROM (
        SELECT DISTINCT ON (step_name) step_name AS step, failed_rows AS failed, opened_at,
               CASE WHEN kind = 'cursor' THEN result #>> '{failures,0,error,kind}' END AS kind
        FROM noetl.stage WHERE execution_id = %(id)s AND status <> 'OPEN' ORDER BY step_name, visit DESC
    ) last WHERE failed > 0 ORDER BY opened_at, step
"""

#: claim tickets that are not answered: who asks the source, or how often it failed and when it is asked again
_TICKETS = f"""
    SELECT c.stage_id, c.status, c.attempts, w.host, w.pid, {ALIVE} AS alive, o.queue, o.published,
           extract(epoch FROM o.publish_at - clock_timestamp())::float8 AS again,
           CASE WHEN c.attempts > 0 THEN (
               SELECT e.result -> 'error' FROM noetl.event e
               WHERE e.execution_id = s.execution_id AND e.stage_id = c.stage_id AND e.event_type = 'claim.retry'
                 AND e.created_at >= c.created_at
               ORDER BY e.event_id DESC LIMIT 1) END AS error
    FROM noetl.stage s JOIN noetl.claim c ON c.stage_id = s.stage_id AND c.status IN ('OPEN', 'TAKEN')
    LEFT JOIN noetl.outbox o ON o.claim_id = c.claim_id
    LEFT JOIN noetl.run r ON r.run_id = c.taken_by LEFT JOIN noetl.worker w ON w.worker_id = r.worker_id
    WHERE s.execution_id = %(id)s AND s.status = 'OPEN' ORDER BY c.claim_id LIMIT %(shown)s
"""

#: the way to all that is at work or waits: it is short, however long the execution has been running
_OPEN_FRAMES = "noetl.stage s JOIN noetl.frame f ON f.stage_id = s.stage_id AND f.status = 'RUNNING'"

#: lanes that wait for a worker
_DISPATCHES = f"""
    SELECT f.stage_id, o.queue, count(*) AS count, max(o.published) AS published,
           min(extract(epoch FROM o.publish_at - clock_timestamp()))::float8 AS again
    FROM {_OPEN_FRAMES} JOIN noetl.outbox o ON o.frame_id = f.frame_id
    WHERE s.execution_id = %(id)s AND s.status = 'OPEN' GROUP BY f.stage_id, o.queue ORDER BY f.stage_id, o.queue
"""

#: lanes at work, by process; the first lease that ends
_RUNS = f"""
    SELECT f.stage_id, w.host, w.pid, coalesce({ALIVE}, false) AS alive, count(*) AS lanes,
           sum(coalesce(cardinality(r.begun), 0)) AS begun,
           min(extract(epoch FROM r.lease_until - clock_timestamp()))::float8 AS lease
    FROM {_OPEN_FRAMES} JOIN noetl.run r ON r.frame_id = f.frame_id LEFT JOIN noetl.worker w USING (worker_id)
    WHERE s.execution_id = %(id)s AND s.status = 'OPEN' GROUP BY f.stage_id, w.worker_id, w.host, w.pid, w.seen_at
    ORDER BY alive, w.host, w.pid LIMIT %(shown)s
"""

#: parked rows: those that go on first, and why they were tried again; the child that a row waits for
_SLEEPERS = f"""
    SELECT p.stage_id, p.frame, p.row, p.waits_for, child.status AS child,
           extract(epoch FROM p.due_at - clock_timestamp())::float8 AS seconds, said.attempt, said.attempts, said.error
    FROM (
        SELECT f.stage_id, f.frame_index AS frame, r.row_index AS row, r.waits_for, w.due_at, f.execution_id,
               f.frame_id, f.created_at
        FROM {_OPEN_FRAMES} JOIN noetl.row r ON r.frame_id = f.frame_id
        LEFT JOIN noetl.wakeup w ON w.frame_id = r.frame_id AND w.row_index = r.row_index
        WHERE s.execution_id = %(id)s AND s.status = 'OPEN' AND r.status = 'PARKED'
        ORDER BY w.due_at NULLS LAST, f.frame_id, r.row_index LIMIT %(shown)s
    ) p
    LEFT JOIN noetl.execution child ON child.execution_id = p.waits_for
    LEFT JOIN LATERAL (
        SELECT coalesce(one ->> 'attempt', e.meta -> 'retry' ->> 'attempt_number')::int AS attempt,
               (e.meta -> 'retry' ->> 'max_attempts')::int AS attempts,
               coalesce(one -> 'error', e.result -> 'error') AS error
        FROM noetl.event e
        LEFT JOIN LATERAL jsonb_array_elements(coalesce(e.result -> 'rows', '[]')) AS one
             ON (one ->> 'row')::int = p.row
        WHERE e.execution_id = p.execution_id AND e.frame_id = p.frame_id AND e.created_at >= p.created_at
          AND e.event_type IN ('task.retry', 'retry_scheduled')
          AND coalesce(one ->> 'row', e.result ->> 'row')::int = p.row
        ORDER BY e.event_id DESC LIMIT 1
    ) said ON true
    ORDER BY p.due_at NULLS LAST, p.frame_id, p.row
"""
