"""Rows of frames: taken by lanes, parked, given back, woken; their outcomes end them, and the last one its frame.

Locks are taken in one order: rows that a run holds, the frame, rows that nobody holds, the outbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg.types.json import Json

from noetl_celery.errors import LeaseLost
from noetl_celery.store import frames, results
from noetl_celery.store.db import Connection, ask, every, execute, json_value, one
from noetl_celery.store.results import Kept


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """How a row ended, ready to be written. JSON columns hold encoded text, so that they are encoded once."""

    index: int
    ok: bool
    result: str | None = None
    error: str | None = None
    meta: str | None = None
    task_results: str | None = None
    ctx: str | None = None
    retries: int = 0
    aggregate: str | None = None
    #: what ``result`` and ``task_results`` refer to
    bodies: Sequence[Kept] = ()


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A row that a lane may work on."""

    index: int
    payload: Any
    position: Mapping[str, Any] | None
    crashes: int
    retries: int


@dataclass(frozen=True, slots=True)
class FrameEnd:
    """Whether a write ended its frame, and whether the frame starts no more rows; ``frame``: what
    :func:`frames.ending` says of the one that has ended."""

    ended: bool
    stopping: bool
    frame: Mapping[str, Any] | None = None


def take(
    connection: Connection,
    frame_id: int,
    run_id: int,
    lane: int,
    *,
    floor: int,
    limit: int,
    suspects: bool,
    begin: int = 0,
) -> list[TakenRow]:
    """Takes up to ``limit`` READY rows from index ``floor`` on, in order, for a run that still holds its lane.

    Without ``suspects`` rows that were in the air at a crash are passed over. Nothing is taken by a run that has
    lost its lease, and it cannot lose it before this transaction ends: rows taken by nobody would wait for ever.
    ``begin``: so many of them begin as soon as this is committed (:func:`runs.begin_rows`), and none has before.
    """
    rows = every(
        connection,
        """
        WITH held AS MATERIALIZED (
            SELECT FROM noetl.run WHERE run_id = %(run)s FOR KEY SHARE
        ), next AS MATERIALIZED ( -- as a plain subquery it may be run once per row, and its LIMIT means nothing
            SELECT row_index FROM noetl.row
            WHERE frame_id = %(frame)s AND row_index >= %(floor)s AND status = 'READY'
              AND (crashes = 0 OR %(suspects)s)
              AND EXISTS (SELECT FROM held)
            ORDER BY row_index LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ), begun AS (
            UPDATE noetl.run SET begun = array(SELECT row_index FROM next ORDER BY row_index LIMIT %(begin)s)
            WHERE run_id = %(run)s AND %(begin)s > 0
        )
        UPDATE noetl.row r SET status = 'TAKEN', taken_by = %(run)s, lane = %(lane)s
        FROM next WHERE r.frame_id = %(frame)s AND r.row_index = next.row_index
        RETURNING r.row_index, r.payload, r.position, r.crashes, r.retries
        """,
        frame=frame_id,
        run=run_id,
        lane=lane,
        floor=floor,
        limit=limit,
        suspects=suspects,
        begin=begin,
    )
    rows.sort(key=lambda row: row["row_index"])
    return [TakenRow(row["row_index"], row["payload"], row["position"], row["crashes"], row["retries"]) for row in rows]


def open_payloads(connection: Connection, frame_id: int) -> list[Any]:
    """What the rows of a frame that have not ended were claimed as."""
    found = every(
        connection,
        """
        SELECT payload FROM noetl.row WHERE frame_id = %(frame)s AND status IN ('READY', 'TAKEN', 'PARKED')
        ORDER BY row_index
        """,
        frame=frame_id,
    )
    return [row["payload"] for row in found]


def ready(connection: Connection, frame_id: int) -> bool:
    """Has the frame rows that a lane may take?"""
    found = one(
        connection,
        "SELECT EXISTS (SELECT FROM noetl.row WHERE frame_id = %(frame)s AND status = 'READY') AS found",
        frame=frame_id,
    )
    return bool(found and found["found"])


