"""``noetl.claim``: runs a claim ticket, makes a frame of the rows, dispatches its lanes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from noetl_celery import faults
from noetl_celery.cursors.base import Claimed, ClaimRequest, Verdict
from noetl_celery.engine.decision import Event
from noetl_celery.errors import ErrorInfo, LeaseLost, NoetlError, ServiceError, TemplateError, ToolError
from noetl_celery.ids import new_id
from noetl_celery.runtime.names import StageNames, load_stage
from noetl_celery.runtime.process import Process
from noetl_celery.runtime.settle import ATTEMPTS, accept, recorded, verdict_on
from noetl_celery.runtime.sources import Source, acknowledge, source_of
from noetl_celery.runtime.tickets import (
    Filled,
    Row,
    Ticket,
    claim_names,
    fill,
    fresh,
    make_frames,
    request_of,
)
from noetl_celery.settings import CONTROL_QUEUE
from noetl_celery.store import claims, events, frames, outbox, runs, stages
from noetl_celery.store.db import Connection
from noetl_celery.store.decisions import body_queue
from noetl_celery.telemetry import logs, watch

if TYPE_CHECKING:
    from noetl_celery.runtime.onward import After, Onward

log = logging.getLogger(__name__)

#: pauses after attempts that failed for a passing reason (seconds)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt at a ticket, with all that it needs rendered. ``run_id`` is also its claim token, ``after`` what
    follows when the ticket is answered."""

    process: Process
    after: After
    ticket: Ticket
    stage: StageNames
    source: Source
    request: ClaimRequest
    run_id: int

    @property
    def queue(self) -> str:
        """Where the lanes of its frames go."""
        return body_queue(self.stage.plan, self.stage.step.name, self.process.settings)

    def fresh(self, connection: Connection, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        return fresh(connection, self.stage, self.source.driver, rows)

    def make_frames(
        self, connection: Connection, rows: Sequence[Row], source: Mapping[str, Any] | None
    ) -> list[Filled]:
        return make_frames(
            self.process,
            connection,
            self.ticket,
            self.stage,
            rows,
            token=self.run_id,
            acknowledges=self.source.driver.acknowledges,
            source=source,
            asked=self._asked if source is None else None,
        )

    def _asked(self, frame: frames.NewFrame) -> frames.Asked:
        first = self.after.take_first(lambda: self.stage, frame, self.queue)
        return frames.Asked(self.queue, self.process.settings.republish_seconds, first)

    def answer(self, connection: Connection, claimed: Claimed, made: Sequence[Filled], *, run_id: int | None) -> None:
        """FILLED with the frames' lanes in the outbox, or EMPTY; either way with the signal and what follows."""
        ticket, stage = self.ticket, self.stage
        if claimed.total is not None:
            stages.set_total(connection, stage.stage_id, claimed.total)
        result = "filled" if made or claimed.rows else "empty"
        self.after.note(partial(watch.claimed, stage, result, self.after.begun))
        if result == "empty":
            _empty(self.process, self.after, connection, ticket, run_id=run_id)
            return
        dispatches = fill(
            self.process,
            connection,
            ticket,
            self.queue,
            stage.step.name,
            made,
            # Nothing but rows that are at work here already: asking again at once would return the same.
            dry=claimed.dry or not made,
            run_id=run_id,
        )
        told = bool(ticket["more"]) or not made
        self.after.decide(connection, ticket["execution_id"], dispatches, told=told)


def run_claim(process: Process, onward: Onward, claim_id: int) -> None:
    """Answers a ticket (``noetl.claim``). Safe to run any number of times, also at once: it is answered once.

    In our own database claim, frame and answer are one transaction. Elsewhere the rows are recorded as a tentative
    frame before the source commits; the sweep settles what a crash leaves between the two.
    """
    run_id, after = new_id(), onward.after()
    try:
        begun = after.run(lambda connection: _begin(process, after, connection, claim_id, run_id), batched=False)
        if begun is not None:
            _elsewhere(begun)
    except LeaseLost as lost:
        watch.lease_lost("claim")
        log.info("%s", lost)
        return
    except (ToolError, TemplateError) as error:
        after = onward.after()
        _failed(process, after, claim_id, run_id, _info(error))
    except NoetlError:
        raise  # not about this ticket: the database is away, or this process cannot read the playbook
    except Exception as error:
        log.exception("claim %s failed unexpectedly", claim_id)
        after = onward.after()
        _failed(process, after, claim_id, run_id, ErrorInfo("internal", f"{type(error).__name__}: {error}"))
    faults.reached("claim.committed")
    after.go_on()


def _begin(process: Process, after: After, connection: Connection, claim_id: int, run_id: int) -> _Attempt | None:
    """Answers the ticket in this transaction if its source is here too; else takes it, for ``_elsewhere``."""
    ticket = claims.lock_open(connection, claim_id)
    stage = load_stage(process, connection, ticket["stage_id"]) if ticket is not None else None
    if ticket is None or stage is None:
        return None
    logs.about({"execution_id": stage.execution_id, "step": stage.step.name})
    if stage.cancelling:
        _empty(process, after, connection, ticket, run_id=None)
        return None
    if stage.paused:  # it was given back by a run that is lost, after the pause had taken back all others
        claims.recall(connection, stage.stage_id, republish_seconds=process.settings.republish_seconds)
        after.decide(connection, ticket["execution_id"])
        return None
    bindings = claim_names(ticket, stage, run_id)
    source = source_of(process, stage, bindings)
    request = request_of(process, ticket, stage, source, bindings)
    attempt = _Attempt(process, after, ticket, stage, source, request, run_id)
    if source.driver.same_place(source.credential, process.settings.libpq_url):
        _here(attempt, connection)
        return None
    settings = process.settings
    runs.start_claim(
        connection, run_id, process.worker_id, ticket["execution_id"], claim_id, lease=settings.lease_seconds
    )
    claims.take(connection, claim_id, run_id)
    return attempt


def _here(attempt: _Attempt, connection: Connection) -> None:
    """Claim, frame and answer in this transaction."""
    # The claim has limits of its own.
    with connection.patient(attempt.request.timeout_seconds):
        claimed = attempt.source.driver.claim(replace(attempt.request, session=connection), lambda rows, source: None)
    faults.reached("claim.claimed")
    with connection.batch():
        rows, _ = attempt.fresh(connection, claimed.rows)
        made = attempt.make_frames(connection, rows, None)
        attempt.answer(connection, claimed, made, run_id=None)


def _elsewhere(attempt: _Attempt) -> None:
    process, run_id, claim_id = attempt.process, attempt.run_id, attempt.ticket["claim_id"]
    made: list[Filled] = []
    done: list[Row] = []

    def record(rows: Sequence[Row], source: Mapping[str, Any]) -> None:
        faults.reached("claim.claimed")
        auth = attempt.source.auth
        # Who settles this needs the credential: by its name, or rendered anew; the fields of one are kept nowhere.
        where = {**source, "auth": auth if isinstance(auth, str) else None}

        def write(connection: Connection) -> None:
            claims.hold(connection, claim_id, run_id)
            claims.forget(connection, claim_id)
            new, done[:] = attempt.fresh(connection, rows)
            made[:] = attempt.make_frames(connection, new, where)

        process.db.run(write)
        faults.reached("claim.recorded")

    lease = process.settings.lease_seconds
    # Nothing to stop when it is lost: whatever is written next finds that out.
    process.pulse.hold(run_id, lease=lease, heartbeat=lease, lost=lambda: None)
    faults.reached("claim.taken")
    try:
        claimed = attempt.source.driver.claim(attempt.request, record)
        faults.reached("claim.source_committed")
        attempt.after.run(lambda connection: _confirm(attempt, connection, claimed, made))
    except ServiceError:
        process.pulse.forfeit(run_id)
        raise
    finally:
        process.pulse.drop(run_id)
    if done:
        acknowledge(attempt.source, done)


def _confirm(attempt: _Attempt, connection: Connection, claimed: Claimed, made: Sequence[Filled]) -> None:
    claim_id, run_id = attempt.ticket["claim_id"], attempt.run_id
    claims.hold(connection, claim_id, run_id)
    claims.confirm(connection, claim_id)
    runs.finish(connection, run_id)
    attempt.answer(connection, claimed, made, run_id=run_id)


def _empty(process: Process, after: After, connection: Connection, ticket: Ticket, *, run_id: int | None) -> None:
    again = process.settings.republish_seconds
    data = {"sole": ticket["sole"]}
    claims.answer(connection, ticket, "EMPTY", "claim.empty", data, run_id=run_id, republish_seconds=again)
    after.decide(connection, ticket["execution_id"])


# attempts that failed


def _info(error: ToolError | TemplateError) -> ErrorInfo:
    return error.info if isinstance(error, ToolError) else ErrorInfo("template", str(error))


def _failed(process: Process, after: After, claim_id: int, mine: int, error: ErrorInfo) -> None:
    """A passing error opens the ticket again, later and later; any other fails it, and with it the stage.

    If it came after the rows were recorded, the source is asked first what became of its transaction. A run that has
    lost its ticket to another one fails silently: the ticket, and its tentative frame, are not its own.
    """
    ticket = process.db.run(lambda connection: claims.failing(connection, claim_id))
    if ticket is None or ticket["taken_by"] not in (None, mine):
        return
    try:
        verdict: Verdict = verdict_on(process, ticket, recorded(process, ticket))
    except (ToolError, TemplateError) as unknown:
        log.warning("claim %s: its source cannot be asked what became of it: %s", claim_id, unknown)
        verdict = "running"
    after.run(partial(_end_attempt, process, after, claim_id, mine, error, verdict))


def _end_attempt(
    process: Process,
    after: After,
    claim_id: int,
    mine: int,
    error: ErrorInfo,
    verdict: Verdict,
    connection: Connection,
) -> None:
    ticket = claims.failing(connection, claim_id)
    if ticket is None or ticket["taken_by"] not in (None, mine):
        return
    run_id = ticket["taken_by"]
    if verdict == "committed":
        dispatches = accept(process, connection, ticket)  # only the reply of its COMMIT was lost
        runs.finish(connection, mine)
        after.decide(connection, ticket["execution_id"], dispatches)
        return
    if verdict != "aborted":
        _tell_retry(connection, ticket, error, None)
        claims.let_go(connection, claim_id, mine)
        return  # the sweep asks until the source knows
    claims.forget(connection, claim_id)
    again = error.retryable and ticket["attempts"] + 1 < ATTEMPTS
    after.note(partial(watch.claim_failed, ticket["path"], ticket["step_name"], again=again))
    if again:
        _again(connection, ticket, error)
    else:
        shown = {"error": {**error.as_dict(), "message": f"claim: {error.message}"}}
        seconds = process.settings.republish_seconds
        claims.answer(connection, ticket, "FAILED", "claim.failed", shown, run_id=run_id, republish_seconds=seconds)
        after.decide(connection, ticket["execution_id"])
    if run_id is not None:
        runs.finish(connection, run_id)


def _again(connection: Connection, ticket: Ticket, error: ErrorInfo) -> None:
    claim_id = ticket["claim_id"]
    claims.reopen(connection, claim_id, run_id=ticket["taken_by"], failed=True)
    pause = min(FIRST_PAUSE * 2 ** ticket["attempts"], LONGEST_PAUSE)
    outbox.take_claim(connection, claim_id)
    outbox.add_claim(
        connection, ticket["execution_id"], ticket["stage_id"], claim_id, CONTROL_QUEUE, delay_seconds=pause
    )
    _tell_retry(connection, ticket, error, pause)
    log.warning("claim %s failed and is tried again in %.1f s: %s", claim_id, pause, error.message)


def _tell_retry(connection: Connection, ticket: Ticket, error: ErrorInfo, seconds: float | None) -> None:
    result = {"error": error.as_dict(), "seconds": seconds, "attempt": ticket["attempts"] + 1}
    told = Event("claim.retry", "RUNNING", ticket["step_name"], ticket["stage_id"], result=result)
    events.append(connection, ticket["execution_id"], [told])
