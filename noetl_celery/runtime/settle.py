"""Claims whose process died between two commits: what was recorded, and what the source says, decide."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from noetl_celery.cursors.base import Verdict
from noetl_celery.engine.decision import Event
from noetl_celery.errors import LeaseLost, NoetlError, ServiceError, TemplateError, ToolError
from noetl_celery.runtime.names import load_stage
from noetl_celery.runtime.process import Process
from noetl_celery.runtime.publish import Publisher
from noetl_celery.runtime.sources import cursor_of, source_of
from noetl_celery.runtime.tickets import Ticket, claim_names, confirmed, fill
from noetl_celery.settings import CONTROL_QUEUE
from noetl_celery.store import claims, events, outbox, stages
from noetl_celery.store.db import Connection
from noetl_celery.store.decisions import body_queue
from noetl_celery.store.outbox import Dispatch
from noetl_celery.telemetry import logs

log = logging.getLogger(__name__)

#: tickets looked at in one go; the next sweep does the rest
TICKETS = 500
#: a claim that failed for a passing reason is tried this often
ATTEMPTS = 8


def settle_claims(process: Process, publisher: Publisher) -> None:
    """Looks at every ticket whose run is gone. Nothing recorded, or undone at the source: open again; committed there:
    its frames are ours; still running there: later. A ticket that cannot be settled now holds up no other, and a source
    that cannot be asked is asked once."""
    away: set[Any] = set()
    for ticket in process.db.run(lambda connection: claims.orphaned(connection, limit=TICKETS)):
        logs.about({"execution_id": ticket["execution_id"]})
        try:
            source = recorded(process, ticket)
            place = (source or {}).get("auth") or ticket["stage_id"]
            if source is not None and place in away:
                continue
            verdict = verdict_on(process, ticket, source)
            if verdict == "running":
                continue
            dispatches = process.db.run(partial(_resolve, process, ticket, verdict))
        except LeaseLost:
            continue  # another sweep, or the run itself, was quicker
        except ServiceError:
            raise
        except NoetlError as error:
            away.add(place)
            log.warning("claim %s waits for its source, which cannot be asked: %s", ticket["claim_id"], error)
            continue
        publisher.dispatch(dispatches)
        publisher.orchestrate(ticket["execution_id"])


def recorded(process: Process, ticket: Ticket) -> Mapping[str, Any] | None:
    """Where the rows of a TAKEN ticket were claimed, as its run noted it; None if it came to none."""
    tentative = process.db.read(lambda connection: claims.tentative(connection, ticket["claim_id"]))
    return tentative[0]["source"] if tentative else None


def verdict_on(process: Process, ticket: Ticket, source: Mapping[str, Any] | None) -> Verdict:
    """What became of a TAKEN ticket's claim: ``aborted`` if nothing was recorded, else what its source says.

    Raises ``NoetlError`` while the source cannot be asked; an execution that is being cancelled does not wait for that.
    """
    if source is None:
        return "aborted"
    stage = process.db.read(lambda connection: load_stage(process, connection, ticket["stage_id"]))
    assert stage is not None, "a stage whose ticket is not answered is open"
    names, auth = claim_names(ticket, stage, ticket["taken_by"]), source.get("auth")
    try:
        if auth is None:
            credential = source_of(process, stage, names).credential
        else:
            credential = stage.keychain(process, names).credential(auth)
        return process.cursors.get(cursor_of(stage).kind).settle(source, credential)
    except (ToolError, TemplateError):
        if stage.cancelling:
            return "unknown"
        raise


def accept(process: Process, connection: Connection, ticket: Ticket) -> list[Dispatch]:
    """The source has committed: the frames of a TAKEN ticket are ours. Raises ``LeaseLost``."""
    row = stages.load(connection, ticket["stage_id"])
    assert row is not None, "a ticket belongs to a stage"
    queue = body_queue(process.plans.get(connection, row["catalog_id"]), row["step_name"], process.settings)
    made = confirmed(connection, ticket["claim_id"])
    return fill(process, connection, ticket, queue, row["step_name"], made, dry=False, run_id=ticket["taken_by"])


def _resolve(process: Process, ticket: Ticket, verdict: Verdict, connection: Connection) -> list[Dispatch]:
    if verdict == "committed":
        return accept(process, connection, ticket)
    return _open_again(process, connection, ticket, verdict)


def _open_again(process: Process, connection: Connection, ticket: Ticket, verdict: Verdict) -> list[Dispatch]:
    claim_id, stage_id, execution_id = ticket["claim_id"], ticket["stage_id"], ticket["execution_id"]
    again = process.settings.republish_seconds
    # First the guard: what a later run has recorded for this ticket is not ours to forget.
    if claims.reopen(connection, claim_id, run_id=ticket["taken_by"], failed=False) is None:
        return []
    claims.forget(connection, claim_id)
    if verdict == "unknown":
        log.warning(
            "claim %s: the source no longer knows its transaction; rows that it leased come back with the playbook's "
            "own re-claim",
            claim_id,
        )
        event = Event("claim.unknown", "ABANDONED", None, stage_id, result={"claim": claim_id})
        events.append(connection, execution_id, [event])
    if ticket["attempts"] >= ATTEMPTS:
        text = f"claim: its source's COMMIT failed or was not answered {ticket['attempts']} times"
        error = {"kind": "connection", "message": f"{text}; the events claim.retry say why", "retryable": True}
        claims.answer(
            connection, ticket, "FAILED", "claim.failed", {"error": error}, run_id=None, republish_seconds=again
        )
        return []
    outbox.add_claim(connection, execution_id, stage_id, claim_id, CONTROL_QUEUE, delay_seconds=again)
    return [Dispatch("claim", execution_id, stage_id, claim_id, queue=CONTROL_QUEUE)]
