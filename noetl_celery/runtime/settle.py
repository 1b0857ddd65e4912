"""Claims whose process died between two commits: what was recorded, and what the source says, decide."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from noetl_celery.cursors.base import Verdict
from noetl_celery.engine.decision import Event
from noetl_celery.errors import LeaseLost, NoetlError
from noetl_celery.playbook.plan import Plan, StepPlan
from noetl_celery.runtime.claim import Filled, claim_names, fill
from noetl_celery.runtime.names import load_stage
from noetl_celery.runtime.process import Process
from noetl_celery.runtime.publish import Publisher
from noetl_celery.runtime.sources import cursor_of, source_of
from noetl_celery.settings import CONTROL_QUEUE
from noetl_celery.store import claims, events, outbox, stages
from noetl_celery.store.decisions import body_queue
from noetl_celery.store.outbox import Dispatch

log = logging.getLogger(__name__)

#: tickets looked at in one go; the next sweep does the rest
TICKETS = 500


def settle_claims(process: Process, publisher: Publisher) -> None:
    """Looks at every ticket whose run is gone. Nothing recorded, or undone at the source: open again; committed there:
    its frames are ours; still running there: later. A ticket that cannot be settled now holds up no other."""
    for ticket in process.db.run(lambda connection: claims.orphaned(connection, limit=TICKETS)):
        try:
            verdict = _verdict(process, ticket)
            if verdict == "running":
                continue
            dispatches = process.db.run(partial(_resolve, process, ticket, verdict))
        except LeaseLost:
            continue  # another sweep, or the run itself, was quicker
        except NoetlError as error:
            log.warning("claim %s waits for its source, which cannot be asked: %s", ticket["claim_id"], error)
            continue
        publisher.dispatch(dispatches)
        publisher.orchestrate(ticket["execution_id"])


def _verdict(process: Process, ticket: Mapping[str, Any]) -> Verdict:
    tentative = process.db.run(lambda connection: claims.tentative(connection, ticket["claim_id"]))
    if not tentative:
        return "aborted"
    source = tentative[0]["source"]
    stage = process.db.run(lambda connection: load_stage(process, connection, ticket["stage_id"]))
    assert stage is not None, "a stage whose ticket is not answered is open"
    names, auth = claim_names(ticket, stage), source.get("auth")
    if auth is None:
        credential = source_of(process, stage, names).credential
    else:
        credential = stage.keychain(process, names).credential(auth)
    return process.cursors.get(cursor_of(stage).kind).settle(source, credential)


def _place(process: Process, stage_id: int, connection: Connection) -> tuple[Plan, StepPlan]:
    row = stages.load(connection, stage_id)
    assert row is not None, "a ticket belongs to a stage"
    plan = process.plans.get(connection, row["catalog_id"])
    return plan, plan.steps[row["step_name"]]


def _resolve(process: Process, ticket: Mapping[str, Any], verdict: Verdict, connection: Connection) -> list[Dispatch]:
    if verdict != "committed":
        return _open_again(process, connection, ticket, verdict)
    plan, step = _place(process, ticket["stage_id"], connection)
    made = [
        Filled(frame["frame_id"], frame["lanes"], frame["slots"], frame["rows"] * frame["weight"])
        for frame in claims.confirm(connection, ticket["claim_id"])
    ]
    queue = body_queue(plan, step.name, process.settings)
    return fill(process, connection, ticket, queue, step.name, made, dry=False, run_id=ticket["taken_by"])


def _open_again(
    process: Process, connection: Connection, ticket: Mapping[str, Any], verdict: Verdict
) -> list[Dispatch]:
    claim_id, stage_id, execution_id = ticket["claim_id"], ticket["stage_id"], ticket["execution_id"]
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
    again = process.settings.republish_seconds
    outbox.add_claim(connection, execution_id, stage_id, claim_id, CONTROL_QUEUE, delay_seconds=again)
    return [Dispatch("claim", execution_id, stage_id, claim_id, queue=CONTROL_QUEUE)]
