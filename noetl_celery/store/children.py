"""Child executions: started in the transaction that parks the row which waits for them; their end wakes it.

So a child is started exactly once whatever dies, and no row waits for one that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl_celery.engine.decision import Event
from noetl_celery.store import events, executions, rows, signals
from noetl_celery.store.db import Connection, every, one


@dataclass(frozen=True, slots=True)
class NewChild:
    """An execution to start for a row. ``timeout`` in seconds, None: it may take for ever."""

    execution_id: int
    catalog_id: int
    path: str
    workload: Mapping[str, Any]
    parent_iter: Mapping[str, Any]
    depth: int
    timeout: float | None
    #: where it is looked at first
    queue: str


@dataclass(frozen=True, slots=True)
class Place:
    """The row that a child is started for, and the run that holds it."""

    execution_id: int
    stage_id: int
    step: str
    frame_id: int
    run_id: int
    row_index: int


def start(
    connection: Connection,
    place: Place,
    child: NewChild,
    position: Mapping[str, Any],
    *,
    retries: int,
    republish_seconds: float,
) -> bool:
    """Starts a child and parks the row for it. False, and nothing is done, if the frame starts no more work.

    Publish ``orchestrate`` of the child after the commit. Raises ``LeaseLost`` if the run does not hold the row.
    """
    # Shared with other lanes, not with whoever stops the stage: the child is there before it looks, or never.
    frame = one(
        connection, "SELECT stopping FROM noetl.frame WHERE frame_id = %(frame)s FOR SHARE", frame=place.frame_id
    )
    if frame is None or frame["stopping"]:
        return False
    rows.park(
        connection,
        place.frame_id,
        place.run_id,
        place.row_index,
        position,
        seconds=child.timeout,
        retries=retries,
        counts=True,
        waits_for=child.execution_id,
    )
    executions.submit(
        connection,
        child.execution_id,
        child.catalog_id,
        child.path,
        child.workload,
        republish_seconds=republish_seconds,
        caller=executions.Caller(place.execution_id, place.frame_id, place.row_index, child.depth, child.parent_iter),
    )
    result = {"execution_id": str(child.execution_id), "path": child.path, "row": place.row_index}
    event = Event("playbook.called", "RUNNING", place.step, place.stage_id, result=result, node_type="playbook")
    events.append(connection, place.execution_id, [event], frame_id=place.frame_id)
    return True


def look(connection: Connection, child_id: int, timeout: float | None) -> Mapping[str, Any] | None:
    """How a child is: ``{status, path, error, expired}``; ``expired``: it has taken longer than ``timeout``."""
    return one(
        connection,
        """
        SELECT status, path, error,
               coalesce(clock_timestamp() >= created_at + %(timeout)s * interval '1 second', false) AS expired
        FROM noetl.execution WHERE execution_id = %(child)s
        """,
        child=child_id,
        timeout=timeout,
    )


def ended(connection: Connection, child_id: int) -> Mapping[str, Any] | None:
    """Wakes the row that waits for a child, in the transaction that ends the child.

    Returns its ``{frame_id, stage_id, execution_id, lane, step_name}`` for the lane to start; None if no row waits.
    """
    return one(
        connection,
        """
        WITH place AS MATERIALIZED ( -- the frame is locked before its row
            SELECT f.frame_id, e.parent_row_index AS row_index FROM noetl.execution e
            JOIN noetl.frame f ON f.frame_id = e.parent_frame_id
            WHERE e.execution_id = %(child)s FOR NO KEY UPDATE OF f
        ), woken AS (
            UPDATE noetl.row r SET status = 'READY' FROM place p
            WHERE r.frame_id = p.frame_id AND r.row_index = p.row_index
              AND r.status = 'PARKED' AND r.waits_for = %(child)s
            RETURNING r.frame_id, r.row_index, coalesce(r.lane, 0) AS lane
        ), planned AS (
            DELETE FROM noetl.wakeup w USING woken k WHERE w.frame_id = k.frame_id AND w.row_index = k.row_index
        )
        SELECT f.frame_id, f.stage_id, f.execution_id, k.lane, s.step_name
        FROM woken k JOIN noetl.frame f USING (frame_id) JOIN noetl.stage s USING (stage_id)
        """,
        child=child_id,
    )


def cancel_all(connection: Connection, stage_id: int, *, republish_seconds: float) -> list[int]:
    """Tells every child that rows of a stage wait for to end; returns them, to be announced after the commit."""
    waited = every(
        connection,
        """
        SELECT r.waits_for FROM noetl.frame f JOIN noetl.row r USING (frame_id)
        JOIN noetl.execution e ON e.execution_id = r.waits_for
        WHERE f.stage_id = %(stage)s AND f.status = 'RUNNING' AND r.status IN ('PARKED', 'READY', 'TAKEN')
          AND e.finished_at IS NULL
        """,
        stage=stage_id,
    )
    for row in waited:
        cancel(connection, row["waits_for"], "its caller ended", republish_seconds=republish_seconds)
    return [row["waits_for"] for row in waited]


def cancel(connection: Connection, child_id: int, reason: str, *, republish_seconds: float) -> None:
    """Tells a child to end. Harmless for one that has."""
    signals.add(connection, child_id, "cancel", {"reason": reason}, republish_seconds=republish_seconds)
