"""How results are kept: ``output``, ``output_select`` and ``inline_max_bytes`` of steps and tasks."""

from __future__ import annotations

import pytest
from playbook_cases import compiled, plan, refused

from noetl_celery.playbook.plan import ResultPlan


def step_of(keys: str) -> ResultPlan | None:
    return plan(f"- {{step: a, tool: {{kind: noop}}, {keys}}}").steps["a"].output


def task_of(keys: str) -> ResultPlan | None:
    return plan(f"- {{step: a, tool: {{kind: noop, {keys}}}}}").steps["a"].tasks[0].output


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("desc: nothing", None),
        ("output_select: [status, meta.count]", ResultPlan(None, (("status",), ("meta", "count")))),
        ("output_select: status", ResultPlan(None, (("status",),))),
        ("inline_max_bytes: 0", ResultPlan(0)),
        ("inline_max_bytes: '4096'", ResultPlan(4096)),
        ("output: {store: {kind: kv, ttl: 30m}, scope: execution}", None),
        ("output: {store: {kind: auto}, output_select: [a], inline_max_bytes: 5}", ResultPlan(5, (("a",),))),
        ("output: {output_select: [a]}, output_select: [b]", ResultPlan(None, (("b",),))),
        ("output_select: {strategy: size_threshold, threshold_kb: 100}", ResultPlan(102_400)),
    ],
)
def test_what_steps_and_tasks_say(keys: str, expected: ResultPlan | None) -> None:
    assert step_of(keys) == expected
    assert task_of(keys) == expected


def test_a_task_says_it_for_itself() -> None:
    steps = plan(
        "- {step: a, output_select: [x], tool: [{one: {kind: noop, inline_max_bytes: 0}}, {two: {kind: noop}}]}"
    )
    step = steps.steps["a"]
    assert step.output == ResultPlan(None, (("x",),))
    assert [task.output for task in step.tasks] == [ResultPlan(0), None]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("output_select: 5", "`output_select` is a list of names"),
        ("output_select: [a, 'b[0]']", "`output_select`: 'b[0]' is not a name or a dotted path of names"),
        ("output_select: ['{{ x }}']", "is not a name or a dotted path of names"),
        ("output_select: [a..b]", "'a..b' is not a name"),
        ("inline_max_bytes: -1", "`inline_max_bytes` must be a whole number of at least 0, not -1"),
        ("inline_max_bytes: many", "`inline_max_bytes` must be a whole number of at least 0, not 'many'"),
        ("output: {inline_max_bytes: true}", "must be a whole number of at least 0, not True"),
    ],
)
def test_what_they_cannot_say(keys: str, message: str) -> None:
    (said,) = refused(f"- {{step: a, tool: {{kind: noop}}, {keys}}}")
    assert message in said


def test_what_has_no_effect_is_said() -> None:
    for keys in ("output: somewhere", "output: {compression: gzip}", "output_select: {strategy: x}"):
        (warning,) = compiled(f"- {{step: a, tool: {{kind: noop}}, {keys}}}").warnings
        assert warning.code == "no-effect"
