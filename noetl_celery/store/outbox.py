"""Dispatches that nobody took yet.

A row is written by the transaction that decides on the work, and deleted by the one that takes it. Until then it is
published again and again, each time later: by its writer after the commit, then by the sweep. So one mechanism
covers a writer that died before publishing and a message that was lost after it. The row of a lane is also the
permission to start it (``runs.start_lane``): a message that comes twice starts one lane, now and ever after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from noetl_celery.store.db import Connection, changed, every, execute


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A message to send: a claim ticket, the lanes of a frame to start, or an execution to look at. Ids only."""

    kind: Literal["claim", "lanes", "orchestrate"]
    execution_id: int
    stage_id: int = 0
    target: int = 0
    lanes: tuple[int, ...] = ()
    queue: str = ""


def add_claim(
    connection: Connection,
    execution_id: int,
    stage_id: int,
    claim_id: int,
    queue: str,
    *,
    delay_seconds: float,
) -> None:
    """Notes that a claim ticket waits for a taker; published (again) after ``delay_seconds``. Idempotent."""
    execute(
        connection,
        """
        INSERT INTO noetl.outbox (execution_id, stage_id, claim_id, queue, publish_at)
        VALUES (%(execution)s, %(stage)s, %(claim)s, %(queue)s, clock_timestamp() + %(delay)s * interval '1 second')
        ON CONFLICT (claim_id) WHERE claim_id IS NOT NULL DO NOTHING
        """,
        execution=execution_id,
        stage=stage_id,
        claim=claim_id,
        queue=queue,
        delay=delay_seconds,
    )


def add_lanes(
    connection: Connection,
    execution_id: int,
    stage_id: int,
    frame_id: int,
    lanes: Sequence[int],
    queue: str,
    *,
    delay_seconds: float,
) -> Dispatch:
    """Asks for lanes of a RUNNING frame: each may be started once for it. Idempotent per lane until it is; asked for
    again, it is published again as soon as one that is new. Returns what to publish after the commit.

    The frame counts what is asked for (``lane_requests``), and is locked first: see ``store/rows.py``.
    """
    execute(
        connection,
        """
        WITH frame AS MATERIALIZED (
            SELECT frame_id FROM noetl.frame WHERE frame_id = %(frame)s AND status = 'RUNNING' FOR NO KEY UPDATE
        ), asked AS (
            INSERT INTO noetl.outbox (execution_id, stage_id, frame_id, lane, queue, publish_at)
            SELECT %(execution)s, %(stage)s, frame_id, lane, %(queue)s,
                   clock_timestamp() + %(delay)s * interval '1 second'
            FROM frame, unnest(%(lanes)s::smallint[]) AS lane
            ON CONFLICT (frame_id, lane) WHERE frame_id IS NOT NULL
            DO UPDATE SET publish_at = least(outbox.publish_at, excluded.publish_at)
            RETURNING xmax = 0 AS new
        )
        UPDATE noetl.frame SET lane_requests = lane_requests + (SELECT count(*) FROM asked WHERE new)
        WHERE frame_id = %(frame)s AND EXISTS (SELECT FROM asked WHERE new)
        """,
        execution=execution_id,
        stage=stage_id,
        frame=frame_id,
        lanes=list(lanes),
        queue=queue,
        delay=delay_seconds,
    )
    return Dispatch("lanes", execution_id, stage_id, frame_id, tuple(lanes), queue)


def take_claim(connection: Connection, claim_id: int) -> None:
    """The claim has a taker, or needs none any more."""
    execute(connection, "DELETE FROM noetl.outbox WHERE claim_id = %(claim)s", claim=claim_id)


def due(connection: Connection, *, limit: int, republish_seconds: float) -> list[Dispatch]:
    """Dispatches to publish again now; each moves its own next time on (doubling), so a full queue is not flooded."""
    rows = every(
        connection,
        """
        WITH late AS (
            SELECT outbox_id FROM noetl.outbox WHERE publish_at <= clock_timestamp()
            ORDER BY publish_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        )
        UPDATE noetl.outbox o SET published = o.published + 1,
               publish_at = clock_timestamp() + %(republish)s * 2 ^ least(o.published, 6) * interval '1 second'
        FROM late WHERE o.outbox_id = late.outbox_id
        RETURNING o.execution_id, o.stage_id, o.claim_id, o.frame_id, o.lane, o.queue
        """,
        limit=limit,
        republish=republish_seconds,
    )
    return [_dispatch(row) for row in rows]


def all_due(connection: Connection) -> int:
    """Messages may be lost: every dispatch is due now, but for claims that pause before another attempt. Their number.

    Idempotent. Rows that somebody holds at this moment are being taken, and left out.
    """
    return changed(
        connection,
        """
        WITH waiting AS (
            SELECT outbox_id FROM noetl.outbox o
            WHERE publish_at > clock_timestamp() AND (published > 0 OR NOT EXISTS (
                SELECT FROM noetl.claim c WHERE c.claim_id = o.claim_id AND c.attempts > 0))
            FOR UPDATE OF o SKIP LOCKED
        )
        UPDATE noetl.outbox o SET published = 0, publish_at = clock_timestamp()
        FROM waiting WHERE o.outbox_id = waiting.outbox_id
        """,
    )


def _dispatch(row: dict[str, object]) -> Dispatch:
    execution, stage, queue = int(str(row["execution_id"])), int(str(row["stage_id"])), str(row["queue"])
    if row["claim_id"] is not None:
        return Dispatch("claim", execution, stage, int(str(row["claim_id"])), queue=queue)
    return Dispatch("lanes", execution, stage, int(str(row["frame_id"])), (int(str(row["lane"])),), queue)
