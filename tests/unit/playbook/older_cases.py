"""Compiling older forms, and running a step's pipeline against stand-ins for its tools."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from playbook_cases import HEAD, Cursors

from noetl_celery.engine.pipeline import Done, Failed, Pipeline, Position, Run, Wait
from noetl_celery.errors import ErrorInfo, PlaybookInvalid
from noetl_celery.outcome import Outcome
from noetl_celery.playbook import Compiled, StepPlan, compile_playbook
from noetl_celery.template import scope

KINDS = {"http", "noop", "postgres", "python", "duckdb", "transfer"}
Fake = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


class AnyTools:
    """The kinds that sinks use, with whatever keys."""

    def kinds(self) -> Collection[str]:
        return KINDS

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        return []

    def raw_keys(self, kind: str) -> frozenset[str]:
        return frozenset({"code"}) if kind == "python" else frozenset()


def document(workflow: str) -> str:
    return (
        HEAD + "workload: {api: 'http://x'}\nworkflow:\n" + textwrap.indent(textwrap.dedent(workflow).strip("\n"), "  ")
    )


def compiled(text: str) -> Compiled:
    return compile_playbook(text, file="f.yaml", tools=AnyTools(), cursors=Cursors())


def step(workflow: str, name: str | None = None) -> StepPlan:
    """The plan of the first step, or of the one called ``name``."""
    steps = compiled(document(workflow)).plan.steps
    return steps[name] if name else next(iter(steps.values()))


def older_warnings(text: str) -> list[str]:
    return [str(problem) for problem in compiled(text).warnings if problem.code == "older-form"]


def refused(workflow: str) -> list[str]:
    """What is wrong, without file and place."""
    with pytest.raises(PlaybookInvalid) as caught:
        compiled(document(workflow))
    assert all(problem.line for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


@dataclass
class Ran:
    """How a pipeline ended, the rendered calls of its tools by task, and how long it would have waited."""

    end: Done | Failed
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    @property
    def data(self) -> Any:
        assert isinstance(self.end, Done), self.end
        return self.end.data

    @property
    def error(self) -> ErrorInfo:
        assert isinstance(self.end, Failed), self.end
        return self.end.error

    def of(self, task: str) -> list[dict[str, Any]]:
        return [config for name, config in self.calls if name == task]


def http(body: Any, status: int = 200) -> Outcome:
    """What the tool ``http`` returns for this answer."""
    found = {"status": status, "headers": {}}
    if status >= 400:
        error = ErrorInfo("server_error", f"HTTP {status}", status=status, retryable=True)
        return Outcome(None, error, http=found)
    return Outcome({"status_code": status, "headers": {}, "url": "u", "body": body, "data": body}, http=found)


def failed(kind: str = "sql", message: str = "no") -> Outcome:
    return Outcome(None, ErrorInfo(kind, message))


def run(plan: StepPlan, tools: Mapping[str, Fake], *, iter_: Mapping[str, Any] | None = None) -> Ran:
    """Runs a row; ``tools`` answer with an outcome or a bare result. Saves and restores the position at each step."""
    position = Position(iter=dict(iter_ or {}))
    ran = Ran(Done(None))
    for _ in range(500):
        position = Position(**position.document())
        pipeline = Pipeline(plan, position, lambda at, args, extra: _names(plan, at, args, extra), **_CHANCE)
        what = pipeline.next()
        if isinstance(what, Run):
            if what.task.kind == "noop":
                answer: Any = what.config.get("result")
            else:
                ran.calls.append((what.task.name, dict(what.config) | {"input": dict(what.input)}))
                answer = tools[what.task.kind](what.config, what.input)
            after = pipeline.apply(answer if isinstance(answer, Outcome) else Outcome(answer))
            if isinstance(after, Wait):
                ran.waits.append(after.seconds)
            what = after if isinstance(after, Done | Failed) else what
        if isinstance(what, Done | Failed):
            ran.end = what
            return ran
    raise AssertionError("the pipeline has no end")


_CHANCE: dict[str, Any] = {"random": lambda: 0.5, "jump_budget": 100}


def _names(plan: StepPlan, at: Position, args: Any, extra: Mapping[str, Any]) -> Mapping[str, Any]:
    return scope(
        execution_id=1,
        workload={"api": "http://x", "most": 2},
        ctx={},
        results={},
        pipeline=at.results,
        names=at.names,
        iter=at.iter,
        iterator=plan.loop.iterator if plan.loop else None,
        args=args,
        extra=extra,
    )
