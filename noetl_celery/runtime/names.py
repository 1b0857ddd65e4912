"""The names that templates of a stage see: what is the same for all its rows, loaded once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_celery import hiding
from noetl_celery.engine.assign import merge_paths
from noetl_celery.engine.decision import Decision, Opening
from noetl_celery.engine.pipeline import Position
from noetl_celery.engine.state import ExecutionState, LoopSettings
from noetl_celery.playbook.plan import Plan, StepPlan
from noetl_celery.runtime.keychain import Keychain
from noetl_celery.runtime.process import Process
from noetl_celery.store import signals, stages
from noetl_celery.store.db import Connection
from noetl_celery.store.loaders import Limits
from noetl_celery.store.results import Opener
from noetl_celery.template import scope


@dataclass(slots=True)
class StageNames:
    """A stage with its plan and the values that its templates may name. ``ctx`` is as it was when loaded."""

    plan: Plan
    step: StepPlan
    stage_id: int
    execution_id: int
    settings: LoopSettings
    workload: Mapping[str, Any]
    ctx: dict[str, Any]
    args: Mapping[str, Any]
    previous: str | None
    results: Mapping[str, Any]
    task_results: Mapping[str, Mapping[str, Any]]
    #: opens kept values, each read with a short transaction of its own
    opener: Opener
    #: the execution is being cancelled, or stands still: nothing more is to be claimed for it (now)
    cancelling: bool = False
    paused: bool = False
    #: how many callers are above this execution, and the ``iter`` of the nearest one
    depth: int = 0
    parent_iter: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    #: on the monotonic clock: when the step's timeout is over, for its tasks too
    deadline: float | None = None

    def keychain(self, process: Process, extra: Mapping[str, Any]) -> Keychain:
        """The playbook's names for secrets, with templates of its own resolved by the names of this stage."""
        return Keychain(
            self.plan.keychain, lambda others: self.of_stage({**extra, "keychain": others}), process.credential
        )

    def of_row(self, position: Position, args: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        """The names that a row's templates see at this position; ``extra`` is all that wins over the others."""
        return scope(
            execution_id=self.execution_id,
            workload=self.workload,
            ctx=self.ctx_at(position),
            results=self.results,
            previous=self._previous(),
            task_results=self.task_results,
            spec=self.plan.spec,
            pipeline=position.results,
            names=position.names,
            iter=position.iter,
            iterator=self.step.loop.iterator if self.step.loop else None,
            args={**self.args, **args} if args else self.args,
            extra=extra,
        )

    def ctx_at(self, position: Position) -> Mapping[str, Any]:
        """``ctx`` as a row sees it: with what it wrote there itself."""
        if not position.ctx:
            return self.ctx
        ctx = dict(self.ctx)
        merge_paths(ctx, position.ctx)
        return ctx

    def of_stage(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        """The names that the stage's own templates see (its claim)."""
        return scope(
            execution_id=self.execution_id,
            workload=self.workload,
            ctx=self.ctx,
            results=self.results,
            previous=self._previous(),
            task_results=self.task_results,
            spec=self.plan.spec,
            args=self.args,
            iter=None if self.parent_iter is None else {"parent": self.parent_iter},
            extra=extra,
        )

    def _previous(self) -> Any:
        name = self.previous
        return (lambda: self.results[name]) if name is not None and name in self.results else None


def load_stage(process: Process, connection: Connection, stage_id: int) -> StageNames | None:
    """Loads an OPEN stage with the step results that its templates name; None if it is not open any more."""
    row = stages.load(connection, stage_id)
    if row is None or row["status"] != "OPEN":
        return None
    hiding.learn_workload(row["execution_id"], row["workload"])
    plan = process.plans.get(connection, row["catalog_id"])
    step = plan.steps[row["step_name"]]
    wanted = _wanted(plan, step, row["previous"])
    execution_id = row["execution_id"]
    opener = Opener(process.db.read, Limits.of(process.settings))
    return StageNames(
        plan=plan,
        step=step,
        stage_id=stage_id,
        execution_id=execution_id,
        settings=LoopSettings.of(row["settings"]),
        workload=row["workload"],
        ctx=row["ctx"],
        args=row["args"] or {},
        previous=row["previous"],
        results=stages.Results(connection, execution_id, wanted, opener).load(wanted),
        opener=opener,
        task_results=stages.TaskResults(connection, execution_id, wanted, opener).load(wanted & plan.results_of),
        cancelling=row["execution_status"] == "CANCELLING",
        paused=row["execution_status"] == "PAUSED",
        depth=row["depth"],
        parent_iter=row["parent_iter"],
        deadline=_deadline(connection, execution_id, stage_id) if step.timeout is not None else None,
    )


def opened(
    process: Process, connection: Connection, plan: Plan, state: ExecutionState, decision: Decision, opening: Opening
) -> StageNames:
    """The same of a stage that is opened in this transaction, from what its turn knows; only results of earlier turns
    are read."""
    step = plan.steps[opening.step]
    wanted = _wanted(plan, step, opening.previous)
    opener = Opener(process.db.read, Limits.of(process.settings))
    execution_id = state.execution_id
    results = stages.Results(connection, execution_id, wanted, opener)
    task_results = stages.TaskResults(connection, execution_id, wanted, opener)
    closed = [closing.step for closing in decision.closings]
    for closing in decision.closings:
        if closing.status != "CANCELLED" and closed.count(closing.step) == 1:
            results.know(closing.step, closing.result)
            if closing.task_results is not None:
                task_results.know(closing.step, closing.task_results)
    timeout = next((t.seconds for t in decision.timers if t.stage_id == opening.stage_id), None)
    return StageNames(
        plan=plan,
        step=step,
        stage_id=opening.stage_id,
        execution_id=execution_id,
        settings=opening.settings,
        workload=state.workload,
        ctx=state.ctx,
        args=opening.args or {},
        previous=opening.previous,
        results=results.load(wanted),
        opener=opener,
        task_results=task_results.load(wanted & plan.results_of),
        depth=state.depth,
        parent_iter=state.parent_iter,
        deadline=None if step.timeout is None or timeout is None else time.monotonic() + timeout,
    )


def _wanted(plan: Plan, step: StepPlan, previous: str | None) -> frozenset[str]:
    """The steps whose results templates of this one may name."""
    wanted = step.row_names & plan.steps.keys()
    return wanted | {previous} if "result" in step.row_names and previous else wanted


def _deadline(connection: Connection, execution_id: int, stage_id: int) -> float | None:
    left = signals.seconds_left(connection, execution_id, stage_id)
    return None if left is None else time.monotonic() + left
