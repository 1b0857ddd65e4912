"""What tasks print: kept line by line, up to a limit for each execution, until the execution is pruned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noetl_celery.store.db import Connection, every, execute, one
from noetl_celery.store.events import plain

#: what a line counts for beside its text, towards the limit: about what its row takes
LINE_BYTES = 100
CUT = "(what is printed from here on is not kept: it is more than NOETL_LOG_BYTES; the workers' logs have it)"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a task of a row printed; ``at`` is on the monotonic clock of this process."""

    row: int
    task: str
    text: str
    at: float


def write(
    connection: Connection,
    place: tuple[int, int, int],
    run_id: int,
    lines: Sequence[Line],
    *,
    limit_bytes: int,
) -> None:
    """Writes lines in their order, of a frame (``place``: execution, stage, frame) that ``run_id`` still works on.

    From ``limit_bytes`` of the execution on nothing more is kept, which a last line says. Others who write at the same
    time are not seen, so it may be somewhat more. Waits for no reply.
    """
    execution_id, stage_id, frame_id = place
    now = time.monotonic()
    execute(
        connection,
        """
        INSERT INTO noetl.log (execution_id, stage_id, frame_id, row_index, task, text, total, printed_at)
        SELECT %(execution)s, %(stage)s, %(frame)s, row_index, task,
               CASE WHEN total < %(limit)s THEN text ELSE %(cut)s END, total,
               clock_timestamp() - age * interval '1 second'
        FROM (
            SELECT g.*, octet_length(g.text) + %(more)s AS bytes,
                   before.total + sum(octet_length(g.text) + %(more)s) OVER (ORDER BY g.place) AS total
            FROM unnest(%(rows)s::int[], %(tasks)s::text[], %(texts)s::text[], %(ages)s::float8[])
                 WITH ORDINALITY AS g(row_index, task, text, age, place)
            CROSS JOIN (
                SELECT coalesce((SELECT l.total FROM noetl.log l WHERE l.execution_id = %(execution)s
                                 ORDER BY l.log_id DESC LIMIT 1), 0) AS total) AS before
        ) AS given
        WHERE total - bytes < %(limit)s AND EXISTS (SELECT FROM noetl.run WHERE run_id = %(run)s)
        ORDER BY place
        """,
        execution=execution_id,
        stage=stage_id,
        frame=frame_id,
        run=run_id,
        rows=[line.row for line in lines],
        tasks=[line.task for line in lines],
        texts=[plain(line.text) for line in lines],
        ages=[now - line.at for line in lines],
        more=LINE_BYTES,
        limit=limit_bytes,
        cut=CUT,
    )


def read(
    connection: Connection, execution_id: int, *, step: str | None = None, after: int = 0, limit: int
) -> list[dict[str, Any]]:
    """Lines of an execution, or of all visits of one step, with an id above ``after``, oldest first, at most ``limit``.

    ``{log_id, at, step, visit, kind, frame, row, task, text}``: ``frame`` and ``row`` are those of
    :func:`noetl_celery.store.browse.rows`, ``kind`` that of the step: ``single``, ``collection`` or ``cursor``.
    """
    return every(
        connection,
        f"""
        SELECT l.log_id, l.printed_at AS at, s.step_name AS step, s.visit, s.kind, f.frame_index AS frame,
               l.row_index AS row, l.task, l.text
        FROM (
            SELECT l.log_id, l.stage_id, l.frame_id, l.row_index, l.task, l.text, l.printed_at FROM noetl.log l
            WHERE l.execution_id = %(execution)s AND l.log_id > %(after)s AND {_OF_STEP}
            ORDER BY l.log_id LIMIT %(limit)s
        ) AS l JOIN noetl.stage s USING (stage_id) JOIN noetl.frame f USING (frame_id)
        ORDER BY l.log_id
        """,
        execution=execution_id,
        step=step,
        after=after,
        limit=limit,
    )


def before_the_last(connection: Connection, execution_id: int, *, step: str | None = None, count: int) -> int:
    """The id behind which the last ``count`` lines are; those that are there now."""
    found = one(
        connection,
        f"""
        SELECT l.log_id FROM noetl.log l WHERE l.execution_id = %(execution)s AND {_OF_STEP}
        ORDER BY l.log_id DESC OFFSET %(count)s LIMIT 1
        """,
        execution=execution_id,
        step=step,
        count=count,
    )
    return int(found["log_id"]) if found else 0


_OF_STEP = """
    (%(step)s::text IS NULL OR l.stage_id = ANY(ARRAY(
        SELECT stage_id FROM noetl.stage WHERE execution_id = %(execution)s AND step_name = %(step)s)))
"""
