"""What becomes of the work of a run that died: rows that had begun are suspects, and counted. And of one that has to
end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Json

from noetl_celery.engine.decision import Event
from noetl_celery.store import children, events, frames
from noetl_celery.store.db import Connection, execute, one

_RETURN = """
    WITH held AS MATERIALIZED (
        SELECT r.row_index, b.begun, b.begun AND r.crashes + 1 >= %(max)s AS condemned,
               b.begun AND r.crashes + 1 >= %(max)s + f.dead_letter::int AS fails, r.waits_for, r.retries
        FROM noetl.row r JOIN noetl.frame f USING (frame_id)
        CROSS JOIN LATERAL (
            -- NULL: its worker was of a version that does not say; any row may have begun
            SELECT coalesce(r.row_index = ANY(%(begun)s::int[]), true) AS begun) b
        WHERE r.frame_id = %(frame)s AND r.status = 'TAKEN' AND r.taken_by = %(run)s
        FOR UPDATE OF r
    ), returned AS (
        UPDATE noetl.row r SET crashes = r.crashes + h.begun::int, taken_by = NULL, lane = NULL,
               status = CASE WHEN h.fails THEN 'FAILED' ELSE 'READY' END,
               error = CASE WHEN h.fails THEN %(error)s END,
               position = CASE WHEN h.fails THEN NULL WHEN h.condemned THEN %(condemned)s::json ELSE r.position END,
               waits_for = CASE WHEN NOT h.fails THEN r.waits_for END,
               finished_at = CASE WHEN h.fails THEN clock_timestamp() END
        FROM held h WHERE r.frame_id = %(frame)s AND r.row_index = h.row_index
    ), counted AS (
        SELECT count(*) FILTER (WHERE fails) AS failed, count(*) FILTER (WHERE NOT fails) AS returned,
               count(*) FILTER (WHERE begun AND NOT condemned) AS again, coalesce(bool_or(begun), false) AS begun,
               coalesce(sum(retries) FILTER (WHERE fails), 0) AS retries,
               coalesce(array_agg(waits_for) FILTER (WHERE fails AND waits_for IS NOT NULL), '{}') AS children
        FROM held
    )
    UPDATE noetl.frame f
    SET open_rows = f.open_rows - c.failed, failed_rows = f.failed_rows + c.failed,
        retries = f.retries + c.retries, reruns = f.reruns + c.again, attempt = f.attempt + c.begun::int,
        stopping = f.stopping OR (f.fail_fast AND c.failed > 0)
    FROM counted c, noetl.stage s LEFT JOIN noetl.execution e USING (execution_id)
    WHERE f.frame_id = %(frame)s AND f.status = 'RUNNING' AND s.stage_id = f.stage_id
    RETURNING f.frame_id, f.stage_id, f.execution_id, f.open_rows, f.stopping, f.lanes, s.step_name, s.kind, e.path,
              c.returned, c.again, c.failed, c.children
"""


def return_rows(
    connection: Connection, run: Mapping[str, Any], *, max_crashes: int, republish_seconds: float
) -> Mapping[str, Any] | None:
    """Returns the rows that a dead run held to READY. On those that had begun a crash is counted: they are suspects,
    and their next run is a re-run. At ``max_crashes`` a row fails, and a child that it waited for is told to end.

    Where the playbook has a dead letter statement, such a row goes to a lane once more, which only runs that; if its
    worker dies again, the row fails without.

    Returns the frame ``{frame_id, stage_id, execution_id, lane, step_name, path, again, failed, open_rows, ended}``:
    ``open_rows`` are left to run; without any it has ended, with what :func:`frames.end` says. None if it had ended
    before. Runs in the transaction that removed the run.
    """
    error = {
        "kind": "worker_lost",
        "message": f"its worker process died {max_crashes} times while this row was at work",
        "retryable": False,
    }
    frame = one(
        connection,
        _RETURN,
        frame=run["frame_id"],
        run=run["run_id"],
        begun=run["begun"],
        max=max_crashes,
        error=Json(error),
        condemned=Json({"failed": error}),
    )
    if frame is None:
        return None
    event = Event(
        "frame.abandoned",
        "RETURNED",
        frame["step_name"],
        frame["stage_id"],
        result={
            "lane": run["lane"],
            "returned": frame["returned"],
            "reruns": frame["again"],
            "failed": frame["failed"],
        },
    )
    events.append(connection, frame["execution_id"], [event], frame_id=frame["frame_id"])
    for child in frame["children"]:
        children.cancel(connection, child, "its caller's worker was lost", republish_seconds=republish_seconds)
    open_rows = frame["open_rows"]
    if frame["stopping"] and open_rows:
        open_rows = frames.skip_unstarted(connection, frame["frame_id"])
    ended = None
    if open_rows == 0:
        ended = frames.end(connection, frame["frame_id"], republish_seconds=republish_seconds)
    return {**frame, "lane": run["lane"], "open_rows": open_rows, "ended": ended}


def hand_over(
    connection: Connection, execution_id: int, step: str, stage_id: int, frame_id: int, lane: int, begun: int
) -> None:
    """Counts and tells that so many rows which had begun begin again elsewhere, as their node stops.

    That is no crash of theirs. For the transaction in which their run ends.
    """
    execute(
        connection, "UPDATE noetl.frame SET reruns = reruns + %(n)s WHERE frame_id = %(frame)s", frame=frame_id, n=begun
    )
    result = {"lane": lane, "returned": begun, "reruns": begun, "failed": 0}
    event = Event("frame.abandoned", "RETURNED", step, stage_id, result=result)
    events.append(connection, execution_id, [event], frame_id=frame_id)
