"""One row at work: drives its pipeline in a thread of the lane until it ends, parks or is called back."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from noetl_celery.engine.aggregate import checked
from noetl_celery.engine.decision import Event
from noetl_celery.engine.pipeline import DATA_KEYS, Call, Done, Failed, Pipeline, Position, Run, Wait
from noetl_celery.engine.state import known
from noetl_celery.errors import ErrorInfo, TemplateError, ToolError
from noetl_celery.hiding import hidden
from noetl_celery.ids import new_id
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import ResultPlan
from noetl_celery.runtime.children import child_outcome, give_up_child, new_child
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.pace import Slot
from noetl_celery.runtime.process import Process
from noetl_celery.runtime.sources import dead_letter
from noetl_celery.runtime.telling import Notes, retried, sequence_event
from noetl_celery.store.children import NewChild
from noetl_celery.store.lines import Line
from noetl_celery.store.results import Kept, Opener, encoded, keep
from noetl_celery.store.rows import RowOutcome, TakenRow
from noetl_celery.telemetry import logs
from noetl_celery.telemetry.watch import LaneWatch
from noetl_celery.template import jsonable, plain
from noetl_celery.template.lazy import TooLarge
from noetl_celery.tools.base import ToolCall, target_of
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.pg_errors import READ_ONLY

log = logging.getLogger("noetl_celery.task")

#: how long a statement that lost our own PostgreSQL waits at least before that is the row's error
DATABASE_PATIENCE_SECONDS = 60.0


#: what a target answers that has too much to do
THROTTLED = (429, 503)
#: a row that was woken although its child has not ended looks again after this
CHILD_POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Parked:
    """The row waits elsewhere than in a lane; ``throttled``: its target asked for it; ``child``: what it waits for."""

    position: Position
    seconds: float
    throttled: bool
    child: int | None = None


@dataclass(frozen=True, slots=True)
class Called:
    """The row waits for a child that is to be started with it."""

    position: Position
    child: NewChild


@dataclass(frozen=True, slots=True)
class CalledBack:
    """The lane ends: the row goes back with the position that it reached."""

    position: Position


@dataclass(frozen=True, slots=True)
class Ended:
    """The row is final; ``ctx`` is what it wrote there."""

    outcome: RowOutcome
    ctx: Mapping[str, Any]


RowEnd = Parked | Called | CalledBack | Ended


class RowRunner:
    """Runs rows of one stage. ``pause`` waits so many seconds and says whether the lane called its rows back."""

    def __init__(
        self,
        process: Process,
        stage: StageNames,
        pause: Callable[[float], bool],
        *,
        keep_results: bool,
        notes: Notes,
        announce: Callable[[int], object],
        holds: Callable[[], bool],
        watch: LaneWatch,
        about: Mapping[str, Any],
    ) -> None:
        """``notes`` are what goes into the execution's events; ``announce`` has an execution looked at now; ``holds``
        asks the database whether the rows are still the lane's; ``about``: what log lines of the rows are about."""
        self._process, self._stage, self._pause = process, stage, pause
        self._notes, self._announce, self._holds = notes, announce, holds
        self._keychain = stage.keychain(process, stage.extra)
        self._keeps = keep_results
        self._watch, self._about = watch, about

    def run(self, taken: TakenRow) -> tuple[RowEnd, int]:
        """Runs a row's tasks; returns how it ended and how many retries it has needed so far. Never raises."""
        retries, pipeline = taken.retries, None
        logs.about(self._about, taken.index)
        try:
            pipeline = self._pipeline(taken)
            while True:
                step: Run | Call | Wait | Done | Failed | None = pipeline.next()
                if isinstance(step, Run):
                    outcome = self._call(step, pipeline, taken)
                    if not isinstance(outcome, Outcome):
                        return outcome, retries
                    if step.task.older == "sequence" and outcome.ok:
                        self._notes.tell(self._sequence(step, pipeline, outcome))
                    step = pipeline.apply(outcome)
                elif isinstance(step, Call):
                    came = self._child(step, pipeline)
                    if not isinstance(came, Outcome):
                        return came, retries
                    step = pipeline.apply(came)
                if step is None:
                    continue
                if isinstance(step, Wait):
                    retries += 1
                    self._notes.retried(retried(taken.index, pipeline.task, step))
                    parked = self._wait(step, pipeline)
                    if parked is not None:
                        return parked, retries
                else:
                    return self._end(step, pipeline, taken, retries), retries
        except Exception as error:
            log.exception("row %s of step %s failed unexpectedly", taken.index, self._stage.step.name)
            info = ErrorInfo("internal", f"{type(error).__name__}: {error}")
            failed = _failure(taken.index, info, None, retries)
            return Ended(failed if pipeline is None else self._broken(failed, info, pipeline), {}), retries

    def _broken(self, outcome: RowOutcome, error: ErrorInfo, pipeline: Pipeline) -> RowOutcome:
        """A row that failed for a fault of ours ends like any other; a child that it has started ends with it."""
        child = pipeline.position.child
        try:
            if child is not None:
                give_up_child(self._process, child, "its caller failed")
                self._announce(child)
            return self._buried(outcome, error, pipeline)
        except Exception:
            log.exception("row %s of step %s could not be cleared away", outcome.index, self._stage.step.name)
            return outcome

    def _pipeline(self, taken: TakenRow) -> Pipeline:
        stage = self._stage
        position = Position(**known(Position, _opened(taken.position, stage.opener))) if taken.position else Position()
        position.iter = position.iter or _iter(stage, taken)
        key = f"{stage.stage_id}:{stage.extra.get('frame_id', 0)}:{taken.index}"
        own = {**stage.extra, "idempotency_key": key, "keychain": self._keychain}

        def names(at: Position, args: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> Mapping[str, Any]:
            return stage.of_row(at, args, {**own, **extra})

        return Pipeline(
            stage.step,
            position,
            names,
            random=random.random,
            jump_budget=self._process.settings.jump_budget,
        )

    def _wait(self, wait: Wait, pipeline: Pipeline) -> Parked | CalledBack | None:
        if wait.seconds > self._process.settings.short_wait_seconds:
            return Parked(pipeline.position, wait.seconds, wait.throttled)
        if self._pause(wait.seconds):
            return CalledBack(pipeline.position)
        return None

    def _sequence(self, step: Run, pipeline: Pipeline, outcome: Outcome) -> Event:
        state = pipeline.position.names.get("_retry")
        calls = int(state.get("index", 0)) + 1 if isinstance(state, Mapping) else 1
        return sequence_event(self._stage.step.name, self._stage.stage_id, step.task.name, calls, outcome.data)

    def _child(self, call: Call, pipeline: Pipeline) -> Outcome | Called | Parked:
        """Starts a child, or takes what it came to; woken before its end, the row looks again a little later."""
        if call.child is None:
            try:
                child = new_child(self._process, self._stage, call, pipeline.position)
            except ToolError as error:
                return Outcome(error=error.info)
            pipeline.position.child = child.execution_id
            return Called(pipeline.position, child)
        outcome = child_outcome(self._process, call, self._announce)
        return outcome or Parked(pipeline.position, CHILD_POLL_SECONDS, throttled=True, child=call.child)

    def _call(self, step: Run, pipeline: Pipeline, taken: TakenRow) -> Outcome | Parked | CalledBack:
        tool = self._process.tools.get(step.task.kind)
        names = {
            "execution_id": str(self._stage.execution_id),
            "step": self._stage.step.name,
            "task": step.task.name,
            "row": str(taken.index),
        }
        try:
            context = self._context(pipeline)
        except TooLarge as error:
            return Outcome(error=ErrorInfo("result_too_large", f"the code looks it up in `context`: {error}"))
        call = ToolCall(
            config=step.config,
            input=step.input,
            credential=self._keychain.credential,
            print=self._printer(taken.index, names),
            names=names,
            deadline=self._stage.deadline,
            context=context,
            kept=self._stage.opener.at,
        )
        # Without that database the lane cannot go on either, and has as much patience.
        give_up = time.monotonic() + max(DATABASE_PATIENCE_SECONDS, self._stage.settings.lease_seconds)
        pause = 0.2
        host = target_of(tool, step.config) if self._stage.settings.paced else None
        target = None if host is None else f"{self._stage.execution_id}:{host}"
        while True:
            slot = self._slot(target, pipeline)
            if slot is not None and not isinstance(slot, Slot):
                return slot
            outcome = run_tool(tool, call)
            self._watch.tool(step.task, taken.index, outcome)
            if target is not None and slot is not None:
                self._tell_pace(target, slot, outcome)
            if not self._lost_our_database(step, outcome) or time.monotonic() > give_up or self._pause(pause):
                return outcome
            pause = min(pause * 2, 5.0)

    def _printer(self, row: int, names: Mapping[str, str]) -> Callable[[str], None]:
        """Where a task's lines go: to the worker's log, and to the execution's."""

        def write_line(text: str) -> None:
            log.info("%s", text, extra=names)
            if self._process.settings.log_bytes:
                self._notes.printed(Line(row, names["task"], hidden(text), time.monotonic()))

        return write_line

    def _slot(self, target: str | None, pipeline: Pipeline) -> Slot | Parked | CalledBack | None:
        """Waits until the target may be asked; a row that would wait for long is parked meanwhile."""
        if target is None:
            return None
        slot = self._process.pace.slot(target)
        while slot.seconds > 0:
            waits = self._wait(Wait(slot.seconds, throttled=True), pipeline)
            if waits is not None:
                return waits
            slot = self._process.pace.slot(target, slot)
        return slot

    def _tell_pace(self, target: str, slot: Slot, outcome: Outcome) -> None:
        error = outcome.error
        if error is not None and (error.status in THROTTLED or error.kind == "timeout"):
            self._process.pace.bad(target, slot, error.retry_after)
        elif error is None or error.status is not None:
            self._process.pace.good(target)

    def _lost_our_database(self, step: Run, outcome: Outcome) -> bool:
        """A lost connection to the database that holds the truth is no news about this row, nor is that this takes no
        writes: nothing can go on without it. The task is run again when it is back."""
        if outcome.error is None or (outcome.error.kind != "connection" and outcome.error.code != READ_ONLY):
            return False
        place = step.config.get("target") if step.task.kind == "transfer" else step.config
        if step.task.kind not in ("postgres", "transfer"):
            return False
        auth = place.get("auth", place.get("credential")) if isinstance(place, Mapping) else None
        try:
            credential = auth if isinstance(auth, Mapping) else self._keychain.credential(str(auth))
            return self._process.cursors.get("postgres").same_place(credential, self._process.settings.libpq_url)
        except ToolError:
            return False

    def _context(self, pipeline: Pipeline) -> Mapping[str, Any]:
        """What python code sees as ``context``: besides the fixed names those that it looks up there."""
        stage, looked_up = self._stage, {}
        if pipeline.task.looks_up:
            names = pipeline.names(pipeline.position.output)
            looked_up = {name: plain(names[name]) for name in pipeline.task.looks_up if name in names}
        return {
            **looked_up,
            "execution_id": str(stage.execution_id),
            "job_id": str(stage.execution_id),
            "step": stage.step.name,
            "workload": stage.workload,
            "ctx": stage.ctx_at(pipeline.position),
            "iter": pipeline.position.iter,
        }

    def _end(self, end: Done | Failed, pipeline: Pipeline, taken: TakenRow, retries: int) -> Ended:
        position = pipeline.position
        # For the arcs of a plain step; those of a loop ask about all of its rows.
        meta = _meta(position.output) if self._stage.step.loop is None else None
        data = end.data if isinstance(end, Done) else (position.output or {}).get("data")
        try:
            result, by_task, bodies = self._kept(data, pipeline)
            outcome = RowOutcome(
                taken.index,
                isinstance(end, Done),
                result=result,
                error=None if isinstance(end, Done) else _error_text(end.error, end.task),
                meta=meta,
                aggregate=self._reduced(pipeline) if isinstance(end, Done) else None,
                task_results=by_task,
                ctx=self._encode(position.ctx) if position.ctx else None,
                retries=retries,
                bodies=tuple(bodies),
            )
        except ToolError as error:
            # What cannot be kept fails the row, unless it has failed already: then its own error is the news.
            if isinstance(end, Done):
                end = Failed(error.info, self._last_task)
            outcome = _failure(taken.index, end.error, end.task, retries)
        if isinstance(end, Failed):
            outcome = self._buried(outcome, end.error, pipeline)
        return Ended(outcome, position.ctx if outcome.ctx else {})

    def _reduced(self, pipeline: Pipeline) -> str | None:
        """The row's values for ``loop.aggregate``. Raises ``ToolError`` for one that cannot be used."""
        loop = self._stage.step.loop
        if loop is None or not loop.aggregate:
            return None
        names = pipeline.end_names()
        values = {}
        for reduction in loop.aggregate:
            try:
                values[reduction.name] = checked(reduction, jsonable(reduction.value.render(names)))
            except (TemplateError, TypeError) as error:
                raise ToolError(ErrorInfo("aggregate", f"loop.aggregate `{reduction.name}`: {error}")) from error
        return self._encode(values)

    def _buried(self, outcome: RowOutcome, error: ErrorInfo, pipeline: Pipeline) -> RowOutcome:
        """Hands a row that failed for good to the dead letter statement; what went wrong there is told with it."""
        loop = self._stage.step.loop
        if loop is None or loop.cursor is None or loop.cursor.dead_letter is None or not self._holds():
            return outcome  # a row of somebody else is his to bury
        problem = dead_letter(self._process, self._stage, lambda: pipeline.end_names({"error": error.as_dict()}))
        if problem is None:
            return outcome
        return replace(outcome, error=json.dumps({**json.loads(outcome.error or "{}"), "dead_letter": problem}))

    @property
    def _last_task(self) -> str:
        return self._stage.step.tasks[-1].name

    def _encode(self, value: Any) -> str:
        return encoded(value, self._stage.opener.limits)[0]

    def _kept(self, data: Any, pipeline: Pipeline) -> tuple[str | None, str | None, list[Kept]]:
        """The row's result, those of its tasks where somebody may ask for them, and what is kept elsewhere of them.

        Raises ``ToolError`` for what cannot be kept.
        """
        stage, position = self._stage, pipeline.position
        bodies: list[Kept] = []
        asked_for = stage.step.name in stage.plan.results_of
        if not self._keeps and not asked_for:
            return None, None, bodies
        plans = [task.output for task in stage.step.tasks]

        def text(value: Any, plan: ResultPlan | None) -> str:
            kept, more = keep(value, plan, stage.opener.limits, new_id)
            bodies.extend(more)
            return kept

        result = text(data, stage.step.output or plans[min(position.task, len(plans) - 1)]) if self._keeps else None
        if not asked_for:
            return result, None, bodies
        by_task = []
        for name, value in position.results.items():
            same = result is not None and value is data  # what the row returned is kept once
            by_task.append(f"{json.dumps(name)}:{result if same else text(value, plans[stage.step.task_index[name]])}")
        return result, f"{{{','.join(by_task)}}}", bodies


def _opened(saved: Mapping[str, Any], opener: Opener) -> Mapping[str, Any]:
    """A saved position with the values that its documents stand for (see ``Position.document``)."""
    output = saved.get("output")
    return {
        **saved,
        "results": opener.open_each(saved.get("results", {})),
        "output": output and {**output, **opener.open_each({key: output[key] for key in DATA_KEYS})},
    }


def _iter(stage: StageNames, taken: TakenRow) -> dict[str, Any]:
    outer = {} if stage.parent_iter is None else {"parent": dict(stage.parent_iter)}
    if stage.step.loop is None:
        return outer
    return {stage.step.loop.iterator: plain(stage.opener.open(taken.payload)), "index": taken.index, **outer}


def _meta(envelope: Mapping[str, Any] | None) -> str | None:
    """The small parts of the last envelope; response headers stay out."""
    if not envelope:
        return None
    http = {key: value for key, value in envelope["http"].items() if key != "headers"}
    parts = {"http": http, "pg": envelope["pg"], "py": envelope["py"], "meta": envelope["meta"]}
    return json.dumps({name: part for name, part in parts.items() if part})


def _error_text(error: ErrorInfo, task: str | None) -> str:
    return json.dumps({**error.as_dict(), "task": task}).replace("\\u0000", "\\ufffd")


def _failure(index: int, error: ErrorInfo, task: str | None, retries: int) -> RowOutcome:
    return RowOutcome(index, False, error=_error_text(error, task), retries=retries)
