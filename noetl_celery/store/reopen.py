"""Opens ended frames again, so that their failed rows are run again: in the transaction of the decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl_celery.store.db import Connection, every, execute


def reopen_stage(connection: Connection, stage_id: int) -> None:
    """COMPLETED or FAILED → OPEN, without result. Does nothing to an open one."""
    execute(
        connection,
        """
        UPDATE noetl.stage SET status = 'OPEN', result = NULL, task_results = NULL, error = NULL, state = NULL,
               closed_at = NULL
        WHERE stage_id = %(stage)s AND status IN ('COMPLETED', 'FAILED')
        """,
        stage=stage_id,
    )


def reopen_frames(connection: Connection, frames: Sequence[int], statuses: Sequence[str]) -> list[dict[str, Any]]:
    """COMPLETED → RUNNING; their rows that ended in one of ``statuses`` become READY as they were at the beginning.

    Returns ``{frame_id, lanes}`` of each; frames without such rows are left as they are.
    """
    opened = every(
        connection,
        """
        WITH old AS (
            SELECT r.frame_id, r.row_index, r.status FROM noetl.row r JOIN noetl.frame f USING (frame_id)
            WHERE f.frame_id = ANY(%(frames)s) AND f.status = 'COMPLETED' AND r.status = ANY(%(statuses)s)
        ), again AS (
            UPDATE noetl.row r SET status = 'READY', position = NULL, lane = NULL, crashes = 0, retries = 0,
                   result = NULL, task_results = NULL, error = NULL, meta = NULL, ctx = NULL, aggregate = NULL,
                   waits_for = NULL, finished_at = NULL
            FROM old WHERE r.frame_id = old.frame_id AND r.row_index = old.row_index
            RETURNING r.frame_id, old.status
        ), counted AS (
            SELECT frame_id, count(*) AS n, count(*) FILTER (WHERE status = 'FAILED') AS failed FROM again GROUP BY 1
        )
        UPDATE noetl.frame f SET status = 'RUNNING', open_rows = c.n, failed_rows = f.failed_rows - c.failed,
               stopping = false, has_ctx = false, completed_at = NULL
        FROM counted c WHERE f.frame_id = c.frame_id RETURNING f.frame_id, f.lanes
        """,
        frames=list(frames),
        statuses=list(statuses),
    )
    # The execution has these already; what comes again would be counted twice.
    execute(
        connection,
        """
        UPDATE noetl.row SET ctx = NULL, aggregate = NULL
        WHERE frame_id = ANY(%(frames)s) AND status = 'OK' AND (ctx IS NOT NULL OR aggregate IS NOT NULL)
        """,
        frames=[frame["frame_id"] for frame in opened],
    )
    return opened
