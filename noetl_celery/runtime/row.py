"""One row at work: drives its pipeline in a thread of the lane until it ends, parks or is called back."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from noetl_celery.engine.pipeline import Done, Failed, Pipeline, Position, Run, Wait
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import StepPlan
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.process import Process
from noetl_celery.store.frames import RowOutcome, TakenRow
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.outcome import run_tool

log = logging.getLogger("noetl_celery.task")

#: a NUL character in JSON text, told from an escaped backslash before the text "u0000"
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

#: how long a statement that lost our own PostgreSQL waits for it to come back before that is the row's error
DATABASE_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parked:
    """The row waits elsewhere than in a lane; ``throttled``: its target asked for it."""

    position: Position
    seconds: float
    throttled: bool


@dataclass(frozen=True, slots=True)
class CalledBack:
    """The lane ends: the row goes back with the position that it reached."""

    position: Position


@dataclass(frozen=True, slots=True)
class Ended:
    """The row is final; ``ctx`` is what it wrote there."""

    outcome: RowOutcome
    ctx: Mapping[str, Any]


RowEnd = Parked | CalledBack | Ended


class RowRunner:
    """Runs rows of one stage. ``pause`` waits so many seconds and says whether the lane called its rows back."""

    def __init__(
        self, process: Process, stage: StageNames, pause: Callable[[float], bool], *, keep_results: bool
    ) -> None:
        self._process, self._stage, self._pause = process, stage, pause
        self._keep_results = keep_results

    def run(self, taken: TakenRow) -> tuple[RowEnd, int]:
        """Runs a row's tasks; returns how it ended and how many retries it has needed so far. Never raises."""
        retries = taken.retries
        try:
            pipeline = self._pipeline(taken)
            while True:
                step: Run | Wait | Done | Failed | None = pipeline.next()
                if isinstance(step, Run):
                    step = pipeline.apply(self._call(step, pipeline, taken))
                if isinstance(step, Wait):
                    retries += 1
                    parked = self._wait(step, pipeline)
                    if parked is not None:
                        return parked, retries
                elif isinstance(step, Done | Failed):
                    return self._end(step, pipeline, taken, retries), retries
        except Exception as error:
            log.exception("row %s of step %s failed unexpectedly", taken.index, self._stage.step.name)
            info = ErrorInfo("internal", f"{type(error).__name__}: {error}")
            return Ended(_failure(taken.index, info, None, retries), {}), retries

    def _pipeline(self, taken: TakenRow) -> Pipeline:
        stage = self._stage
        position = Position(**taken.position) if taken.position else Position(iter=_iter(stage.step, taken))

        def names(at: Position, args: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> Mapping[str, Any]:
            key = f"{stage.stage_id}:{stage.extra.get('frame_id', 0)}:{taken.index}"
            return stage.of_row(at, args, {**extra, "idempotency_key": key})

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

    def _call(self, step: Run, pipeline: Pipeline, taken: TakenRow) -> Outcome:
        tool = self._process.tools.get(step.task.kind)
        names = {
            "execution_id": str(self._stage.execution_id),
            "step": self._stage.step.name,
            "task": step.task.name,
            "row": str(taken.index),
        }
        call = ToolCall(
            config=step.config,
            input=step.input,
            credential=self._process.credential,
            print=lambda line: log.info("%s", line, extra=names),
            names=names,
            context=self._context(pipeline),
        )
        give_up = time.monotonic() + DATABASE_PATIENCE_SECONDS
        pause = 0.2
        while True:
            outcome = run_tool(tool, call)
            if not self._lost_our_database(step, outcome) or time.monotonic() > give_up or self._pause(pause):
                return outcome
            pause = min(pause * 2, 5.0)

    def _lost_our_database(self, step: Run, outcome: Outcome) -> bool:
        """A connection lost to the database that holds the truth is no news about this row: nothing can go on
        without it. The task is run again when it is back."""
        if step.task.kind != "postgres" or outcome.error is None or outcome.error.kind != "connection":
            return False
        auth = step.config.get("auth", step.config.get("credential"))
        try:
            credential = auth if isinstance(auth, Mapping) else self._process.credential(str(auth))
            return self._process.cursors.get("postgres").same_place(credential, self._process.settings.libpq_url)
        except ToolError:
            return False

    def _context(self, pipeline: Pipeline) -> Mapping[str, Any]:
        stage = self._stage
        return {
            "execution_id": str(stage.execution_id),
            "job_id": str(stage.execution_id),
            "step": stage.step.name,
            "workload": stage.workload,
            "ctx": stage.ctx,
            "iter": pipeline.position.iter,
        }

    def _end(self, end: Done | Failed, pipeline: Pipeline, taken: TakenRow, retries: int) -> Ended:
        position = pipeline.position
        meta = _meta(position.output)
        keep_tasks = self._stage.step.name in self._stage.plan.results_of
        data = end.data if isinstance(end, Done) else (position.output or {}).get("data")
        try:
            outcome = RowOutcome(
                taken.index,
                isinstance(end, Done),
                result=self._encode(data) if self._keep_results else None,
                error=None if isinstance(end, Done) else _error_text(end.error, end.task),
                meta=meta,
                task_results=self._encode(position.results) if keep_tasks else None,
                ctx=self._encode(position.ctx) if position.ctx else None,
                retries=retries,
            )
        except ToolError as error:
            # What cannot be kept fails the row, unless it has failed already: then its own error is the news.
            info, task = (end.error, end.task) if isinstance(end, Failed) else (error.info, self._last_task)
            outcome = _failure(taken.index, info, task, retries)
        return Ended(outcome, position.ctx if outcome.ctx else {})

    @property
    def _last_task(self) -> str:
        return self._stage.step.tasks[-1].name

    def _encode(self, value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            message = "the result has half a surrogate pair, which is no valid Unicode text"
            raise ToolError(ErrorInfo("result_type", message)) from None
        limit = self._process.settings.result_max_bytes
        if size > limit:
            message = f"the result has {size:,} bytes as JSON; NOETL_RESULT_MAX_BYTES allows {limit:,}"
            raise ToolError(ErrorInfo("result_too_large", message))
        if _NUL.search(text):
            raise ToolError(ErrorInfo("result_type", "the result has a NUL character, which PostgreSQL cannot keep"))
        return text


def _iter(step: StepPlan, taken: TakenRow) -> dict[str, Any]:
    if step.loop is None:
        return {}
    return {step.loop.iterator: taken.payload, "index": taken.index}


def _meta(envelope: Mapping[str, Any] | None) -> str | None:
    """The small parts of the last envelope, for the arcs of a plain step; response headers stay out."""
    if not envelope:
        return None
    http = {key: value for key, value in envelope["http"].items() if key != "headers"}
    parts = {"http": http, "pg": envelope["pg"], "py": envelope["py"], "meta": envelope["meta"]}
    return json.dumps({name: part for name, part in parts.items() if part})


def _error_text(error: ErrorInfo, task: str | None) -> str:
    return json.dumps({**error.as_dict(), "task": task}).replace("\\u0000", "\\ufffd")


def _failure(index: int, error: ErrorInfo, task: str | None, retries: int) -> RowOutcome:
    return RowOutcome(index, False, error=_error_text(error, task), retries=retries)
