"""Rows as people look at them: those of the last visit of a step, page by page. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_celery.store.db import Connection, every, one
from noetl_celery.store.results import brief

#: before the first row
START = (-1, 0, -1)


def last_stage(connection: Connection, execution_id: int, step: str) -> Mapping[str, Any] | None:
    """The last visit of a step: ``{stage_id, visit, kind, status}``; None if it was never entered."""
    return one(
        connection,
        """
        SELECT stage_id, visit, kind, status FROM noetl.stage
        WHERE execution_id = %(execution)s AND step_name = %(step)s ORDER BY visit DESC LIMIT 1
        """,
        execution=execution_id,
        step=step,
    )


def rows(
    connection: Connection, stage_id: int, *, after: tuple[int, int, int] = START, limit: int, failed: bool = False
) -> list[dict[str, Any]]:
    """The next rows of a stage behind ``after`` (frame index, frame id, row index), at most ``limit`` of them.

    ``{frame, frame_id, row, status, retries, crashes, item, error, waits_for, finished_at}``: ``item`` is what the row
    was made of (of what is kept elsewhere its summary), ``crashes`` how many workers died over it, ``waits_for`` the
    child that it waits for. ``failed``: only those that failed.
    """
    frame_index, frame_id, row_index = after
    found = every(
        connection,
        """
        SELECT f.frame_index AS frame, f.frame_id, r.row_index AS row, r.status, r.retries, r.crashes,
               r.payload AS item, r.error, r.waits_for, r.finished_at
        FROM noetl.frame f JOIN noetl.row r USING (frame_id)
        WHERE f.stage_id = %(stage)s AND f.status IN ('RUNNING', 'COMPLETED') AND f.frame_index >= %(index)s
          AND (f.frame_index, f.frame_id, r.row_index) > (%(index)s, %(frame)s, %(row)s)
          AND (NOT %(failed)s OR (f.failed_rows > 0 AND r.status = 'FAILED'))
        ORDER BY f.frame_index, f.frame_id, r.row_index LIMIT %(limit)s
        """,
        stage=stage_id,
        index=frame_index,
        frame=frame_id,
        row=row_index,
        failed=failed,
        limit=limit,
    )
    return [{**row, "item": brief(row["item"])} for row in found]
