"""The names that only policy rules see: `response` and `error`."""

from __future__ import annotations

from typing import Any

import pytest

from noetl_celery.engine.pipeline import Done, Pipeline, Position
from noetl_celery.errors import ErrorInfo
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import Rule, StepPlan, TaskPlan
from noetl_celery.template import compile_condition, compile_value, constant, scope

OK = Outcome({"status_code": 200, "headers": {}, "url": "u", "body": {"n": 5}, "data": {"n": 5}})
BARE = Outcome({"n": 5})
FAILED = Outcome(None, ErrorInfo("timeout", "late"))


@pytest.mark.parametrize(
    ("condition", "outcome", "holds"),
    [
        ("response.n == 5", OK, True),
        ("response.data.n == 5", OK, True),
        ("response.status_code == 200", OK, True),
        ("response.data.n == 5", BARE, True),
        ("response is none", FAILED, True),
        ("error is defined", OK, False),
        ("error is defined", FAILED, True),
        ("error != None", OK, False),
        ("error != None", FAILED, True),
        ("error", OK, False),
        ("error.kind == 'timeout'", FAILED, True),
        ("error.kind == 'timeout'", OK, False),
    ],
)
def test_conditions(condition: str, outcome: Outcome, holds: bool) -> None:
    value = compile_value("{{ response }}", place="here")
    rules = (Rule(compile_condition(condition, place="here"), set=(("seen", value),)), Rule(None))
    task = TaskPlan("t", "noop", constant({}), constant({}), rules)
    position = Position()

    def names(at: Position, args: Any, extra: Any) -> Any:
        return scope(execution_id=1, workload={}, ctx={}, results={}, names=at.names, args=args, extra=extra)

    pipeline = Pipeline(StepPlan("s", (task,)), position, names, random=lambda: 0.5, jump_budget=1)
    pipeline.next()
    pipeline.apply(Outcome(outcome.data, outcome.error))
    assert ("seen" in position.names) is holds
    assert isinstance(pipeline.next(), Done)
    assert position.names.get("seen") == (outcome.data if holds else None)
