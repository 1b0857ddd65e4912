"""``noetl.claim``: runs a claim ticket, makes a frame of the rows, dispatches its lanes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from noetl_celery import faults
from noetl_celery.cursors.base import Claimed, ClaimRequest, Cursor
from noetl_celery.engine.decision import Event
from noetl_celery.errors import ErrorInfo, LeaseLost, TemplateError, ToolError
from noetl_celery.ids import new_id
from noetl_celery.runtime.names import StageNames, load_stage
from noetl_celery.runtime.process import Process
from noetl_celery.runtime.publish import Publisher
from noetl_celery.runtime.sources import acknowledge, cursor_of, source_of
from noetl_celery.settings import CONTROL_QUEUE
from noetl_celery.store import claims, events, frames, outbox, runs, stages
from noetl_celery.store.decisions import body_queue
from noetl_celery.store.outbox import Dispatch
from noetl_celery.template import Value

log = logging.getLogger(__name__)

#: a claim that failed for a passing reason is tried this often, with these pauses (seconds)
ATTEMPTS = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

Ticket = Mapping[str, Any]


@dataclass(slots=True)
class _Answer:
    """What a committed claim leaves to do."""

    dispatches: list[Dispatch]
    orchestrate: bool


@dataclass(frozen=True, slots=True)
class Filled:
    """A frame that a ticket was answered with; ``rows`` are those of the source."""

    frame_id: int
    lanes: int
    slots: int
    rows: int


def run_claim(process: Process, publisher: Publisher, claim_id: int) -> None:
    """Answers a ticket. Safe to run any number of times, also at once: the ticket is answered once.

    In our own database claim, frame and answer are one transaction. Elsewhere the rows are recorded as a tentative
    frame before the source commits; the sweep settles what a crash leaves between the two.
    """
    run_id = new_id()
    try:
        answer = process.db.run(lambda connection: _claim_here(process, connection, claim_id))
        if answer is None:
            answer = _claim_elsewhere(process, claim_id, run_id)
    except (ToolError, TemplateError) as error:
        answer = _failed(process, claim_id, run_id, error)
    except LeaseLost as lost:
        log.info("%s", lost)
        return
    if answer is None:
        return
    faults.reached("claim.committed")
    publisher.dispatch(answer.dispatches)
    if answer.orchestrate:
        ticket = process.db.run(lambda connection: claims.execution_of(connection, claim_id))
        if ticket is not None:
            publisher.orchestrate(ticket)


def _claim_here(process: Process, connection: Connection, claim_id: int) -> _Answer | None:
    """Claim, frame and answer in this transaction. None if the source is another database (nothing was done)."""
    ticket = claims.lock_open(connection, claim_id)
    if ticket is None:
        return _Answer([], False)
    prepared = _prepare(process, connection, ticket)
    if prepared is None:
        return _Answer([], False)
    driver, stage, request = prepared
    if stage.cancelling:
        return _answer(process, connection, ticket, stage, Claimed((), dry=False), [], run_id=None)
    if not driver.same_place(request.credential, process.settings.libpq_url):
        return None
    session = connection.connection.driver_connection
    claimed = driver.claim(replace(request, session=session), lambda rows, source: None)
    faults.reached("claim.claimed")
    rows, _ = _fresh(connection, stage, driver, claimed.rows)
    made = _make_frames(process, connection, ticket, stage, rows, source=None)
    return _answer(process, connection, ticket, stage, claimed, made, run_id=None)


def _claim_elsewhere(process: Process, claim_id: int, run_id: int) -> _Answer | None:
    begun = process.db.run(lambda connection: _take(process, connection, claim_id, run_id))
    if begun is None:
        return None
    ticket, (driver, stage, request) = begun
    made: list[frames.NewFrame] = []
    done: list[Mapping[str, Any]] = []

    def record(rows: Sequence[Mapping[str, Any]], source: Mapping[str, Any]) -> None:
        auth = request.options.get("auth")
        # Who settles this needs the credential: by its name, or rendered anew; the fields of one are kept nowhere.
        where = {**source, "auth": auth if isinstance(auth, str) else None}

        def write(connection: Connection) -> None:
            claims.hold(connection, claim_id, run_id)
            claims.forget(connection, claim_id)
            fresh, done[:] = _fresh(connection, stage, driver, rows)
            made[:] = _make_frames(process, connection, ticket, stage, fresh, source=where)

        process.db.run(write)
        faults.reached("claim.recorded")

    lease = process.settings.lease_seconds
    # Nothing to stop when it is lost: whatever is written next finds that out.
    process.pulse.hold(run_id, lease=lease, heartbeat=lease, lost=lambda: None)
    try:
        claimed = driver.claim(request, record)
        faults.reached("claim.source_committed")
        answer = process.db.run(lambda connection: _confirm(process, connection, ticket, stage, claimed, made, run_id))
        if done:
            acknowledge(source_of(process, stage, claim_names(ticket, stage)), done)
        return answer
    finally:
        process.pulse.drop(run_id)


def _take(process: Process, connection: Connection, claim_id: int, run_id: int) -> Any:
    ticket = claims.lock_open(connection, claim_id)
    if ticket is None:
        return None
    prepared = _prepare(process, connection, ticket)
    if prepared is None:
        return None
    runs.start_claim(
        connection,
        run_id,
        process.worker_id,
        ticket["execution_id"],
        claim_id,
        lease=process.settings.lease_seconds,
    )
    claims.take(connection, claim_id, run_id)
    return ticket, prepared


def _confirm(
    process: Process,
    connection: Connection,
    ticket: Ticket,
    stage: StageNames,
    claimed: Claimed,
    made: list[frames.NewFrame],
    run_id: int,
) -> _Answer:
    claims.hold(connection, ticket["claim_id"], run_id)
    claims.confirm(connection, ticket["claim_id"])
    answer = _answer(process, connection, ticket, stage, claimed, made, run_id=run_id)
    runs.finish(connection, run_id)
    return answer


def _prepare(
    process: Process, connection: Connection, ticket: Ticket
) -> tuple[Cursor, StageNames, ClaimRequest] | None:
    stage = load_stage(process, connection, ticket["stage_id"])
    if stage is None:
        return None
    bindings = claim_names(ticket, stage)
    source = source_of(process, stage, bindings)
    cursor = cursor_of(stage)
    names = stage.of_stage(bindings)

    def rendered(statement: Value | None, when: bool) -> str | None:
        return str(statement.render(names)) if statement is not None and when else None

    request = ClaimRequest(
        claim=source.claim,
        bindings={**bindings, "execution_id": str(stage.execution_id)},
        credential=source.credential,
        timeout_seconds=process.settings.claim_timeout_seconds,
        budget=ticket["budget"],
        options={"auth": source.auth, **source.options},
        reclaim=rendered(cursor.reclaim, bool(ticket["reclaim"])),
        count=rendered(cursor.count, ticket["frame_index"] == 0),
    )
    return source.driver, stage, request


def claim_names(ticket: Ticket, stage: StageNames) -> dict[str, Any]:
    """The claim parameters, as template names and as bindings. The claim token is fresh for every ticket."""
    return {
        "__frame_max_rows": stage.settings.max_rows,
        "__frame_index": ticket["frame_index"],
        "__cursor_frame": ticket["frame_index"],
        "__worker_slot_id": f"{stage.stage_id}:{ticket['frame_index']}",
        "__claim_token": str(ticket["claim_id"]),
    }


def _fresh(
    connection: Connection, stage: StageNames, driver: Cursor, rows: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The rows that this stage does not have already, and those that it has finished and its source does not know of.

    A source that hands out again what was not acknowledged, or a stale re-claim that is quicker than our own rows,
    returns rows that are at work here: they are ours as it is, and are left out.
    """
    if not rows or not (driver.acknowledges or cursor_of(stage).reclaim is not None):
        return list(rows), []
    digests = [_digest(row) for row in rows]
    known = claims.known(connection, stage.stage_id, digests)
    fresh, done = [], []
    for row, digest in zip(rows, digests, strict=True):
        at_work = known.get(digest)
        if at_work is None or not (at_work or driver.acknowledges):
            fresh.append(row)
        elif not at_work:
            done.append(row)
    return fresh, done


