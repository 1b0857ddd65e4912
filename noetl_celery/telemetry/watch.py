"""What the runtime tells of its work, as it happens: one call each, and a call to nobody where nobody wants to know.

:func:`start` looks what is wanted, once per process and after a fork.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from noetl_celery.engine.decision import Closing
from noetl_celery.engine.state import FINAL
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import Plan, StepPlan, TaskPlan
from noetl_celery.settings import Settings
from noetl_celery.store.rows import RowOutcome, TakenRow
from noetl_celery.telemetry import declared as m
from noetl_celery.telemetry import wanted

if TYPE_CHECKING:
    from noetl_celery.telemetry.counters import Counters
    from noetl_celery.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

_counters: Counters | None = None
_tracing: Tracing | None = None
_lock = threading.Lock()


def start(settings: Settings, place: str) -> None:
    """From now on this process tells what is asked for. ``place`` is what it is called among those of its worker: no
    other has the name at the same time, and whoever takes its place has it again. Idempotent."""
    global _counters, _tracing
    with _lock:
        if _counters is None and wanted.counters():
            from noetl_celery.telemetry.counters import Counters

            try:
                _counters = Counters(place)
            except OSError as error:
                log.warning("nothing is counted here: %s", error)
        if _tracing is None and wanted.traces() and wanted.lacking() is None:
            from noetl_celery.telemetry.tracing import Tracing

            _tracing = Tracing(settings)


def stop() -> None:
    """Sends what is still to be sent; nothing more is told. Takes a few seconds at most."""
    global _counters, _tracing
    with _lock:
        if _tracing is not None:
            _tracing.close()
        _counters = _tracing = None


class Stage(Protocol):
    """What has to be known of a stage."""

    @property
    def plan(self) -> Plan: ...
    @property
    def step(self) -> StepPlan: ...
    @property
    def stage_id(self) -> int: ...
    @property
    def execution_id(self) -> int: ...


class LaneWatch:
    """Sees the rows of a lane; this one tells nobody."""

    def tool(self, task: TaskPlan, row: int, outcome: Outcome) -> None:
        """A task has been run; in the row's thread."""

    def row(self, row: TakenRow, outcome: RowOutcome | None, retries: int, seconds: float, ended: float) -> None:
        """A row has come out of its thread: after ``seconds``, at that time (Unix); None: it has not come to its end.
        ``retries``: so far."""

    def written(self, outcomes: Sequence[RowOutcome], frame: Mapping[str, Any] | None) -> None:
        """Outcomes are committed, and with them the end of the ``frame``."""


NOBODY = LaneWatch()


def lane(stage: Stage, frame_id: int) -> LaneWatch:
    """Who sees the rows of a lane."""
    spans = _tracing if _tracing is not None and _tracing.spans.sampled(stage.execution_id) else None
    return NOBODY if _counters is None and spans is None else _LaneWatch(stage, frame_id, _counters, spans)


class _LaneWatch(LaneWatch):
    def __init__(self, stage: Stage, frame_id: int, counters: Counters | None, spans: Tracing | None) -> None:
        self._path, self._step, self._frame_id = stage.plan.path, stage.step.name, frame_id
        self._execution_id, self._kind = stage.execution_id, kind_of(stage.step)
        self._counters, self._spans = counters, spans

    def tool(self, task: TaskPlan, row: int, outcome: Outcome) -> None:
        if self._spans is not None:
            self._spans.task(self._execution_id, self._step, self._frame_id, row, task, outcome)

    def row(self, row: TakenRow, outcome: RowOutcome | None, retries: int, seconds: float, ended: float) -> None:
        if self._counters is not None:
            step = self._path, self._step
            self._counters.observe(m.ROW_SECONDS, step, seconds)
            self._counters.add(m.RETRIES, step, retries - row.retries)
        if self._spans is not None and outcome is not None:
            error = None if outcome.ok else str(json.loads(outcome.error or "{}").get("message", "failed"))
            place = self._execution_id, self._step, self._frame_id, row.index
            self._spans.row(*place, ended - seconds, ended, retries, error)

    def written(self, outcomes: Sequence[RowOutcome], frame: Mapping[str, Any] | None) -> None:
        if self._counters is not None:
            place = self._path, self._step, self._kind
            ok = sum(outcome.ok for outcome in outcomes)
            self._counters.add(m.ROWS, (*place, "ok"), ok)
            self._counters.add(m.ROWS, (*place, "failed"), len(outcomes) - ok)
        if frame is not None:
            _frame_ended(self._path, frame)


def kind_of(step: StepPlan) -> str:
    """``single``, ``collection`` or ``cursor``, as the table of stages has it."""
    if step.loop is None:
        return "single"
    return "collection" if step.loop.cursor is None else "cursor"


def claimed(stage: Stage, result: str, since: float) -> None:
    """A claim is answered, ``filled`` or ``empty``; ``since``: on the monotonic clock, when it began."""
    if _counters is not None:
        step = stage.plan.path, stage.step.name
        _counters.add(m.CLAIMS, (*step, result))
        _counters.observe(m.CLAIM_SECONDS, step, time.monotonic() - since)


def claim_failed(path: str, step: str, *, again: bool) -> None:
    """A claim has failed, for good or to be tried ``again``."""
    if _counters is None:
        return
    if again:
        _counters.add(m.CLAIM_RETRIES, (path, step))
    else:
        _counters.add(m.CLAIMS, (path, step, "failed"))


def decided(plan: Plan, execution_id: int, status: str, closings: Sequence[Closing]) -> None:
    """A decision is committed that left the execution in this status and has closed these stages."""
    whole = status in FINAL
    if whole and _counters is not None:
        _counters.add(m.EXECUTIONS, (plan.path, status.lower()))
    if _tracing is not None:
        _tracing.ended(execution_id, tuple(closing.stage_id for closing in closings), whole=whole)


def lease_lost(kind: str) -> None:
    """A ``lane`` or a ``claim`` found that it does not hold its work any more."""
    if _counters is not None:
        _counters.add(m.LEASES_LOST, (kind,))


def run_died(kind: str, frame: Mapping[str, Any] | None) -> None:
    """The process of a ``lane`` or a ``claim`` has died; ``frame``: what :func:`crashes.return_rows` says of it."""
    if _counters is not None:
        _counters.add(m.RUNS_DIED, (kind,))
        if frame is not None:
            _counters.add(m.RERUNS, ("crash",), frame["again"])
            _counters.add(m.ROWS, (frame["path"], frame["step_name"], frame["kind"], "failed"), frame["failed"])
    if frame is not None and frame["ended"] is not None:
        _frame_ended(frame["path"], frame["ended"])


def rows_again(rows: int) -> None:
    """Rows that had begun begin again, as their process was told to stop."""
    if _counters is not None:
        _counters.add(m.RERUNS, ("stop",), rows)


def republished(messages: Mapping[str, int]) -> None:
    """So many messages of each kind (``claim``, ``lanes``, ``orchestrate``) that nobody took were published again."""
    if _counters is not None:
        for kind, number in messages.items():
            _counters.add(m.REPUBLISHED, (kind,), number)


def _frame_ended(path: str, frame: Mapping[str, Any]) -> None:
    if _counters is not None:
        took = (frame["completed_at"] - frame["created_at"]).total_seconds()
        _counters.add(m.FRAMES, (path, frame["step_name"], frame["kind"]))
        _counters.observe(m.FRAME_SECONDS, (path, frame["step_name"]), took)
    if _tracing is not None:
        _tracing.frame(path, frame)