def finish(
    connection: Connection,
    frame_id: int,
    run_id: int,
    outcomes: Sequence[RowOutcome],
    *,
    republish_seconds: float,
    last: bool = False,
) -> FrameEnd:
    """Writes the outcomes of rows that ``run_id`` holds, and ends the frame if they were its last open ones.

    ``last``: the run has no others, and ends with the frame. Raises ``LeaseLost`` (the caller's transaction must roll
    back) if any of the rows is not held any more, so that a run which was taken for dead changes nothing.
    """
    results.write(connection, frame_id, [body for outcome in outcomes for body in outcome.bodies])
    asked = ask(
        connection,
        """
        WITH given AS (
            SELECT * FROM json_to_recordset(%(outcomes)s)
                AS g(row_index int, status text, result text, error text, meta text, task_results text, ctx text,
                     retries int, aggregate text)
        ), done AS (
            UPDATE noetl.row r
            SET status = g.status, taken_by = NULL, position = NULL, result = g.result::json, error = g.error::json,
                meta = g.meta::json, task_results = g.task_results::json, ctx = g.ctx::json, retries = g.retries,
                aggregate = g.aggregate::json, waits_for = NULL, finished_at = clock_timestamp()
            FROM given g
            WHERE r.frame_id = %(frame)s AND r.row_index = g.row_index AND r.status = 'TAKEN' AND r.taken_by = %(run)s
            RETURNING r.status, r.ctx IS NOT NULL AS ctx, r.retries
        ), counted AS (
            SELECT count(*) AS n, count(*) FILTER (WHERE status = 'OK') AS ok, coalesce(bool_or(ctx), false) AS ctx,
                   coalesce(sum(retries), 0) AS retries
            FROM done
        )
        UPDATE noetl.frame f
        SET open_rows = f.open_rows - c.n, ok_rows = f.ok_rows + c.ok, failed_rows = f.failed_rows + c.n - c.ok,
            retries = f.retries + c.retries,
            has_ctx = f.has_ctx OR c.ctx, stopping = f.stopping OR (f.fail_fast AND c.n > c.ok)
        FROM counted c WHERE f.frame_id = %(frame)s
        RETURNING c.n, f.open_rows, f.stopping
        """,
        frame=frame_id,
        run=run_id,
        outcomes=Json([_document(outcome) for outcome in outcomes]),
    )
    ending = partial(frames.ending, connection, frame_id, run_id if last else None, republish_seconds=republish_seconds)
    end = ending() if last else None  # with the rest, and not one round trip later
    row = next(iter(asked()), None)
    if row is None or row["n"] != len(outcomes):
        raise LeaseLost(f"frame {frame_id}: run {run_id} does not hold its rows any more")
    open_rows = row["open_rows"]
    if row["stopping"] and open_rows:
        end, open_rows = None, frames.skip_unstarted(connection, frame_id)
    ended = (end or ending())() if open_rows == 0 else None
    return FrameEnd(open_rows == 0, row["stopping"], ended)


def _document(outcome: RowOutcome) -> dict[str, Any]:
    return {
        "row_index": outcome.index,
        "status": "OK" if outcome.ok else "FAILED",
        "result": outcome.result,
        "error": outcome.error,
        "meta": outcome.meta,
        "task_results": outcome.task_results,
        "ctx": outcome.ctx,
        "retries": outcome.retries,
        "aggregate": outcome.aggregate,
    }