def _make_frames(
    process: Process,
    connection: Connection,
    ticket: Ticket,
    stage: StageNames,
    rows: Sequence[Mapping[str, Any]],
    *,
    source: Mapping[str, Any] | None,
) -> list[frames.NewFrame]:
    """Writes the rows as one frame, or as several where ``max_bytes`` says so. Raises ``ToolError`` for a claim that
    leases the same rows again."""
    if not rows:
        return []
    loop, settings = stage.step.loop, stage.settings
    assert loop is not None
    digests = [_digest(row) for row in rows]
    again = claims.seen_before(connection, stage.stage_id, digests)
    if again is not None:
        hint = "the claim must change what it returns (UPDATE … RETURNING), or it leases the same rows for ever"
        raise ToolError(ErrorInfo("endless_claim", f"{again}: {hint}"))
    made = []
    for start, end in _cuts(rows, settings.max_bytes):
        part = list(rows[start:end])
        whole = loop.frame.process == "frame"
        payloads: list[Any] = [part] if whole else part
        concurrency = settings.row_concurrency if loop.frame.given else len(part)
        frame = frames.NewFrame(
            frame_id=new_id(),
            stage_id=stage.stage_id,
            execution_id=stage.execution_id,
            index=ticket["frame_index"],
            payloads=payloads,
            row_concurrency=concurrency,
            lanes=frames.lane_count(concurrency, len(payloads), process.settings.lane_width),
            claim_id=ticket["claim_id"],
            # The pieces of one claim hold its slots together: the first counts for all of them.
            slots=_slots(settings.batch, len(rows)) if start == 0 else 0,
            weight=len(part) if whole else 1,
            fail_fast=stage.step.failure_mode == "fail_fast",
            dead_letter=cursor_of(stage).dead_letter is not None,
            tentative=source is not None,
            digests=digests[start:end],
            source=source,
        )
        frames.create(connection, frame)
        made.append(frame)
    return made


