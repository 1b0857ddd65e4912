"""Drives one row through a step's real pipeline, with outcomes given by the test."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_playbooks import compiled

from noetl_celery.engine import Done, Failed, Pipeline, Position, Run, Wait
from noetl_celery.errors import ErrorInfo
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import StepPlan
from noetl_celery.template import scope


def good(data: Any = None) -> Outcome:
    return Outcome(data)


def bad(kind: str = "bad", *, retryable: bool = False, after: float | None = None, message: str = "no") -> Outcome:
    return Outcome(error=ErrorInfo(kind, message, retryable=retryable, retry_after=after))


def step_of(*tasks: Mapping[str, Any], loop: bool = True) -> StepPlan:
    """A step of these tasks (each ``{name, rules?, set?, input?}``), in a loop whose iterator is ``item``."""
    tools = []
    for task in tasks:
        given = {key: value for key, value in task.items() if key != "rules"}
        policy = {"spec": {"policy": {"rules": task["rules"]}}} if "rules" in task else {}
        tools.append({"kind": "noop", **given, **policy})
    step: dict[str, Any] = {"step": "work", "tool": tools}
    if loop:
        step["loop"] = {"in": [1], "iterator": "item"}
    return compiled([step]).steps["work"]


@dataclass
class Way:
    """How a row went: ``tasks`` in the order in which they ran, what each got as input, the waits between."""

    end: Done | Failed
    position: Position
    tasks: list[str] = field(default_factory=list)
    inputs: list[Mapping[str, Any]] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)


@dataclass
class Row:
    """A row of a step; ``outcomes`` in the order of the calls, or a function of the call and its number."""

    step: StepPlan
    outcomes: Sequence[Outcome] | Callable[[Run, int], Outcome]
    item: Any = None
    ctx: Mapping[str, Any] = field(default_factory=dict)
    random: Callable[[], float] = lambda: 0.5
    jump_budget: int = 50

    def names(self, at: Position, args: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        return scope(
            execution_id=1,
            workload={"w": 7},
            ctx={**self.ctx, **at.ctx},
            results={"before": {"n": 1}},
            pipeline=at.results,
            names=at.names,
            iter=at.iter,
            iterator="item",
            args=args,
            extra=extra,
        )

    def pipeline(self, position: Position) -> Pipeline:
        return Pipeline(self.step, position, self.names, random=self.random, jump_budget=self.jump_budget)

    def run(self, park: Iterator[bool] | None = None) -> Way:
        """Runs it to its end. ``park`` says after each call whether the row goes on elsewhere, from its document."""
        pipeline = self.pipeline(Position(iter={"item": copy.deepcopy(self.item), "index": 0}))
        way = Way(Done(None), pipeline.position)
        while True:
            step: Any = pipeline.next()
            if isinstance(step, Run):
                way.tasks.append(step.task.name)
                way.inputs.append(step.input)
                step = pipeline.apply(self._outcome(step, len(way.tasks) - 1))
            if isinstance(step, Wait):
                way.waits.append(step)
            elif step is not None:
                way.end, way.position = step, pipeline.position
                assert pipeline.next() is step or pipeline.next() == step, "the end is final"
                return way
            if park is not None and next(park):
                pipeline = self.pipeline(Position(**json.loads(json.dumps(pipeline.position.document()))))

    def _outcome(self, step: Run, number: int) -> Outcome:
        outcome = self.outcomes(step, number) if callable(self.outcomes) else self.outcomes[number]
        return copy.deepcopy(outcome)


def rule(do: str, when: str | None = None, **then: Any) -> dict[str, Any]:
    """A policy rule; without ``when`` it is the one for everything else."""
    body = {"then": {"do": do, **then}}
    return {"when": when, **body} if when is not None else {"else": body}
