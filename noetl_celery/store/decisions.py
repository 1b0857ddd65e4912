"""Writes a decision of the engine: everything in the transaction that holds the execution's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from noetl_celery.engine.decision import Decision, Opening, Reopening, Slice
from noetl_celery.engine.state import ExecutionState
from noetl_celery.playbook.plan import Plan
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE, Settings
from noetl_celery.store import children, claims, events, executions, frames, ledger, outbox, reopen, signals, stages
from noetl_celery.store.db import Connection
from noetl_celery.store.outbox import Dispatch

#: whoever writes a decision may take the first lane of a frame that it makes, which goes to this queue
TakeFirst = Callable[[Opening | Slice, frames.NewFrame, str], frames.FirstLane | None]


def body_queue(plan: Plan, step: str, settings: Settings) -> str:
    """The queue that a step's lanes go to: that of its pool (or its playbook's), or the common one.

    A pool that the settings do not name has no workers of its own: its lanes would wait for ever.
    """
    pool = plan.steps[step].pool or plan.pool
    return f"{BODY_QUEUE}.{pool}" if pool in settings.own_pools else BODY_QUEUE


def start_queue(plan: Plan) -> str:
    """Where a new execution is looked at first: by a worker for bodies, if that may go on with what comes of it."""
    first = plan.steps[plan.entry]
    runs_here = first.tasks and (first.pool or plan.pool) is None and (first.loop is None or first.loop.cursor is None)
    return BODY_QUEUE if runs_here else CONTROL_QUEUE


def apply(
    connection: Connection,
    plan: Plan,
    state: ExecutionState,
    decision: Decision,
    *,
    read: Sequence[int],
    settings: Settings,
    new_id: Callable[[], int],
    take_first: TakeFirst,
) -> list[Dispatch]:
    """Writes stages, frames of collections, claims, events and state; the signals that were ``read`` are gone. Returns
    what to publish after the commit."""
    again = settings.republish_seconds
    execution_id = state.execution_id
    dispatches: list[Dispatch] = []
    stages.open_stages(connection, execution_id, decision.openings)
    stages.close_stages(connection, decision.closings)
    for closing in decision.closings:
        if closing.state is not None and closing.state["kind"] != "single":
            ledger.check_stage(connection, execution_id, closing.stage_id)
    for again_opened in decision.reopenings:
        dispatches += _reopen(connection, plan, execution_id, again_opened, settings)
    parts: list[Opening | Slice] = [opening for opening in decision.openings if opening.items]
    for part in parts + decision.slices:
        dispatches += _open_frame(connection, plan, execution_id, part, settings, new_id(), take_first)
    if decision.claims:
        dispatches += claims.issue(connection, execution_id, decision.claims, CONTROL_QUEUE, republish_seconds=again)
    for stage_id in dict.fromkeys(decision.recalls):
        claims.recall(connection, stage_id, republish_seconds=again)
    for stage_id in dict.fromkeys(decision.stops):
        frames.stop_stage(connection, stage_id, republish_seconds=again)
    for stage_id in dict.fromkeys(decision.cancels):
        told = children.cancel_all(connection, stage_id, republish_seconds=again)
        dispatches += [Dispatch("orchestrate", child) for child in told]
    for timer in decision.timers:
        data = {"stage": timer.stage_id}
        signals.add(connection, execution_id, timer.type, data, republish_seconds=again, delay_seconds=timer.seconds)
    events.append(connection, execution_id, decision.events)
    executions.save(connection, state, decision, read)
    return dispatches


def _reopen(
    connection: Connection, plan: Plan, execution_id: int, reopening: Reopening, settings: Settings
) -> list[Dispatch]:
    reopen.reopen_stage(connection, reopening.stage_id)
    if not reopening.frames:
        return []
    queue, again = body_queue(plan, reopening.step, settings), settings.republish_seconds
    place = execution_id, reopening.stage_id
    return [
        outbox.add_lanes(connection, *place, frame["frame_id"], range(frame["lanes"]), queue, delay_seconds=again)
        for frame in reopen.reopen_frames(connection, reopening.frames, reopening.statuses)
    ]


def _open_frame(
    connection: Connection,
    plan: Plan,
    execution_id: int,
    opening: Opening | Slice,
    settings: Settings,
    frame_id: int,
    take_first: TakeFirst,
) -> list[Dispatch]:
    step = plan.steps[opening.step]
    cut = opening if isinstance(opening, Slice) else None
    items = opening.items or () if isinstance(opening, Opening) else ()
    concurrency = opening.settings.row_concurrency
    frame = frames.NewFrame(
        frame_id,
        opening.stage_id,
        execution_id,
        cut.index if cut else 0,
        items,
        concurrency,
        frames.lane_count(concurrency, cut.rows if cut else len(items), settings.lane_width),
        fail_fast=step.loop is not None and step.failure_mode == "fail_fast",
        elements=cut.rows if cut else None,
    )
    queue = body_queue(plan, opening.step, settings)
    asked = frames.Asked(queue, settings.republish_seconds, take_first(opening, frame, queue))
    if cut:
        return frames.create_slice(connection, frame, cut.source, cut.start, asked)
    return frames.create(connection, frame, asked)