def _slots(batch: int, rows: int) -> int:
    return rows if batch > 1 else 1


def _cuts(rows: Sequence[Mapping[str, Any]], max_bytes: int | None) -> list[tuple[int, int]]:
    if max_bytes is None:
        return [(0, len(rows))]
    cuts, start, size = [], 0, 0
    for index, row in enumerate(rows):
        length = len(json.dumps(row, ensure_ascii=False))
        if index > start and size + length > max_bytes:
            cuts.append((start, index))
            start, size = index, 0
        size += length
    return [*cuts, (start, len(rows))]


def _digest(row: Mapping[str, Any]) -> int:
    text = json.dumps(row, sort_keys=True, ensure_ascii=False)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True)


def _answer(
    process: Process,
    connection: Connection,
    ticket: Ticket,
    stage: StageNames,
    claimed: Claimed,
    made: Sequence[frames.NewFrame],
    *,
    run_id: int | None,
) -> _Answer:
    """FILLED with the frames' lanes in the outbox, or EMPTY; either way with the signal."""
    again = process.settings.republish_seconds
    if claimed.total is not None:
        stages.set_total(connection, stage.stage_id, claimed.total)
    if not made and not claimed.rows:
        claims.answer(
            connection, ticket, "EMPTY", "claim.empty", {"sole": ticket["sole"]}, run_id=run_id, republish_seconds=again
        )
        return _Answer([], True)
    filled = [Filled(frame.frame_id, frame.lanes, frame.slots, len(frame.payloads) * frame.weight) for frame in made]
    dispatches = fill(
        process,
        connection,
        ticket,
        body_queue(stage.plan, stage.step.name, process.settings),
        stage.step.name,
        filled,
        # Nothing but rows that are at work here already: asking again at once would return the same.
        dry=claimed.dry or not made,
        run_id=run_id,
    )
    return _Answer(dispatches, bool(ticket["more"]) or not made)


def fill(
    process: Process,
    connection: Connection,
    ticket: Ticket,
    queue: str,
    step: str,
    made: Sequence[Filled],
    *,
    dry: bool,
    run_id: int | None,
) -> list[Dispatch]:
    """Answers a ticket with its frames, all RUNNING now: their lanes, events and the signal. Raises ``LeaseLost``."""
    again = process.settings.republish_seconds
    place = ticket["execution_id"], ticket["stage_id"]
    dispatches = []
    for frame in made:
        lanes = tuple(range(frame.lanes))
        outbox.add_lanes(connection, *place, frame.frame_id, lanes, queue, delay_seconds=again)
        claims.tell(connection, place[0], frame.frame_id, claims.claimed_event(ticket, step, frame.rows))
        dispatches.append(Dispatch("lanes", *place, frame.frame_id, lanes, queue))
    data = {"frames": len(made), "slots": sum(frame.slots for frame in made), "dry": dry}
    claims.answer(connection, ticket, "FILLED", "claim.filled", data, run_id=run_id, republish_seconds=again)
    return dispatches


def _failed(process: Process, claim_id: int, mine: int, error: ToolError | TemplateError) -> _Answer | None:
    """A passing error opens the ticket again, later and later; any other fails it, and with it the stage.

    A run that has lost its ticket to another one fails silently: the ticket, and its tentative frame, are not its own.
    """
    info = error.info if isinstance(error, ToolError) else ErrorInfo("template", str(error))

    def write(connection: Connection) -> _Answer | None:
        ticket = claims.failing(connection, claim_id)
        if ticket is None or ticket["taken_by"] not in (None, mine):
            return None
        run_id = ticket["taken_by"]
        if info.retryable and ticket["attempts"] + 1 < ATTEMPTS:
            if claims.tentative(connection, claim_id):
                return None  # the error came at the source's COMMIT: the sweep settles what became of it
            claims.reopen(connection, claim_id, run_id=run_id, failed=True)
            if run_id is not None:
                runs.finish(connection, run_id)
            pause = min(FIRST_PAUSE * 2 ** ticket["attempts"], LONGEST_PAUSE)
            outbox.take_claim(connection, claim_id)
            outbox.add_claim(
                connection, ticket["execution_id"], ticket["stage_id"], claim_id, CONTROL_QUEUE, delay_seconds=pause
            )
            result = {"error": info.as_dict(), "seconds": pause, "attempt": ticket["attempts"] + 1}
            told = Event("claim.retry", "RUNNING", ticket["step_name"], ticket["stage_id"], result=result)
            events.append(connection, ticket["execution_id"], [told])
            log.warning("claim %s failed and is tried again in %.1f s: %s", claim_id, pause, info.message)
            return None
        claims.forget(connection, claim_id)
        claims.answer(
            connection,
            ticket,
            "FAILED",
            "claim.failed",
            {"error": {**info.as_dict(), "message": f"claim: {info.message}"}},
            run_id=run_id,
            republish_seconds=process.settings.republish_seconds,
        )
        if run_id is not None:
            runs.finish(connection, run_id)
        return _Answer([], True)

    return process.db.run(write)
