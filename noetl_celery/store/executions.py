"""Executions: submitted, locked by whoever orchestrates, written back whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Json

from noetl_celery.engine.decision import Decision
from noetl_celery.engine.state import ExecutionState
from noetl_celery.store import signals
from noetl_celery.store.db import Connection, Reply, ask, every, execute, json_value, one
from noetl_celery.store.results import brief

_COLUMNS = (
    "execution_id, parent_execution_id, catalog_id, path, status, workload, error, created_at, started_at, finished_at"
)

#: parked rows of a step that are counted, at most: those who watch ask twice a second
PARKED_COUNTED = 1_000
#: of a loop: what people look at while it runs
_COUNTED = ("ok", "failed", "frames", "retries")


@dataclass(frozen=True, slots=True)
class Caller:
    """The row that a child execution is started for, how deep the child is, and the row's ``iter``."""

    execution_id: int
    frame_id: int
    row_index: int
    depth: int
    iter: Mapping[str, Any]


def submit(
    connection: Connection,
    execution_id: int,
    catalog_id: int,
    path: str,
    workload: Mapping[str, Any],
    *,
    republish_seconds: float,
    caller: Caller | None = None,
) -> None:
    """Writes a PENDING execution with its ``start`` signal; publish ``orchestrate`` after the commit."""
    execute(
        connection,
        """
        INSERT INTO noetl.execution (execution_id, catalog_id, path, status, workload, ctx, state, parent_execution_id,
                                     parent_frame_id, parent_row_index, depth, parent_iter)
        VALUES (%(execution)s, %(catalog)s, %(path)s, 'PENDING', %(workload)s, '{}', '{}', %(parent)s,
                %(frame)s, %(row)s, %(depth)s, %(iter)s)
        """,
        parent=caller.execution_id if caller else None,
        frame=caller.frame_id if caller else None,
        row=caller.row_index if caller else None,
        depth=caller.depth if caller else 0,
        iter=Json(dict(caller.iter)) if caller and caller.iter else None,
        execution=execution_id,
        catalog=catalog_id,
        path=path,
        workload=Json(workload),
    )
    signals.add(connection, execution_id, "start", republish_seconds=republish_seconds)


def alone(connection: Connection, execution_id: int) -> None:
    """Waits until nobody else is about to write an execution with this id, which keeps others waiting until the end
    of the transaction."""
    execute(connection, "SELECT pg_advisory_xact_lock(%(id)s)", id=execution_id)


def lock(connection: Connection, execution_id: int) -> Reply[tuple[int, ExecutionState] | None]:
    """Takes the execution's row lock and loads its state; None if it is held elsewhere, or no signal waits for it.

    ``FOR NO KEY UPDATE SKIP LOCKED``: whoever does not get it leaves at once, the holder looks again after its commit.
    """
    asked = ask(
        connection,
        """
        SELECT catalog_id, status, workload, ctx, state, error, parent_iter, depth FROM noetl.execution e
        WHERE execution_id = %(execution)s AND EXISTS (
            SELECT FROM noetl.signal s WHERE s.execution_id = e.execution_id AND s.due_at <= clock_timestamp())
        FOR NO KEY UPDATE SKIP LOCKED
        """,
        execution=execution_id,
    )

    def locked() -> tuple[int, ExecutionState] | None:
        row = next(iter(asked()), None)
        if row is None:
            return None
        state = ExecutionState(execution_id, row["status"], row["workload"], row["ctx"], row["error"])
        state.parent_iter, state.depth = row["parent_iter"], row["depth"]
        state.restore(row["state"])
        return row["catalog_id"], state

    return locked


def save(connection: Connection, state: ExecutionState, decision: Decision, read: Sequence[int]) -> None:
    """Writes the state back, under the lock, with the counters of its open loops that people look at; the signals that
    were ``read`` are gone, exactly those."""
    execute(
        connection,
        """
        WITH counted AS (
            UPDATE noetl.stage s SET ok_rows = c.ok, failed_rows = c.failed, frames = c.frames, retries = c.retries
            FROM json_to_recordset(%(loops)s) AS c(stage_id bigint, ok int, failed int, frames int, retries int)
            WHERE s.stage_id = c.stage_id
              AND (s.ok_rows, s.failed_rows, s.frames, s.retries) <> (c.ok, c.failed, c.frames, c.retries)
        ), consumed AS (
            DELETE FROM noetl.signal WHERE signal_id = ANY(%(read)s)
        )
        UPDATE noetl.execution
        SET status = %(status)s, state = %(state)s, error = %(error)s,
            ctx = CASE WHEN %(ctx)s::json IS NULL THEN ctx ELSE %(ctx)s::json END,
            started_at = coalesce(started_at, CASE WHEN %(status)s <> 'PENDING' THEN clock_timestamp() END),
            finished_at = CASE WHEN %(status)s IN ('COMPLETED', 'FAILED', 'CANCELLED') THEN clock_timestamp() END
        WHERE execution_id = %(execution)s
        """,
        execution=state.execution_id,
        status=state.status,
        state=Json(state.document()),
        error=json_value(state.error),
        ctx=Json(state.ctx) if decision.ctx_changed else None,
        loops=Json(
            [
                {"stage_id": stage.stage_id, **{name: getattr(stage, name) for name in _COUNTED}}
                for stage in state.stages.values()
                if stage.kind != "single"
            ]
        ),
        read=list(read),
    )