def park(
    connection: Connection,
    frame_id: int,
    run_id: int,
    index: int,
    position: Mapping[str, Any],
    *,
    seconds: float | None,
    retries: int,
    counts: bool,
    waits_for: int | None = None,
) -> None:
    """Parks a row for ``seconds`` (None: until its child wakes it, ``waits_for``). Raises ``LeaseLost``.

    ``counts``: it keeps its place in the lane's width.
    """
    changed = one(
        connection,
        """
        WITH parked AS (
            UPDATE noetl.row SET status = 'PARKED', taken_by = NULL, position = %(position)s, retries = %(retries)s,
                   lane = CASE WHEN %(counts)s THEN lane END, waits_for = %(waits_for)s
            WHERE frame_id = %(frame)s AND row_index = %(index)s AND status = 'TAKEN' AND taken_by = %(run)s
            RETURNING row_index
        ), planned AS (
            INSERT INTO noetl.wakeup (frame_id, row_index, due_at)
            SELECT %(frame)s, row_index, clock_timestamp() + %(seconds)s * interval '1 second' FROM parked
            WHERE %(seconds)s::float IS NOT NULL
            ON CONFLICT (frame_id, row_index) DO UPDATE SET due_at = excluded.due_at
        )
        SELECT row_index FROM parked
        """,
        frame=frame_id,
        run=run_id,
        index=index,
        position=Json(position),
        retries=retries,
        counts=counts,
        seconds=seconds,
        waits_for=waits_for,
    )
    if changed is None:
        raise LeaseLost(f"frame {frame_id}: run {run_id} does not hold row {index} any more")


def release(
    connection: Connection, frame_id: int, run_id: int, rows: Sequence[tuple[int, Mapping[str, Any] | None, int]]
) -> None:
    """Gives rows back unfinished, with the position they reached (None: as they were) and their retries so far.

    A row whose position names no child waits for none any more.
    """
    if not rows:
        return
    execute(
        connection,
        """
        UPDATE noetl.row r
        SET status = 'READY', taken_by = NULL, lane = NULL, retries = g.retries,
            position = coalesce(g.position::json, r.position),
            waits_for = CASE WHEN g.position IS NULL THEN r.waits_for ELSE (g.position ->> 'child')::bigint END
        FROM unnest(%(index)s::int[], %(position)s::json[], %(retries)s::int[]) AS g(row_index, position, retries)
        WHERE r.frame_id = %(frame)s AND r.row_index = g.row_index AND r.status = 'TAKEN' AND r.taken_by = %(run)s
        """,
        frame=frame_id,
        run=run_id,
        index=[index for index, _, _ in rows],
        position=[json_value(position) for _, position, _ in rows],
        retries=[retries for _, _, retries in rows],
    )


def due(connection: Connection, *, limit: int) -> list[int]:
    """Frames that have parked rows to wake now."""
    rows = every(
        connection,
        """
        SELECT DISTINCT frame_id FROM (
            SELECT frame_id FROM noetl.wakeup WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT %(limit)s
        ) first
        """,
        limit=limit,
    )
    return [row["frame_id"] for row in rows]


def wake(connection: Connection, frame_id: int, *, limit: int) -> list[dict[str, Any]]:
    """Makes due parked rows of a frame READY; returns ``{frame_id, stage_id, execution_id, lane, step_name}`` for each
    lane that they belong to."""
    return every(
        connection,
        """
        WITH frame AS MATERIALIZED (
            SELECT frame_id FROM noetl.frame WHERE frame_id = %(frame)s FOR NO KEY UPDATE
        ), late AS MATERIALIZED (
            SELECT w.frame_id, w.row_index FROM noetl.wakeup w JOIN frame USING (frame_id)
            WHERE w.due_at <= clock_timestamp()
            ORDER BY w.due_at LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED
        ), due AS (
            DELETE FROM noetl.wakeup w USING late
            WHERE w.frame_id = late.frame_id AND w.row_index = late.row_index
            RETURNING w.frame_id, w.row_index
        ), woken AS (
            UPDATE noetl.row r SET status = 'READY' FROM due
            WHERE r.frame_id = due.frame_id AND r.row_index = due.row_index AND r.status = 'PARKED'
            RETURNING r.frame_id, coalesce(r.lane, 0) AS lane
        )
        SELECT DISTINCT f.frame_id, f.stage_id, f.execution_id, w.lane, s.step_name
        FROM woken w JOIN noetl.frame f USING (frame_id) JOIN noetl.stage s USING (stage_id)
        """,
        frame=frame_id,
        limit=limit,
    )
