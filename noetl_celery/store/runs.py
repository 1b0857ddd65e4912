"""Runs: the right of one delivery of a message to write. Leases are measured by the database's clock only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from noetl_celery.store.db import Connection, Reply, Rows, ask, changed, every, execute, one


def start_lane(
    connection: Connection, run_id: int, worker_id: int, frame_id: int, lane: int, *, lease: float, heartbeat: float
) -> Mapping[str, Any] | None:
    """Takes a lane of a RUNNING frame for ``run_id``, with the one request for it that is in the outbox. Returns what
    the lane needs of its frame (``places_taken`` as :func:`places_taken` says); None if nobody asks for the lane (any
    more), another run holds it, or nothing is left to start.

    A frame that is stopping still gets lanes for rows whose child has ended: they have to end as well.
    """
    started = ask(
        connection,
        """
        WITH open AS MATERIALIZED ( -- locked first: what waits for this lock finds the lane taken
            SELECT frame_id, execution_id, claim_id, token, frame_index, rows, lanes, row_concurrency, attempt,
                   stopping, fail_fast, has_ctx
            FROM noetl.frame WHERE frame_id = %(frame)s AND status = 'RUNNING' FOR NO KEY UPDATE
        ), asked AS (
            DELETE FROM noetl.outbox o USING open
            WHERE o.frame_id = open.frame_id AND o.lane = %(lane)s
              AND NOT EXISTS (SELECT FROM noetl.run r WHERE r.frame_id = o.frame_id AND r.lane = o.lane)
              AND (NOT open.stopping OR EXISTS (
                  SELECT FROM noetl.row r
                  WHERE r.frame_id = o.frame_id AND r.status = 'READY' AND r.waits_for IS NOT NULL))
            RETURNING o.frame_id, o.execution_id
        ), counted AS (
            UPDATE noetl.frame f SET lane_starts = f.lane_starts + 1 FROM asked WHERE f.frame_id = asked.frame_id
        ), started AS (
            INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lane, lease_seconds, lease_until,
                                   heartbeat_seconds, begun)
            SELECT %(run)s, %(worker)s, execution_id, frame_id, %(lane)s, %(lease)s,
                   clock_timestamp() + %(lease)s * interval '1 second', %(heartbeat)s, '{}'
            FROM asked
        )
        SELECT open.* FROM open JOIN asked USING (frame_id)
        """,
        run=run_id,
        worker=worker_id,
        frame=frame_id,
        lane=lane,
        lease=lease,
        heartbeat=heartbeat,
    )
    # a statement of its own: it sees what was committed while the first one waited for the lock
    places = _places_taken(connection, frame_id, lane)
    return next(({**frame, **places()[0]} for frame in started()), None)


def places_taken(connection: Connection, frame_id: int, lane: int) -> int:
    """How many rows count against this lane's width beside those that its holder has: parked ones, and those in the
    air of a run that is leaving the lane."""
    return int(_places_taken(connection, frame_id, lane)()[0]["places_taken"])


def _places_taken(connection: Connection, frame_id: int, lane: int) -> Reply[Rows]:
    return ask(
        connection,
        """
        SELECT count(*) AS places_taken FROM noetl.row r
        WHERE frame_id = %(frame)s AND lane = %(lane)s AND (status = 'PARKED' OR (
            status = 'TAKEN' AND EXISTS (SELECT FROM noetl.run n WHERE n.run_id = r.taken_by AND n.lane < 0)))
        """,
        frame=frame_id,
        lane=lane,
    )


def start_claim(
    connection: Connection, run_id: int, worker_id: int, execution_id: int, claim_id: int, *, lease: float
) -> bool:
    """Takes a claim ticket for ``run_id``. False if another run holds it."""
    return bool(
        changed(
            connection,
            """
            INSERT INTO noetl.run (run_id, worker_id, execution_id, claim_id, lease_seconds, lease_until,
                                   heartbeat_seconds)
            VALUES (%(run)s, %(worker)s, %(execution)s, %(claim)s, %(lease)s,
                    clock_timestamp() + %(lease)s * interval '1 second', %(lease)s)
            ON CONFLICT (claim_id) WHERE claim_id IS NOT NULL DO NOTHING
            """,
            run=run_id,
            worker=worker_id,
            execution=execution_id,
            claim=claim_id,
            lease=lease,
        )
    )


def finish_lane(connection: Connection, run_id: int, frame_id: int) -> Mapping[str, Any] | None:
    """Gives a lane up: rows that it still holds become READY again. Returns the frame's ``{status, stopping, parked}``
    (do PARKED rows exist), or None if the lease had been lost before: then nothing changes."""
    if not changed(connection, "DELETE FROM noetl.run WHERE run_id = %(run)s", run=run_id):
        return None
    execute(
        connection,
        """
        UPDATE noetl.row SET status = 'READY', taken_by = NULL, lane = NULL
        WHERE frame_id = %(frame)s AND status = 'TAKEN' AND taken_by = %(run)s
        """,
        frame=frame_id,
        run=run_id,
    )
    return _left(connection, frame_id)


def leave_lane(connection: Connection, run_id: int, frame_id: int) -> Mapping[str, Any] | None:
    """Makes room for another holder of the lane, while rows that this run still holds come to their end.

    Returns what ``finish_lane`` does; None if the frame starts no more rows, or if there is no room: an earlier holder
    of the lane is still leaving. The number of a lane that is being left is ``-1 - lane``. Idempotent.
    """
    moved = changed(
        connection,
        """
        UPDATE noetl.run r SET lane = least(lane, -1 - lane)
        WHERE run_id = %(run)s AND (lane < 0
            OR NOT EXISTS (SELECT FROM noetl.run o WHERE o.frame_id = r.frame_id AND o.lane = -1 - r.lane))
        """,
        run=run_id,
    )
    frame = _left(connection, frame_id) if moved else None
    return frame if frame is not None and frame["status"] == "RUNNING" and not frame["stopping"] else None


def _left(connection: Connection, frame_id: int) -> Mapping[str, Any] | None:
    """The lock: of two runs that give rows back at once, the second one sees what the first one left."""
    return one(
        connection,
        """
        SELECT f.status, f.stopping,
               EXISTS (SELECT FROM noetl.row r WHERE r.frame_id = f.frame_id AND r.status = 'PARKED') AS parked
        FROM noetl.frame f WHERE f.frame_id = %(frame)s FOR NO KEY UPDATE
        """,
        frame=frame_id,
    )


def finish(connection: Connection, run_id: int) -> None:
    """Gives the lane or claim up, if it is still held."""
    execute(connection, "DELETE FROM noetl.run WHERE run_id = %(run)s", run=run_id)


def held(connection: Connection, run_id: int) -> bool:
    """Does the run still hold its work? It does until this transaction ends."""
    return one(connection, "SELECT run_id FROM noetl.run WHERE run_id = %(run)s FOR KEY SHARE", run=run_id) is not None


#: the lease of run ``r`` of worker ``w`` is over, or its process is dead: session gone, and not seen since. A process
#: that dies closes its session at once, so its advisory lock says so long before its leases do; one that is only
#: paused keeps the lock and is given its whole lease.
_LOST = """
    (r.lease_until < clock_timestamp()
     OR ((w.worker_id IS NULL OR w.seen_at < clock_timestamp() - %(dead)s * interval '1 second')
         AND NOT EXISTS (
             SELECT FROM pg_locks l
             WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
               AND l.classid::bigint = r.worker_id >> 32 AND l.objid::bigint = r.worker_id & 4294967295)))