def get(connection: Connection, execution_id: int) -> Mapping[str, Any] | None:
    """One execution, without its state."""
    return one(
        connection,
        f"SELECT {_COLUMNS} FROM noetl.execution WHERE execution_id = %(execution)s",
        execution=execution_id,
    )


def cancelling(connection: Connection, execution_id: int) -> bool:
    """Has the execution been told to end?"""
    row = one(
        connection,
        "SELECT status = 'CANCELLING' AS told FROM noetl.execution WHERE execution_id = %(execution)s",
        execution=execution_id,
    )
    return bool(row and row["told"])


def steps(connection: Connection, execution_id: int) -> list[dict[str, Any]]:
    """The last visit of each step: ``{step_name, status, result, error, opened_at, closed_at, visit}``, in order.

    Of a result that is kept elsewhere only what :func:`~noetl_celery.store.results.brief` shows.
    """
    rows = every(
        connection,
        """
        SELECT * FROM (
            SELECT DISTINCT ON (step_name) step_name, stage_id, status, result, error, opened_at, closed_at, visit
            FROM noetl.stage WHERE execution_id = %(execution)s ORDER BY step_name, visit DESC
        ) last ORDER BY opened_at, stage_id
        """,
        execution=execution_id,
    )
    return [{**row, "result": brief(row["result"])} for row in rows]


def progress(connection: Connection, execution_id: int) -> list[dict[str, Any]]:
    """Each open step: rows done and failed (to the moment), frames, rows at work and parked, lanes that wait.

    Looks at open frames only. Of those that have ended, the counters of their stage tell, and for the last ones the
    notes that nobody has decided on yet.
    """
    return every(
        connection,
        """
        WITH told AS (
            SELECT (data ->> 'stage')::bigint AS stage_id, sum((data ->> 'frames')::int) AS frames,
                   sum((data ->> 'ok')::bigint) AS ok, sum((data ->> 'failed')::bigint) AS failed,
                   sum((data ->> 'retries')::bigint) AS retries
            FROM noetl.signal WHERE execution_id = %(execution)s AND type IN ('claim.filled', 'frame.done') GROUP BY 1
        )
        SELECT s.stage_id, s.step_name, s.visit, s.kind, s.opened_at, s.total,
               CASE WHEN s.kind = 'single' THEN 1 ELSE s.frames + coalesce(t.frames, 0) END AS frames,
               s.ok_rows + coalesce(t.ok, 0) + coalesce(f.ok, 0) AS ok,
               s.failed_rows + coalesce(t.failed, 0) + coalesce(f.failed, 0) AS failed,
               s.retries + coalesce(t.retries, 0) + coalesce(f.retries, 0) AS retries,
               f.open_frames, coalesce(f.open_rows, 0) AS open_rows, coalesce(f.at_work, 0)::int AS at_work,
               coalesce(f.waiting, 0)::int AS waiting, p.parked, p.parked = %(parked)s AS more_parked,
               p.throttled, p.next,
               (s.settings ->> 'max_in_flight')::int AS max_in_flight,
               coalesce((s.settings ->> 'paced')::bool, false) AS paced,
               extract(epoch FROM clock_timestamp() - s.opened_at)::float AS seconds
        FROM noetl.stage s
        LEFT JOIN told t USING (stage_id)
        CROSS JOIN LATERAL (
            SELECT count(*) AS open_frames, sum(o.ok_rows * o.weight) AS ok, sum(o.failed_rows * o.weight) AS failed,
                   sum(o.retries) AS retries, sum(o.open_rows) AS open_rows,
                   sum(least(coalesce(at_work, 0), o.row_concurrency)) AS at_work, sum(waiting) AS waiting
            FROM noetl.frame o
            CROSS JOIN LATERAL (
                SELECT sum(cardinality(r.begun)) AS at_work FROM noetl.run r WHERE r.frame_id = o.frame_id) runs
            CROSS JOIN LATERAL (
                SELECT count(*) AS waiting FROM noetl.outbox b WHERE b.frame_id = o.frame_id) asked
            WHERE o.stage_id = s.stage_id AND o.status = 'RUNNING'
        ) f
        CROSS JOIN LATERAL (
            SELECT count(*) AS parked, count(r.lane) FILTER (WHERE r.row_concurrency > 1) AS throttled,
                   min(extract(epoch FROM r.due_at - clock_timestamp()))::float AS next
            FROM (
                SELECT r.lane, o.row_concurrency, w.due_at FROM noetl.frame o
                JOIN noetl.wakeup w ON w.frame_id = o.frame_id
                JOIN noetl.row r ON r.frame_id = w.frame_id AND r.row_index = w.row_index
                WHERE o.stage_id = s.stage_id AND o.status = 'RUNNING' LIMIT %(parked)s
            ) r
        ) p
        WHERE s.execution_id = %(execution)s AND s.status = 'OPEN' ORDER BY s.opened_at, s.stage_id
        """,
        execution=execution_id,
        parked=PARKED_COUNTED,
    )


