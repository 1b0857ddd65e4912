"""Frames and the rows in them: created whole, taken by lanes, ended by the transaction that ends their last row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Json

from noetl_celery.engine.decision import Event
from noetl_celery.errors import ServiceError
from noetl_celery.store import events, ledger, signals
from noetl_celery.store.db import Connection, Reply, Rows, ask, every, json_value, one
from noetl_celery.store.loaders import elements_of
from noetl_celery.store.outbox import Dispatch
from noetl_celery.template.lazy import document


@dataclass(frozen=True, slots=True)
class NewFrame:
    """What a frame is made of. ``payloads`` are JSON values, one per row; ``weight`` the source rows in each."""

    frame_id: int
    stage_id: int
    execution_id: int
    index: int
    payloads: Sequence[Any]
    row_concurrency: int
    lanes: int
    claim_id: int | None = None
    #: what ``__claim_token`` is for its rows
    token: int | None = None
    slots: int = 1
    weight: int = 1
    fail_fast: bool = False
    #: rows that fail for good are handed to the playbook's dead letter statement first
    dead_letter: bool = False
    tentative: bool = False
    digests: Sequence[int] | None = None
    source: Mapping[str, Any] | None = None
    #: how many rows it has, where they are not ``payloads``
    elements: int | None = None

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.payloads) if self.elements is None else self.elements

    def lanes_of(self, queue: str, first: int = 0) -> Dispatch:
        """What asks for its lanes, from the ``first`` on."""
        place = self.execution_id, self.stage_id, self.frame_id
        return Dispatch("lanes", *place, tuple(range(first, self.lanes)), queue)

    def known(self) -> dict[str, Any]:
        """What a lane needs of it, as :func:`runs.start_lane` has it."""
        return {
            "frame_id": self.frame_id,
            "execution_id": self.execution_id,
            "claim_id": self.claim_id,
            "token": self.token,
            "frame_index": self.index,
            "rows": self.rows,
            "lanes": self.lanes,
            "row_concurrency": self.row_concurrency,
            "fail_fast": self.fail_fast,
        }


#: a lane is not worth its while for less work
LANE_WORK_SECONDS = 0.05


def lane_count(row_concurrency: int, rows: int, lane_width: int, row_seconds: float | None = None) -> int:
    """How many lanes a frame gets: enough for its concurrency, never more than it has rows, and where these are known
    to be short, not more than there is work for."""
    lanes = max(1, math.ceil(min(row_concurrency, max(rows, 1)) / lane_width))
    if row_seconds is None:
        return lanes
    return max(1, min(lanes, math.ceil(rows * row_seconds / lane_width / LANE_WORK_SECONDS)))


def lane_width(row_concurrency: int, lanes: int, lane: int) -> int:
    """The rows that this lane may work on at once; over all lanes they add up to ``row_concurrency``."""
    return row_concurrency // lanes + (1 if lane < row_concurrency % lanes else 0)


@dataclass(slots=True)
class FirstLane:
    """The run that takes the first lane of a frame as it is made, with its first ``rows``; so many of them ``begin`` as
    soon as that is committed."""

    run_id: int
    worker_id: int
    rows: int
    begin: int
    lease_seconds: float
    heartbeat_seconds: float
    #: of the statement that makes the frame
    reply: Reply[Rows] | None = None

    def taken(self) -> list[tuple[int, Any]]:
        """The rows that it has, when the frame is made: index and payload."""
        assert self.reply is not None
        return [(index, payload) for index, payload in self.reply()[0]["taken"] or ()]


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a new frame's lanes are asked for at once, and when they are published again. ``first``: one that needs no
    asking, as its worker makes the frame."""

    queue: str
    republish_seconds: float
    first: FirstLane | None = None