"""


def lost(connection: Connection, *, dead_after_seconds: float, limit: int) -> list[int]:
    """Runs whose lease is over, or whose process is dead."""
    rows = every(
        connection,
        f"SELECT r.run_id FROM noetl.run r LEFT JOIN noetl.worker w USING (worker_id) WHERE {_LOST} "
        "ORDER BY r.run_id LIMIT %(limit)s",
        dead=dead_after_seconds,
        limit=limit,
    )
    return [row["run_id"] for row in rows]


def expire(connection: Connection, run_id: int, *, dead_after_seconds: float) -> Mapping[str, Any] | None:
    """Removes a run that is lost, and returns it. None if it is not (any more), or somebody else is about it."""
    return one(
        connection,
        f"""
        WITH gone AS (
            SELECT r.run_id FROM noetl.run r LEFT JOIN noetl.worker w USING (worker_id)
            WHERE r.run_id = %(run)s AND {_LOST} FOR UPDATE OF r SKIP LOCKED
        )
        DELETE FROM noetl.run r USING gone WHERE r.run_id = gone.run_id
        RETURNING r.run_id, r.worker_id, r.execution_id, r.frame_id, r.claim_id, r.begun,
                  CASE WHEN r.lane < 0 THEN -1 - r.lane ELSE r.lane END AS lane
        """,
        run=run_id,
        dead=dead_after_seconds,
    )


def extend(session: psycopg.Connection[Any], runs: Sequence[int]) -> tuple[set[int], list[int]]:
    """The pulse's one statement: extends the leases of these runs. Returns those that are still held, and those of
    them whose frame wants a heartbeat event now. Runs in the session's own transaction (autocommit)."""
    rows = session.execute(
        """
        UPDATE noetl.run SET lease_until = clock_timestamp() + lease_seconds * interval '1 second'
        WHERE run_id = ANY(%(runs)s)
        RETURNING run_id, heartbeat_at + heartbeat_seconds * interval '1 second' <= clock_timestamp()
        """,
        {"runs": list(runs)},
    ).fetchall()
    return {run for run, _ in rows}, [run for run, due in rows if due]