def step_summaries(connection: Connection, execution_id: int) -> list[dict[str, Any]]:
    """The last visit of each step without its result: ``{step_name, kind, status, error, ok, failed, …}``, in order.

    ``kept``: its state at its end is there, so that its rows can be run again.
    """
    return every(
        connection,
        """
        SELECT * FROM (
            SELECT DISTINCT ON (step_name) step_name, stage_id, visit, kind, status, error, frames, retries,
                   ok_rows AS ok, failed_rows AS failed, opened_at, closed_at, state IS NOT NULL AS kept,
                   CASE WHEN kind = 'cursor' THEN result #> '{failures,0,error}' END AS first_failure,
                   extract(epoch FROM coalesce(closed_at, clock_timestamp()) - opened_at)::float AS seconds
            FROM noetl.stage WHERE execution_id = %(execution)s ORDER BY step_name, visit DESC
        ) last ORDER BY opened_at, stage_id
        """,
        execution=execution_id,
    )


def summary(connection: Connection, execution_id: int) -> Mapping[str, Any]:
    """What :class:`~noetl_celery.report.Summary` is made of."""
    found = one(
        connection,
        """
        WITH steps AS (
            SELECT step_name, kind, sum(ok_rows) AS ok, sum(failed_rows) AS failed, sum(retries) AS retries,
                   sum(extract(epoch FROM coalesce(closed_at, clock_timestamp()) - opened_at))::float AS seconds
            FROM noetl.stage WHERE execution_id = %(execution)s GROUP BY step_name, kind
        )
        SELECT coalesce(sum(ok) FILTER (WHERE kind <> 'single'), 0)::bigint AS ok,
               coalesce(sum(failed) FILTER (WHERE kind <> 'single'), 0)::bigint AS failed,
               coalesce(sum(retries), 0)::bigint AS retries, count(*) FILTER (WHERE kind <> 'single') AS loops,
               (array_agg(step_name ORDER BY seconds DESC))[1] AS slowest, coalesce(max(seconds), 0) AS slowest_seconds,
               (SELECT extract(epoch FROM coalesce(finished_at, clock_timestamp()) - created_at)::float
                FROM noetl.execution WHERE execution_id = %(execution)s) AS seconds
        FROM steps
        """,
        execution=execution_id,
    )
    assert found is not None
    return found


def result(connection: Connection, execution_id: int) -> Any:
    """The document of the result of the step with a task that completed last; None if there is none."""
    row = one(
        connection,
        """
        SELECT result FROM noetl.stage
        WHERE execution_id = %(execution)s AND status = 'COMPLETED' AND NOT (kind = 'single' AND frames = 0)
        ORDER BY closed_at DESC, stage_id DESC LIMIT 1
        """,
        execution=execution_id,
    )
    return row["result"] if row else None


def duration(connection: Connection, execution_id: int) -> float:
    """Seconds from the submission to the end, or to now."""
    row = one(
        connection,
        """
        SELECT extract(epoch FROM coalesce(finished_at, clock_timestamp()) - created_at)::float AS seconds
        FROM noetl.execution WHERE execution_id = %(execution)s
        """,
        execution=execution_id,
    )
    return float(row["seconds"]) if row else 0.0
