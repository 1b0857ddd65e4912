"""When what was at work: visits of steps, frames and their claims, rows over time. Reads only; PostgreSQL's clock."""

from __future__ import annotations

from typing import Any

from noetl_celery.store.db import Connection, every

#: behind the last frame
END = 2**31 - 1


def stages(connection: Connection, execution_id: int, *, limit: int) -> list[dict[str, Any]]:
    """The latest visits of steps, the oldest of them first.

    ``{stage_id, step, visit, kind, status, ok, failed, frames, opened_at, closed_at, now}``.
    """
    found = every(
        connection,
        """
        SELECT stage_id, step_name AS step, visit, kind, status, ok_rows AS ok, failed_rows AS failed, frames,
               opened_at, closed_at, clock_timestamp() AS now
        FROM noetl.stage WHERE execution_id = %(execution)s ORDER BY opened_at DESC, stage_id DESC LIMIT %(limit)s
        """,
        execution=execution_id,
        limit=limit,
    )
    return found[::-1]


def frames(connection: Connection, stage_id: int, *, before: int = END, limit: int) -> list[dict[str, Any]]:
    """The latest frames of a stage with an index below ``before``, the latest first.

    ``{frame_id, frame, status, rows, ok, failed, open, retries, lanes, row_concurrency, attempt, reruns, asked_at,
    claimed_at, ended_at, returned, now}``: ``asked_at`` is when its claim was asked for, ``returned`` how many lanes of
    it ended with rows that others had to do (a crash, a lease that was over, a worker that was told to stop).
    """
    return every(
        connection,
        """
        SELECT f.frame_id, f.frame_index AS frame, f.status, f.rows, f.ok_rows AS ok, f.failed_rows AS failed,
               f.open_rows AS open, f.retries, f.lanes, f.row_concurrency, f.attempt, f.reruns,
               c.created_at AS asked_at, f.created_at AS claimed_at, f.completed_at AS ended_at,
               clock_timestamp() AS now,
               (SELECT count(*) FROM noetl.event e
                WHERE e.frame_id = f.frame_id AND e.execution_id = f.execution_id AND e.created_at >= f.created_at
                  AND e.event_type = 'frame.abandoned') AS returned
        FROM noetl.frame f LEFT JOIN noetl.claim c USING (claim_id)
        WHERE f.stage_id = %(stage)s AND f.frame_index < %(before)s
        ORDER BY f.frame_index DESC, f.frame_id DESC LIMIT %(limit)s
        """,
        stage=stage_id,
        before=before,
        limit=limit,
    )


def throughput(connection: Connection, stage_id: int, *, seconds: float) -> list[dict[str, Any]]:
    """What became of the rows of a stage's frames, in spans of so many ``seconds`` since it was opened.

    ``{span, ok, failed, retries, reruns}``, spans in which no frame ended left out.
    """
    return every(
        connection,
        """
        SELECT floor(extract(epoch FROM f.completed_at - s.opened_at) / %(seconds)s)::int AS span,
               sum(f.ok_rows * f.weight)::bigint AS ok, sum(f.failed_rows * f.weight)::bigint AS failed,
               sum(f.retries)::bigint AS retries, sum(f.reruns)::bigint AS reruns
        FROM noetl.stage s JOIN noetl.frame f USING (stage_id)
        WHERE s.stage_id = %(stage)s AND f.completed_at IS NOT NULL GROUP BY span ORDER BY span
        """,
        stage=stage_id,
        seconds=seconds,
    )