def forfeit(session: psycopg.Connection[Any], runs: Sequence[int]) -> None:
    """Ends the leases of these runs, for the sweep to find. Idempotent; in the session's own transaction."""
    session.execute("UPDATE noetl.run SET lease_until = clock_timestamp() WHERE run_id = ANY(%s)", (list(runs),))


def begin_rows(session: psycopg.Connection[Any], run_id: int, rows: Sequence[int]) -> bool:
    """Notes which rows of a lane have begun, or begin now, and are not written yet. False if the run is gone: then
    none of them may begin. Its lease is whole from now on. Idempotent; in the session's own transaction (autocommit).
    """
    return bool(
        session.execute(
            """
            UPDATE noetl.run SET begun = %(rows)s,
                   lease_until = greatest(lease_until, clock_timestamp() + lease_seconds * interval '1 second')
            WHERE run_id = %(run)s
            """,
            {"run": run_id, "rows": list(rows)},
        ).rowcount
    )


def beat(session: psycopg.Connection[Any], runs: Sequence[int]) -> None:
    """Writes one ``frame.heartbeat`` event for each frame of these runs and moves their heartbeat on."""
    session.execute(
        """
        WITH beats AS (
            UPDATE noetl.run SET heartbeat_at = clock_timestamp()
            WHERE run_id = ANY(%(runs)s) AND frame_id IS NOT NULL RETURNING execution_id, frame_id, lease_until
        ), frames AS (
            UPDATE noetl.frame f SET lease_until = b.lease_until
            FROM beats b WHERE f.frame_id = b.frame_id AND f.status = 'RUNNING'
            RETURNING f.frame_id, f.execution_id, f.stage_id, f.ok_rows, f.failed_rows, f.open_rows, f.lease_until
        )
        INSERT INTO noetl.event (execution_id, event_type, status, node_name, stage_id, frame_id, result)
        SELECT f.execution_id, 'frame.heartbeat', 'RUNNING', s.step_name, f.stage_id, f.frame_id,
               jsonb_build_object('ok', f.ok_rows, 'failed', f.failed_rows, 'open', f.open_rows)
        FROM frames f JOIN noetl.stage s USING (stage_id) WHERE s.kind <> 'single'
        """,
        {"runs": list(runs)},
    )
