"""What people look at page by page: executions, and the rows of the last visit of a step. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from noetl_celery.store.db import Connection, every, one
from noetl_celery.store.results import brief

#: before the first row
START = (-1, 0, -1)


_EXECUTION = """
    SELECT execution_id, parent_execution_id, catalog_id, path,
           (SELECT version FROM noetl.catalog c WHERE c.catalog_id = e.catalog_id) AS version,
           status, error, created_at, started_at, finished_at,
           extract(epoch FROM coalesce(finished_at, clock_timestamp()) - created_at)::float AS seconds
    FROM noetl.execution e
"""


def execution(connection: Connection, execution_id: int) -> dict[str, Any] | None:
    """One execution with the fields of :func:`executions`."""
    return one(connection, f"{_EXECUTION} WHERE execution_id = %(execution)s", execution=execution_id)


def executions(
    connection: Connection,
    *,
    status: str | None = None,
    path: str | None = None,
    parent: int | None = None,
    before: tuple[datetime, int] | None = None,
    limit: int,
) -> list[dict[str, Any]]:
    """The latest executions, newest first: those of a status, of a path (a playbook's), that ``parent`` called, behind
    ``before`` (creation, id).

    ``{execution_id, parent_execution_id, catalog_id, path, version, status, error, created_at, started_at, finished_at,
    seconds}``.
    """
    # Only what is asked for stands in the statement: planned once for all values, it finds its index by that.
    wanted = {
        "status = %(status)s": status is not None,
        "path = %(path)s": path is not None,
        "parent_execution_id = %(parent)s": parent is not None,
        "(created_at, execution_id) < (%(created)s, %(id)s)": before is not None,
    }
    conditions = " AND ".join(text for text, given in wanted.items() if given) or "true"
    created, id_ = before or (None, None)
    return every(
        connection,
        f"{_EXECUTION} WHERE {conditions} ORDER BY created_at DESC, execution_id DESC LIMIT %(limit)s",
        status=status,
        path=path,
        parent=parent,
        created=created,
        id=id_,
        limit=limit,
    )


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


def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Where a row stands, to read on behind it."""
    return row["frame"], row["frame_id"], row["row"]


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
        f"""
        SELECT f.frame_index AS frame, f.frame_id, r.row_index AS row, r.status, r.retries, r.crashes,
               r.payload AS item, r.error, r.waits_for, r.finished_at
        FROM noetl.frame f JOIN noetl.row r USING (frame_id)
        WHERE f.stage_id = %(stage)s AND f.status IN ('RUNNING', 'COMPLETED') AND f.frame_index >= %(index)s
          AND (f.frame_index, f.frame_id, r.row_index) > (%(index)s, %(frame)s, %(row)s)
          {"AND f.failed_rows > 0 AND r.status = 'FAILED'" if failed else ""}
        ORDER BY f.frame_index, f.frame_id, r.row_index LIMIT %(limit)s
        """,
        stage=stage_id,
        index=frame_index,
        frame=frame_id,
        row=row_index,
        limit=limit,
    )
    return [{**row, "item": brief(row["item"])} for row in found]