#: makes a frame and its rows, which are those that ``source`` selects (``place``, ``value``), and asks for its lanes;
#: returns the rows that its first lane has
_CREATE = """
    WITH made AS (
        INSERT INTO noetl.frame (frame_id, stage_id, execution_id, claim_id, token, status, frame_index, rows,
                                 open_rows, weight, slots, lanes, row_concurrency, fail_fast, dead_letter, digests,
                                 source, lane_requests, lane_starts)
        VALUES (%(frame)s, %(stage)s, %(execution)s, %(claim)s, %(token)s, %(status)s, %(index)s, %(rows)s, %(rows)s,
                %(weight)s, %(slots)s, %(lanes)s, %(concurrency)s, %(fail_fast)s, %(dead_letter)s, %(digests)s,
                %(claimed_at)s, %(asked)s, %(started)s)
    ), asked AS (
        INSERT INTO noetl.outbox (execution_id, stage_id, frame_id, lane, queue, publish_at)
        SELECT %(execution)s, %(stage)s, %(frame)s, lane, %(queue)s,
               clock_timestamp() + %(again)s * interval '1 second'
        FROM generate_series(%(started)s, %(asked)s - 1) AS lane
    ), started AS (
        INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lane, lease_seconds, lease_until,
                               heartbeat_seconds, begun)
        SELECT %(run)s, %(worker)s, %(execution)s, %(frame)s, 0, %(lease)s,
               clock_timestamp() + %(lease)s * interval '1 second', %(heartbeat)s,
               array(SELECT generate_series(%(start)s, %(start)s + %(begin)s - 1))
        WHERE %(started)s = 1
    ), rows AS (
        INSERT INTO noetl.row (frame_id, row_index, status, payload, taken_by, lane)
        SELECT %(frame)s, place, CASE WHEN first THEN 'TAKEN' ELSE 'READY' END, value,
               CASE WHEN first THEN %(run)s::bigint END, CASE WHEN first THEN 0 END
        FROM (SELECT place, value, place < %(start)s + %(taken)s AS first FROM ({source}) AS elements) AS given
        RETURNING row_index, payload, taken_by
    )
    SELECT count(*) AS made, json_agg(json_build_array(row_index, payload) ORDER BY row_index)
                                 FILTER (WHERE taken_by IS NOT NULL) AS taken
    FROM rows
"""
_PAYLOADS = "SELECT ordinality - 1 AS place, value FROM json_array_elements(%(payloads)s) WITH ORDINALITY"


def create(connection: Connection, frame: NewFrame, asked: Asked | None = None) -> list[Dispatch]:
    """Writes a frame with its rows: READY, but for those that its first lane has. Returns what to publish after the
    commit: its other lanes, if they are asked for now (else :func:`outbox.add_lanes` does)."""
    made = ask(
        connection,
        _CREATE.format(source=_PAYLOADS),
        **_frame_values(frame, asked),
        payloads=Json([document(payload) for payload in frame.payloads]),
        start=0,
    )
    if asked is not None and asked.first is not None:
        asked.first.reply = made
    return _lanes(frame, asked)


def create_slice(
    connection: Connection, frame: NewFrame, source: Mapping[str, Any], start: int, asked: Asked
) -> list[Dispatch]:
    """The same for a frame whose rows are made of elements of a kept list, which stay in the database.

    ``source`` is a reference to the list. The rows count on from frame to frame: their indexes begin with ``start``.
    Raises ``ServiceError`` if the list is not what it was any more.
    """
    elements, values = elements_of(source)
    made = ask(
        connection,
        _CREATE.format(source=elements),
        **_frame_values(frame, asked),
        **values,
        start=start,
        stop=start + frame.rows,
    )
    found = made()[0]["made"]
    if found != frame.rows:
        text = f"a list that a loop runs over has only {found} of {frame.rows} elements left: was it deleted?"
        raise ServiceError(text)
    if asked.first is not None:
        asked.first.reply = made
    return _lanes(frame, asked)


def _lanes(frame: NewFrame, asked: Asked | None) -> list[Dispatch]:
    if asked is None:
        return []
    wanted = frame.lanes_of(asked.queue, 0 if asked.first is None else 1)
    return [wanted] if wanted.lanes else []


def _frame_values(frame: NewFrame, asked: Asked | None) -> dict[str, Any]:
    first = None if asked is None else asked.first
    return {
        "started": 0 if first is None else 1,
        "run": first and first.run_id,
        "worker": first and first.worker_id,
        "taken": 0 if first is None else first.rows,
        "begin": 0 if first is None else first.begin,
        "lease": first and first.lease_seconds,
        "heartbeat": first and first.heartbeat_seconds,
        "frame": frame.frame_id,
        "stage": frame.stage_id,
        "execution": frame.execution_id,
        "claim": frame.claim_id,
        "token": frame.token,
        "status": "TENTATIVE" if frame.tentative else "RUNNING",
        "index": frame.index,
        "rows": frame.rows,
        "weight": frame.weight,
        "slots": frame.slots,
        "lanes": frame.lanes,
        "concurrency": frame.row_concurrency,
        "fail_fast": frame.fail_fast,
        "dead_letter": frame.dead_letter,
        "digests": list(frame.digests) if frame.digests is not None else None,
        "claimed_at": json_value(frame.source),
        "asked": 0 if asked is None else frame.lanes,
        "queue": "" if asked is None else asked.queue,
        "again": 0.0 if asked is None else asked.republish_seconds,
    }


def stopping(connection: Connection, frame_id: int) -> bool:
    """Does the frame start no more rows?"""
    row = one(connection, "SELECT stopping FROM noetl.frame WHERE frame_id = %(frame)s", frame=frame_id)
    return row is None or bool(row["stopping"])


