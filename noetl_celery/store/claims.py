"""Claim tickets: issued by orchestration, answered once by whoever runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.json import Json

from noetl_celery.engine.decision import ClaimSpec, Event
from noetl_celery.errors import LeaseLost
from noetl_celery.store import events, outbox, signals
from noetl_celery.store.db import Connection, changed, every, execute, one
from noetl_celery.store.outbox import Dispatch


def issue(
    connection: Connection, execution_id: int, claims: Sequence[ClaimSpec], queue: str, *, republish_seconds: float
) -> list[Dispatch]:
    """Writes OPEN tickets, and that they wait for a taker; returns what to publish after the commit."""
    execute(
        connection,
        """
        WITH given AS (
            SELECT * FROM json_to_recordset(%(claims)s) AS c(claim_id bigint, stage_id bigint, index int, budget int,
                                                             sole boolean, more boolean, reclaim boolean)
        ), asked AS (
            INSERT INTO noetl.outbox (execution_id, stage_id, claim_id, queue, publish_at)
            SELECT %(execution)s, stage_id, claim_id, %(queue)s, clock_timestamp() + %(again)s * interval '1 second'
            FROM given
        )
        INSERT INTO noetl.claim (claim_id, stage_id, execution_id, status, frame_index, budget, sole, more, reclaim)
        SELECT claim_id, stage_id, %(execution)s, 'OPEN', index, budget, sole, more, reclaim FROM given
        """,
        execution=execution_id,
        queue=queue,
        again=republish_seconds,
        claims=Json(
            [
                {
                    "claim_id": claim.claim_id,
                    "stage_id": claim.stage_id,
                    "index": claim.index,
                    "budget": claim.budget,
                    "sole": claim.sole,
                    "more": claim.more,
                    "reclaim": claim.reclaim,
                }
                for claim in claims
            ]
        ),
    )
    return [Dispatch("claim", execution_id, claim.stage_id, claim.claim_id, queue=queue) for claim in claims]


def lock_open(connection: Connection, claim_id: int) -> Mapping[str, Any] | None:
    """The ticket, locked for this transaction, or None if it is answered, taken or being answered right now."""
    return one(
        connection,
        """
        SELECT claim_id, stage_id, execution_id, frame_index, budget, sole, more, reclaim, attempts FROM noetl.claim
        WHERE claim_id = %(claim)s AND status = 'OPEN' FOR UPDATE SKIP LOCKED
        """,
        claim=claim_id,
    )


def failing(connection: Connection, claim_id: int) -> Mapping[str, Any] | None:
    """An unanswered ticket, locked, with who holds it."""
    return one(
        connection,
        """
        SELECT c.claim_id, c.stage_id, c.execution_id, c.frame_index, c.budget, c.sole, c.attempts, c.taken_by,
               s.step_name, e.path
        FROM noetl.claim c JOIN noetl.stage s USING (stage_id) JOIN noetl.execution e ON e.execution_id = c.execution_id
        WHERE c.claim_id = %(claim)s AND c.status IN ('OPEN', 'TAKEN') FOR UPDATE OF c SKIP LOCKED
        """,
        claim=claim_id,
    )


def orphaned(connection: Connection, *, limit: int) -> list[dict[str, Any]]:
    """TAKEN tickets whose run is gone: the process that ran them died, or was paused for too long."""
    return every(
        connection,
        """
        SELECT claim_id, stage_id, execution_id, frame_index, budget, sole, attempts, taken_by FROM noetl.claim c
        WHERE status = 'TAKEN' AND NOT EXISTS (SELECT FROM noetl.run r WHERE r.run_id = c.taken_by)
        ORDER BY claim_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        """,
        limit=limit,
    )


def take(connection: Connection, claim_id: int, run_id: int) -> None:
    """OPEN → TAKEN by a run, for sources whose claim cannot share our transaction; its outbox row has served."""
    outbox.take_claim(connection, claim_id)
    _expect(
        changed(
            connection,
            """
            UPDATE noetl.claim SET status = 'TAKEN', taken_by = %(run)s
            WHERE claim_id = %(claim)s AND status = 'OPEN'
            """,
            claim=claim_id,
            run=run_id,
        ),
        claim_id,
    )


def hold(connection: Connection, claim_id: int, run_id: int) -> None:
    """Asserts that the run still holds the ticket, and keeps it so until the transaction ends. Raises ``LeaseLost``."""
    _expect(
        changed(
            connection,
            """
            SELECT FROM noetl.claim c JOIN noetl.run r ON r.run_id = c.taken_by
            WHERE c.claim_id = %(claim)s AND c.status = 'TAKEN' AND c.taken_by = %(run)s FOR UPDATE
            """,
            claim=claim_id,
            run=run_id,
        ),
        claim_id,
    )


def answer(
    connection: Connection,
    claim: Mapping[str, Any],
    status: str,
    signal: str,
    data: Mapping[str, Any],
    *,
    run_id: int | None,
    republish_seconds: float,
) -> None:
    """Ends a ticket (FILLED, EMPTY, FAILED) and tells the execution. ``LeaseLost``: the run does not hold it."""
    fields = {"stage": claim["stage_id"], "claim": claim["claim_id"], "budget": claim["budget"], **data}
    told = changed(
        connection,
        f"""
        WITH answered AS (
            UPDATE noetl.claim SET status = %(status)s, taken_by = NULL
            WHERE claim_id = %(claim)s AND (status = 'OPEN' AND %(run)s::bigint IS NULL OR taken_by = %(run)s)
            RETURNING claim_id, execution_id
        ), taken AS (
            DELETE FROM noetl.outbox o USING answered a WHERE o.claim_id = a.claim_id
        )
        {signals.telling("%(signal)s", "%(data)s", "answered")}
        """,
        claim=claim["claim_id"],
        status=status,
        run=run_id,
        signal=signal,
        data=Json(fields),
        again=republish_seconds,
    )
    _expect(told, claim["claim_id"])


def reopen(connection: Connection, claim_id: int, *, run_id: int | None, failed: bool) -> Mapping[str, Any] | None:
    """Makes a ticket OPEN again, after a failed attempt or when its run is lost. None if it is answered already."""
    return one(
        connection,
        """
        UPDATE noetl.claim SET status = 'OPEN', taken_by = NULL, attempts = attempts + %(failed)s::int
        WHERE claim_id = %(claim)s AND status IN ('OPEN', 'TAKEN')
          AND (taken_by IS NOT DISTINCT FROM %(run)s)
        RETURNING claim_id, stage_id, execution_id, attempts
        """,
        claim=claim_id,
        run=run_id,
        failed=failed,
    )


def recall(connection: Connection, stage_id: int, *, republish_seconds: float) -> None:
    """Takes back the tickets of a stage that nobody has taken, and tells the execution so."""
    recalled = every(
        connection,
        """
        WITH gone AS (
            UPDATE noetl.claim SET status = 'CANCELLED' WHERE stage_id = %(stage)s AND status = 'OPEN'
            RETURNING claim_id, execution_id, budget, reclaim
        ), unsent AS (DELETE FROM noetl.outbox o USING gone WHERE o.claim_id = gone.claim_id)
        SELECT * FROM gone
        """,
        stage=stage_id,
    )
    for claim in recalled:
        data = {"stage": stage_id, "claim": claim["claim_id"], "budget": claim["budget"], "reclaim": claim["reclaim"]}
        signals.add(connection, claim["execution_id"], "claim.recalled", data, republish_seconds=republish_seconds)


def let_go(connection: Connection, claim_id: int, run_id: int) -> None:
    """Counts a failed attempt and ends its run; the ticket stays TAKEN until the source says what became of it."""
    execute(
        connection,
        """
        WITH gone AS (DELETE FROM noetl.run WHERE run_id = %(run)s)
        UPDATE noetl.claim SET attempts = attempts + 1 WHERE claim_id = %(claim)s AND taken_by = %(run)s
        """,
        claim=claim_id,
        run=run_id,
    )


def confirm(connection: Connection, claim_id: int) -> list[dict[str, Any]]:
    """TENTATIVE frames of a ticket whose source transaction has committed become RUNNING; returns them."""
    return every(
        connection,
        """
        UPDATE noetl.frame SET status = 'RUNNING', source = NULL WHERE claim_id = %(claim)s AND status = 'TENTATIVE'
        RETURNING frame_id, stage_id, execution_id, rows, slots, weight, lanes, frame_index
        """,
        claim=claim_id,
    )


def forget(connection: Connection, claim_id: int) -> None:
    """Removes the TENTATIVE frames of a ticket whose source transaction was undone."""
    execute(
        connection,
        """
        WITH gone AS (DELETE FROM noetl.frame WHERE claim_id = %(claim)s AND status = 'TENTATIVE' RETURNING frame_id)
        DELETE FROM noetl.row r USING gone WHERE r.frame_id = gone.frame_id
        """,
        claim=claim_id,
    )


def tentative(connection: Connection, claim_id: int) -> list[dict[str, Any]]:
    """The unresolved frames of a ticket with the source transaction that they depend on."""
    return every(
        connection,
        "SELECT frame_id, source FROM noetl.frame WHERE claim_id = %(claim)s AND status = 'TENTATIVE'",
        claim=claim_id,
    )


#: answers in a row that are exactly alike before a source counts as endless: where all their rows were ok, and where
#: some failed (an honest queue hands out a failed row again)
ALIKE_OK, ALIKE_FAILED = 3, 20


def known(connection: Connection, stage_id: int, digests: Sequence[int], *, kept: bool) -> dict[int, bool]:
    """Which of these rows frames of the stage have already: digest → is it still at work (or waiting for it)?

    ``kept``: the source keeps for us what it has handed out, so that a TENTATIVE frame has its rows for sure, and one
    that has ended too. Else only those at work are looked for.
    """
    rows = every(
        connection,
        f"""
        SELECT d.digest, bool_or(r.status IN ('READY', 'TAKEN', 'PARKED')) AS at_work
        FROM noetl.frame f, unnest(f.digests) WITH ORDINALITY AS d(digest, place), noetl.row r
        WHERE f.stage_id = %(stage)s AND f.digests && %(digests)s::bigint[]
          AND {"f.status IN ('RUNNING', 'COMPLETED', 'TENTATIVE')" if kept else "f.status = 'RUNNING'"}
          AND d.digest = ANY(%(digests)s::bigint[]) AND r.frame_id = f.frame_id
          AND r.row_index = CASE WHEN f.weight > 1 THEN 0 ELSE d.place - 1 END
        GROUP BY d.digest
        """,
        stage=stage_id,
        digests=list(digests),
    )
    return {row["digest"]: row["at_work"] for row in rows}


def seen_before(connection: Connection, stage_id: int, digests: Sequence[int]) -> str | None:
    """Why a source looks as if its claims change nothing, or None.

    Either one of these rows waits in an open frame and nobody has begun it, so no body can have given it back; or
    the last claims have returned exactly these rows, again and again. A TENTATIVE frame proves nothing: if its claim
    was undone, its rows are anybody's.
    """
    if not _met(connection, stage_id, digests):
        return None
    waiting = one(
        connection,
        """
        SELECT EXISTS (
            SELECT FROM noetl.frame f, unnest(f.digests) WITH ORDINALITY AS d(digest, place), noetl.row r
            WHERE f.stage_id = %(stage)s AND f.status = 'RUNNING' AND f.digests && %(digests)s::bigint[]
              AND d.digest = ANY(%(digests)s::bigint[]) AND r.frame_id = f.frame_id
              AND r.row_index = CASE WHEN f.weight > 1 THEN 0 ELSE d.place - 1 END
              AND r.status IN ('READY', 'PARKED')) AS found
        """,
        stage=stage_id,
        digests=list(digests),
    )
    if waiting and waiting["found"]:
        return "a claim returned a row that waits in another open frame"
    alike, ok = _alike(connection, stage_id, digests, ALIKE_OK - 1)
    if alike and (ok or _alike(connection, stage_id, digests, ALIKE_FAILED - 1)[0]):
        return f"{ALIKE_OK if ok else ALIKE_FAILED} claims in a row returned exactly the same rows"
    return None


def _met(connection: Connection, stage_id: int, digests: Sequence[int]) -> bool:
    """Is one of these rows in an open frame of a stage, or in its last one? If not, all is well."""
    row = one(
        connection,
        """
        SELECT EXISTS (SELECT FROM noetl.frame WHERE stage_id = %(stage)s AND status = 'RUNNING'
                       AND digests && %(digests)s::bigint[])
            OR (SELECT digests && %(digests)s::bigint[] FROM noetl.frame
                WHERE stage_id = %(stage)s AND status <> 'TENTATIVE' ORDER BY frame_index DESC LIMIT 1) AS met
        """,
        stage=stage_id,
        digests=list(digests),
    )
    return bool(row and row["met"])


def _alike(connection: Connection, stage_id: int, digests: Sequence[int], answers: int) -> tuple[bool, bool]:
    """Did the last ``answers`` claims of a stage all return these rows, and did none of those fail?"""
    row = one(
        connection,
        """
        SELECT count(*) = %(answers)s AND bool_and(digests = %(digests)s::bigint[]) AS alike, sum(failed) = 0 AS ok
        FROM (-- the frames that one claim was cut into are one answer
              SELECT array_agg(d.digest ORDER BY f.frame_id, d.place) AS digests, max(f.failed_rows) AS failed
              FROM noetl.frame f, unnest(f.digests) WITH ORDINALITY AS d(digest, place)
              WHERE f.stage_id = %(stage)s AND f.status <> 'TENTATIVE' AND f.frame_index IN (
                  SELECT DISTINCT frame_index FROM noetl.frame WHERE stage_id = %(stage)s AND status <> 'TENTATIVE'
                  ORDER BY frame_index DESC LIMIT %(answers)s)
              GROUP BY f.frame_index) AS last
        """,
        stage=stage_id,
        digests=list(digests),
        answers=answers,
    )
    return (bool(row["alike"]), bool(row["ok"])) if row else (False, False)


def claimed_event(claim: Mapping[str, Any], step: str, rows: int) -> Event:
    """The one event of a filled claim."""
    result = {"rows": rows, "frame_index": claim["frame_index"]}
    return Event("frame.claimed", "RUNNING", step, claim["stage_id"], result=result)


def tell(connection: Connection, execution_id: int, frame_id: int, event: Event) -> None:
    """Writes an event about a frame."""
    events.append(connection, execution_id, [event], frame_id=frame_id)


def _expect(rowcount: int, claim_id: int) -> None:
    if not rowcount:
        raise LeaseLost(f"claim {claim_id} is not held any more")
