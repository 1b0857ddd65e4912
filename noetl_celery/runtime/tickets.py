"""What every way of answering a claim ticket shares: its names and its request, its frames, the answer itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_celery.cursors.base import ClaimRequest, Cursor
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.ids import new_id
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.process import Process
from noetl_celery.runtime.sources import Source, cursor_of
from noetl_celery.store import claims, frames, outbox
from noetl_celery.store.db import Connection
from noetl_celery.store.outbox import Dispatch
from noetl_celery.template import Value

Ticket = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Filled:
    """A frame that a ticket was answered with; ``rows`` are those of the source, ``asked`` its lanes if they are asked
    for already."""

    frame_id: int
    lanes: int
    slots: int
    rows: int
    asked: Sequence[Dispatch] | None = None


def claim_names(ticket: Ticket, stage: StageNames, token: int) -> dict[str, Any]:
    """The claim parameters, as template names and as bindings. ``token`` is fresh for every attempt at a ticket."""
    return {
        "__frame_max_rows": stage.settings.max_rows,
        "__frame_index": ticket["frame_index"],
        "__cursor_frame": ticket["frame_index"],
        "__worker_slot_id": f"{stage.stage_id}:{ticket['frame_index']}",
        "__claim_token": str(token),
    }


def request_of(
    process: Process, ticket: Ticket, stage: StageNames, source: Source, bindings: Mapping[str, Any]
) -> ClaimRequest:
    """What the driver is asked for. Raises ``TemplateError``."""
    cursor = cursor_of(stage)

    def rendered(statement: Value | None, when: bool) -> str | None:
        return str(statement.render(source.names)) if statement is not None and when else None

    return ClaimRequest(
        claim=source.claim,
        bindings={**bindings, "execution_id": str(stage.execution_id)},
        credential=source.credential,
        timeout_seconds=process.settings.claim_timeout_seconds,
        budget=ticket["budget"],
        options={"auth": source.auth, **source.options},
        reclaim=rendered(cursor.reclaim, bool(ticket["reclaim"])),
        count=rendered(cursor.count, ticket["frame_index"] == 0),
        ticket=ticket["claim_id"],
        lease_seconds=process.settings.lease_seconds,
    )


def fresh(
    connection: Connection, stage: StageNames, driver: Cursor, rows: Sequence[Row]
) -> tuple[list[Row], list[Row]]:
    """The rows that this stage does not have already, and those that it has finished and its source does not know of.

    A source that hands out again what was not acknowledged, or a stale re-claim that is quicker than our own rows,
    returns rows that are at work here: they are ours as it is, and are left out.
    """
    if not rows or not (driver.acknowledges or cursor_of(stage).reclaim is not None):
        return list(rows), []
    digests = [_digest(row) for row in rows]
    known = claims.known(connection, stage.stage_id, digests, kept=driver.acknowledges)
    new, done = [], []
    for row, digest in zip(rows, digests, strict=True):
        at_work = known.get(digest)
        if at_work is None or not (at_work or driver.acknowledges):
            new.append(row)
        elif not at_work:
            done.append(row)
    return new, done


def make_frames(
    process: Process,
    connection: Connection,
    ticket: Ticket,
    stage: StageNames,
    rows: Sequence[Row],
    *,
    token: int,
    acknowledges: bool,
    source: Mapping[str, Any] | None,
    asked: Callable[[frames.NewFrame], frames.Asked] | None,
) -> list[Filled]:
    """Writes the rows as one frame, or as several where ``max_bytes`` says so; TENTATIVE if there is a ``source`` that
    has not committed yet, and else with their lanes ``asked`` for. Raises ``ToolError`` for a claim that leases the
    same rows again."""
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
        width, row_seconds = process.settings.lane_width, process.row_seconds.get(stage.stage_id)
        lanes = frames.lane_count(concurrency, len(payloads), width, row_seconds)
        frame = frames.NewFrame(
            frame_id=new_id(),
            stage_id=stage.stage_id,
            execution_id=stage.execution_id,
            index=ticket["frame_index"],
            payloads=payloads,
            row_concurrency=min(concurrency, lanes * width),
            lanes=lanes,
            claim_id=ticket["claim_id"],
            token=token,
            # The pieces of one claim hold its slots together: the first counts for all of them.
            slots=_slots(settings.batch, len(rows)) if start == 0 else 0,
            weight=len(part) if whole else 1,
            fail_fast=stage.step.failure_mode == "fail_fast",
            # A row that its workers died over comes to a lane once more where somebody has to be told of it.
            dead_letter=acknowledges or cursor_of(stage).dead_letter is not None,
            tentative=source is not None,
            digests=digests[start:end],
            source=source,
        )
        wanted = frames.create(connection, frame, asked and asked(frame))
        made.append(Filled(frame.frame_id, frame.lanes, frame.slots, len(part), None if asked is None else wanted))
    return made


def _slots(batch: int, rows: int) -> int:
    return rows if batch > 1 else 1


def _cuts(rows: Sequence[Row], max_bytes: int | None) -> list[tuple[int, int]]:
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


def _digest(row: Row) -> int:
    text = json.dumps(row, sort_keys=True, ensure_ascii=False)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True)


def confirmed(connection: Connection, claim_id: int) -> list[Filled]:
    """Makes the tentative frames of a ticket RUNNING: their source has committed."""
    return [
        Filled(frame["frame_id"], frame["lanes"], frame["slots"], frame["rows"] * frame["weight"])
        for frame in claims.confirm(connection, claim_id)
    ]


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
    dispatches: list[Dispatch] = []
    for frame in made:
        if frame.asked is None:
            lanes = range(frame.lanes)
            dispatches.append(outbox.add_lanes(connection, *place, frame.frame_id, lanes, queue, delay_seconds=again))
        else:
            dispatches += frame.asked
        claims.tell(connection, place[0], frame.frame_id, claims.claimed_event(ticket, step, frame.rows))
    data = {"frames": len(made), "slots": sum(frame.slots for frame in made), "dry": dry}
    claims.answer(connection, ticket, "FILLED", "claim.filled", data, run_id=run_id, republish_seconds=again)
    return dispatches