def skip_unstarted(connection: Connection, frame_id: int) -> int:
    """Gives up the rows that have not started or are parked. Returns how many are still open: those at work, and
    those whose child is."""
    row = one(
        connection,
        """
        WITH skipped AS (
            UPDATE noetl.row SET status = 'SKIPPED', finished_at = clock_timestamp()
            WHERE frame_id = %(frame)s AND status IN ('READY', 'PARKED') AND waits_for IS NULL RETURNING row_index
        ), unplanned AS (
            DELETE FROM noetl.wakeup w USING skipped s WHERE w.frame_id = %(frame)s AND w.row_index = s.row_index
        )
        UPDATE noetl.frame SET stopping = true, open_rows = open_rows - (SELECT count(*) FROM skipped)
        WHERE frame_id = %(frame)s RETURNING open_rows
        """,
        frame=frame_id,
    )
    return int(row["open_rows"]) if row else 0


#: what the execution is told of a frame that has ended
_DONE = """json_build_object('stage', stage_id, 'frame', %(frame)s::bigint, 'slots', slots, 'ok', ok,
                             'failed', failed, 'ctx', has_ctx, 'retries', retries)"""


def end(connection: Connection, frame_id: int, *, republish_seconds: float) -> Mapping[str, Any] | None:
    """Ends a RUNNING frame that has no open row: its status, events and signal. Does nothing to one that has ended.
    Returns its counts and times, if it has.

    Lanes that were asked for and never started are not needed any more. The books of the frame are checked. Called by
    a transaction that has locked the frame.
    """
    return ending(connection, frame_id, None, republish_seconds=republish_seconds)()


def ending(
    connection: Connection, frame_id: int, run_id: int | None, *, republish_seconds: float
) -> Reply[Mapping[str, Any] | None]:
    """The same, sent together with what comes next: the rest is done when its reply is looked at, which is the frame
    that has ended. ``run_id`` ends with the frame."""
    ended = ask(
        connection,
        f"""
        WITH unneeded AS (
            DELETE FROM noetl.outbox o USING noetl.frame f
            WHERE o.frame_id = %(frame)s AND f.frame_id = o.frame_id AND f.status = 'RUNNING' AND f.open_rows = 0
            RETURNING o.lane
        ), ended AS (
            UPDATE noetl.frame f SET status = 'COMPLETED', completed_at = clock_timestamp(), lease_until = NULL,
                   lane_requests = f.lane_requests - (SELECT count(*) FROM unneeded)
            FROM noetl.stage s
            WHERE f.frame_id = %(frame)s AND f.status = 'RUNNING' AND f.open_rows = 0 AND s.stage_id = f.stage_id
            RETURNING f.frame_id, f.execution_id, f.stage_id, f.frame_index, f.slots, f.ok_rows * f.weight AS ok,
                      f.failed_rows * f.weight AS failed, f.has_ctx, f.reruns, f.retries, s.step_name, s.kind,
                      f.created_at, f.completed_at
        ), told AS (
            {signals.telling("'frame.done'", _DONE, "ended")}
        ), released AS (
            DELETE FROM noetl.run WHERE run_id = %(run)s::bigint AND EXISTS (SELECT FROM ended)
        )
        SELECT * FROM ended
        """,
        frame=frame_id,
        again=republish_seconds,
        run=run_id,
    )
    counted = ledger.count(connection, frame_id)

    def end() -> Mapping[str, Any] | None:
        frame = next(iter(ended()), None)
        if frame is None:
            return None
        ledger.check_frame(connection, counted)
        if frame["kind"] != "single":
            counts = {name: frame[name] for name in ("frame_index", "ok", "failed", "reruns")}
            place = (frame["step_name"], frame["stage_id"])
            told = [Event("frame.committed", "COMPLETED", *place, result=counts)]
            if frame["kind"] == "cursor":
                done = {"count": frame["ok"] + frame["failed"], **counts}
                told.insert(0, Event("cursor.item.done", "COMPLETED", *place, result=done))
            events.append(connection, frame["execution_id"], told, frame_id=frame_id)
        return frame

    return end


def stop_stage(connection: Connection, stage_id: int, *, republish_seconds: float) -> None:
    """No further row of the stage starts: unstarted rows are skipped."""
    running = every(
        connection,
        "SELECT frame_id FROM noetl.frame WHERE stage_id = %(stage)s AND status = 'RUNNING' FOR UPDATE",
        stage=stage_id,
    )
    for frame in running:
        if skip_unstarted(connection, frame["frame_id"]) == 0:
            end(connection, frame["frame_id"], republish_seconds=republish_seconds)
