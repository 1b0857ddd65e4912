"""The books: what was claimed is what became of it, and lanes were started as often as they were asked for.

Of a frame, after each commit: rows = those in the table, ok and failed are the numbers of such rows, open = ready +
taken + parked, and requests for lanes = starts + requests that wait in the outbox. The transaction that ends a frame
checks it; whoever drains a stage or verifies an execution can have them all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from noetl_celery.engine.decision import Event
from noetl_celery.store import events
from noetl_celery.store.db import Connection, Reply, Rows, ask, every

log = logging.getLogger(__name__)

#: rows, and frames, that are named where the books do not balance
NAMED = 20


@dataclass(frozen=True, slots=True)
class Books:
    """The books of a stage, in rows of its source: where the pipeline gets a whole frame, those of the frame count."""

    stage_id: int
    step: str
    visit: int
    status: str
    claimed: int
    ok: int
    failed: int
    #: given up because the loop was stopped
    released: int
    parked: int
    ready: int
    taken: int
    #: lanes that were asked for, those that have started, and those that wait for a worker
    requests: int
    starts: int
    waiting: int
    #: rows that had begun and were run again because their worker died
    reruns: int
    #: attempts of rows that failed and were made again
    retries: int
    #: what does not balance, in words; empty if everything does
    differences: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


#: frames ``f`` with what their counters say, and beside it what is there
_COUNTED = """
    SELECT f.frame_id, f.frame_index, f.stage_id, f.weight, f.reruns, f.retries, f.rows, f.open_rows, f.ok_rows,
           f.failed_rows, f.lane_requests, f.lane_starts, r.*, coalesce(o.waiting, 0) AS waiting
    FROM noetl.frame f CROSS JOIN LATERAL (
        SELECT count(*) AS n, count(*) FILTER (WHERE status = 'OK') AS ok,
               count(*) FILTER (WHERE status = 'FAILED') AS failed,
               count(*) FILTER (WHERE status = 'SKIPPED') AS released,
               count(*) FILTER (WHERE status = 'PARKED') AS parked,
               count(*) FILTER (WHERE status = 'READY') AS ready, count(*) FILTER (WHERE status = 'TAKEN') AS taken
        FROM noetl.row WHERE frame_id = f.frame_id) r
    CROSS JOIN LATERAL (SELECT count(*) AS waiting FROM noetl.outbox WHERE frame_id = f.frame_id) o
"""
#: the same for frames that have ended and were checked then
_ENDED = """
    SELECT f.frame_id, f.frame_index, f.stage_id, f.weight, f.reruns, f.retries, f.rows, f.open_rows, f.ok_rows,
           f.failed_rows, f.lane_requests, f.lane_starts, f.rows, f.ok_rows, f.failed_rows,
           f.rows - f.ok_rows - f.failed_rows, 0, 0, 0, 0
    FROM noetl.frame f
"""
_BALANCED = """
    (n, ok, failed, ready + taken + parked) = (rows, ok_rows, failed_rows, open_rows)
    AND lane_requests = lane_starts + waiting
