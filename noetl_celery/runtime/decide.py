"""A decision on an execution, within a transaction: lock, read signals, decide, write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from noetl_celery import faults, hiding
from noetl_celery.engine.decision import Decision, Event, Opening, Slice
from noetl_celery.engine.replay import TURN, Turn
from noetl_celery.engine.state import FINAL, ExecutionState
from noetl_celery.errors import NoetlError
from noetl_celery.ids import new_id
from noetl_celery.playbook.plan import Plan
from noetl_celery.runtime.lanes import lane_again
from noetl_celery.runtime.names import StageNames, load_stage, opened
from noetl_celery.runtime.process import Process
from noetl_celery.store import children, decisions, executions, news, signals
from noetl_celery.store.db import Connection
from noetl_celery.store.frames import FirstLane, NewFrame
from noetl_celery.store.loaders import Limits
from noetl_celery.store.outbox import Dispatch
from noetl_celery.store.stages import TableFacts
from noetl_celery.telemetry import watch

log = logging.getLogger(__name__)

#: keeps the first lane of a frame that is being made, with the names of its stage, for this worker if the queue is its
Keep = Callable[[Callable[[], StageNames | None], NewFrame, str], FirstLane | None]


def decide(
    process: Process, connection: Connection, execution_id: int, keep: Keep, note: Callable[[Callable[[], None]], None]
) -> list[Dispatch] | None:
    """One pass over an execution, in the caller's transaction; returns what to publish after the commit.

    None if somebody else holds the execution, or nothing waits. ``keep``: who asks may keep the first lane of a frame
    that comes of it. ``note`` is given what to call when all this is committed.
    """
    try:
        lock = executions.lock(connection, execution_id)
        read = signals.read(connection, execution_id, process.settings.signal_batch)
        locked, inbox = lock(), read()
        if locked is None or not inbox.ids:
            return None
        catalog_id, state = locked
        hiding.learn_workload(execution_id, state.workload)
        plan = process.plans.get(connection, catalog_id)
    except NoetlError as error:
        # Written by a worker that knew more (another plugin, another version): leave it for one that can.
        log.error("execution %s cannot be decided here: %s", execution_id, error)
        return None
    facts = TableFacts(connection, execution_id, plan.steps, Limits.of(process.settings))
    turn, before = Turn(inbox.signals, datetime.now(UTC), new_id), state.turns
    decision = turn.decide(plan, state, facts)
    if state.turns > before:
        told = Event(TURN, state.status, context=turn.record(state), node_type="playbook", book=True)
        decision.events.insert(0, told)

    def first(part: Opening | Slice, frame: NewFrame, queue: str) -> FirstLane | None:
        return keep(lambda: _names(process, connection, plan, state, decision, part), frame, queue)

    dispatches = decisions.apply(
        connection, plan, state, decision, read=inbox.ids, settings=process.settings, new_id=new_id, take_first=first
    )
    note(partial(watch.decided, plan, execution_id, state.status, decision.closings))
    if state.status in FINAL:
        signals.drop_timers(connection, execution_id)
        news.tell_end(connection, execution_id)
        waiting = children.ended(connection, execution_id)
        if waiting is not None:
            dispatches.append(lane_again(process, connection, waiting))
    faults.reached("orchestrate.before_commit")
    return dispatches


def _names(
    process: Process,
    connection: Connection,
    plan: Plan,
    state: ExecutionState,
    decision: Decision,
    part: Opening | Slice,
) -> StageNames | None:
    opening = next((opening for opening in decision.openings if opening.stage_id == part.stage_id), None)
    if opening is None:  # the next slice of a stage that was opened before
        return load_stage(process, connection, part.stage_id)
    return opened(process, connection, plan, state, decision, opening)
