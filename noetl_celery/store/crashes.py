"""What becomes of the work of a run that died: its rows are suspects, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Json
from sqlalchemy.engine import Connection

from noetl_celery.engine.decision import Event
from noetl_celery.store import events, frames
from noetl_celery.store.db import one

_RETURN = """
    WITH held AS (
        UPDATE noetl.row r SET crashes = r.crashes + 1, taken_by = NULL, lane = NULL,
               status = CASE WHEN r.crashes + 1 >= d.fails_at THEN 'FAILED' ELSE 'READY' END,
               error = CASE WHEN r.crashes + 1 >= d.fails_at THEN %(error)s END,
               position = CASE WHEN r.crashes + 1 >= d.fails_at THEN NULL
                               WHEN r.crashes + 1 >= %(max)s THEN %(condemned)s::json ELSE r.position END,
               finished_at = CASE WHEN r.crashes + 1 >= d.fails_at THEN clock_timestamp() END
        FROM (SELECT %(max)s + dead_letter::int AS fails_at FROM noetl.frame WHERE frame_id = %(frame)s) d
        WHERE r.frame_id = %(frame)s AND r.status = 'TAKEN' AND r.taken_by = %(run)s
        RETURNING r.status
    ), counted AS (
        SELECT count(*) FILTER (WHERE status = 'FAILED') AS failed,
               count(*) FILTER (WHERE status = 'READY') AS again FROM held
    )
    UPDATE noetl.frame f
    SET open_rows = f.open_rows - c.failed, failed_rows = f.failed_rows + c.failed,
        reruns = f.reruns + c.again, attempt = f.attempt + 1,
        stopping = f.stopping OR (f.fail_fast AND c.failed > 0)
    FROM counted c, noetl.stage s
    WHERE f.frame_id = %(frame)s AND f.status = 'RUNNING' AND s.stage_id = f.stage_id
    RETURNING f.frame_id, f.stage_id, f.execution_id, f.open_rows, f.stopping, f.lanes, s.step_name, s.kind,
              c.again, c.failed
"""


def return_rows(
    connection: Connection, run: Mapping[str, Any], *, max_crashes: int, republish_seconds: float
) -> Mapping[str, Any] | None:
    """Returns the rows that a dead run held to READY and counts a crash on each; at ``max_crashes`` a row fails.

    Where the playbook has a dead letter statement, such a row goes to a lane once more, which only runs that; if its
    worker dies again, the row fails without.

    Returns the frame ``{frame_id, stage_id, execution_id, lane, step_name, open}`` if it has rows left to run, else
    None. Runs in the transaction that removed the run.
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
        result={"lane": run["lane"], "returned": frame["again"], "failed": frame["failed"]},
    )
    events.append(connection, frame["execution_id"], [event], frame_id=frame["frame_id"])
    open_rows = frame["open_rows"]
    if frame["stopping"] and open_rows:
        open_rows = frames.skip_unstarted(connection, frame["frame_id"])
    if open_rows == 0:
        frames.end(connection, frame["frame_id"], republish_seconds=republish_seconds)
        return None
    return {**frame, "lane": run["lane"]}