"""


def count(connection: Connection, frame_id: int) -> Reply[Rows]:
    """What the counters of a frame say, and what is there, for :func:`check_frame`."""
    return ask(connection, f"{_COUNTED} WHERE f.frame_id = %(frame)s", frame=frame_id)


def check_frame(connection: Connection, counted: Reply[Rows]) -> None:
    """Checks a frame that has just ended, in the transaction that ends it.

    A difference undoes nothing: it is told as the event ``ledger.difference`` with the numbers and the first rows that
    are not final, and logged as an error.
    """
    frame = counted()[0]
    frame_id, problems = frame["frame_id"], _problems(frame)
    if not problems:
        return
    found = every(
        connection,
        """
        SELECT f.execution_id, s.step_name, r.row_index, r.status
        FROM noetl.frame f JOIN noetl.stage s USING (stage_id)
        LEFT JOIN noetl.row r ON r.frame_id = f.frame_id AND r.status IN ('READY', 'TAKEN', 'PARKED')
        WHERE f.frame_id = %(frame)s ORDER BY r.row_index LIMIT %(limit)s
        """,
        frame=frame_id,
        limit=NAMED,
    )
    execution_id, step = found[0]["execution_id"], found[0]["step_name"]
    named = [{"row": row["row_index"], "status": row["status"]} for row in found if row["status"] is not None]
    log.error("execution %s, step %s: the books of frame %s: %s", execution_id, step, frame_id, "; ".join(problems))
    result = {"frame_index": frame["frame_index"], "differences": list(problems), "rows": named}
    event = Event("ledger.difference", "ALARM", step, frame["stage_id"], result=result)
    events.append(connection, execution_id, [event], frame_id=frame_id)


def check_stage(connection: Connection, execution_id: int, stage_id: int) -> None:
    """Checks a loop that has just closed against its frames, in the transaction that closes it; tells what differs."""
    books = of_stage(connection, stage_id)
    if books is None or not books.differences:
        return
    log.error("execution %s, step %s: the books: %s", execution_id, books.step, "; ".join(books.differences))
    result = {"differences": list(books.differences)}
    events.append(connection, execution_id, [Event("ledger.difference", "ALARM", books.step, stage_id, result=result)])


def of_execution(connection: Connection, execution_id: int, *, recount: bool = False) -> list[Books]:
    """The books of each stage of an execution that has frames, in the order in which the stages were opened.

    What frames that have ended say of themselves is believed, as it was checked then; ``recount`` looks at their rows,
    which takes about a second for a million of them.
    """
    return _books(connection, "s.execution_id = %(id)s", execution_id, recount=recount)


def of_stage(connection: Connection, stage_id: int, *, recount: bool = False) -> Books | None:
    """The books of a stage; None if it has no frame."""
    found = _books(connection, "s.stage_id = %(id)s", stage_id, recount=recount)
    return found[0] if found else None


def _books(connection: Connection, which: str, id_: int, *, recount: bool) -> list[Books]:
    of_stage = f"JOIN noetl.stage s ON s.stage_id = f.stage_id WHERE {which}"
    stages = every(
        connection,
        f"""
        WITH frames AS (
            {_COUNTED} {of_stage} AND (f.status = 'RUNNING' OR (f.status = 'COMPLETED' AND %(recount)s))
            UNION ALL
            {_ENDED} {of_stage} AND f.status = 'COMPLETED' AND NOT %(recount)s
        ), summed AS (
            SELECT stage_id, sum(n * weight) AS claimed, sum(ok * weight) AS ok, sum(failed * weight) AS failed,
                   sum(released * weight) AS released, sum(parked * weight) AS parked, sum(ready * weight) AS ready,
                   sum(taken * weight) AS taken, sum(lane_requests) AS requests, sum(lane_starts) AS starts,
                   sum(waiting) AS waiting, sum(reruns * weight) AS reruns, sum(retries) AS retries,
                   (array_agg(to_json(f) ORDER BY frame_index, frame_id) FILTER (WHERE NOT ({_BALANCED})))[:%(named)s]
                       AS wrong
            FROM frames f GROUP BY stage_id
        )
        SELECT s.stage_id, s.step_name AS step, s.visit, s.status, t.claimed, t.ok, t.failed, t.released, t.parked,
               t.ready, t.taken, t.requests, t.starts, t.waiting, t.reruns, t.retries, t.wrong, s.ok_rows,
               s.failed_rows, s.status <> 'OPEN' AND s.kind <> 'single' AS counted
        FROM summed t JOIN noetl.stage s USING (stage_id) ORDER BY s.opened_at, s.stage_id
        """,
        id=id_,
        recount=recount,
        named=NAMED,
    )
    return [_of(stage) for stage in stages]


_OF_A_STAGE = {field.name for field in fields(Books)}


def _of(stage: dict[str, Any]) -> Books:
    wrong = stage["wrong"] or ()
    differences = [f"frame {frame['frame_index']}: {text}" for frame in wrong for text in _problems(frame)]
    for name in ("ok", "failed") if stage["counted"] else ():
        if stage[f"{name}_rows"] != stage[name]:
            differences.append(f"the step counted {stage[f'{name}_rows']} rows {name}, its frames {stage[name]}")
    values: dict[str, Any] = {
        name: value if isinstance(value, str) else int(value) for name, value in stage.items() if name in _OF_A_STAGE
    }
    return Books(**values, differences=tuple(differences))


def _problems(frame: Mapping[str, Any]) -> tuple[str, ...]:
    """What does not balance in a frame."""
    pairs = (
        ("rows", frame["rows"], "in the table", frame["n"]),
        ("rows ok", frame["ok_rows"], "in the table", frame["ok"]),
        ("rows failed", frame["failed_rows"], "in the table", frame["failed"]),
        ("rows open", frame["open_rows"], "in the table", frame["ready"] + frame["taken"] + frame["parked"]),
        ("lanes asked for", frame["lane_requests"], "started or waiting", frame["lane_starts"] + frame["waiting"]),
    )
    return tuple(f"{said} {what}, {there} {where}" for what, said, where, there in pairs if said != there)
