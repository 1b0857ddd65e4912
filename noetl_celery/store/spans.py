"""When executions and stages began and ended, for those who draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.store.db import Connection, every, one


def stages(connection: Connection, stage_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Those of the stages that have ended, with the playbook's path."""
    return every(
        connection,
        """
        SELECT s.stage_id, s.execution_id, e.path, s.step_name, s.visit, s.kind, s.status, s.frames, s.error,
               s.opened_at, s.closed_at
        FROM noetl.stage s JOIN noetl.execution e USING (execution_id)
        WHERE s.stage_id = ANY(%(stages)s) AND s.closed_at IS NOT NULL
        """,
        stages=list(stage_ids),
    )


def execution(connection: Connection, execution_id: int) -> Mapping[str, Any] | None:
    """An execution that has ended, with the row that called it; None if it has not (any more)."""
    return one(
        connection,
        """
        SELECT path, status, error, created_at, finished_at, parent_execution_id, parent_frame_id, parent_row_index
        FROM noetl.execution WHERE execution_id = %(execution)s AND finished_at IS NOT NULL
        """,
        execution=execution_id,
    )
