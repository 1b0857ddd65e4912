"""Templates in python code become inputs; whatever else has braces in it stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from older_cases import compiled, document, older_warnings, step

from noetl_celery.playbook.rewrite import rewrite


def task(code: str, **more: Any) -> tuple[str, Any]:
    """The code and the input of a task with this code."""
    (found,) = step(f"- {{step: run, tool: {json.dumps({'kind': 'python', 'code': code} | more)}}}").tasks
    return found.config.raw["code"], found.input.raw


@pytest.mark.parametrize(
    ("code", "expected", "inputs"),
    [
        ("x = {{ size }}", "x = size", {"size": "{{ size }}"}),
        ("x = {{ a }} * {{ b }} + {{ a }}", "x = a * b + a", {"a": "{{ a }}", "b": "{{ b }}"}),
        ("x = {'k': {{ ctx.page }}}", "x = {'k': ctx_page}", {"ctx_page": "{{ ctx.page }}"}),
        ("x = [{{ a | default({'b': 1}) }}]", "x = [a_default_b_1]", {"a_default_b_1": "{{ a | default({'b': 1}) }}"}),
        ("size = 1\nx = {{ size }}", "size = 1\nx = size_value", {"size_value": "{{ size }}"}),
        ("x = {{ 'ä' }} # ü\ny = {{ b }}", "x = ä # ü\ny = b", {"ä": "{{ 'ä' }}", "b": "{{ b }}"}),
        ("return {{ a }}", "return a", {"a": "{{ a }}"}),
    ],
)
def test_templates_that_stand_as_values(code: str, expected: str, inputs: dict[str, str]) -> None:
    assert task(code) == (expected, inputs)


@pytest.mark.parametrize(
    "code",
    [
        "x = '{{ a }}'",
        "x = f'{{a}} {b}'",
        "x = 1  # {{ a }}",
        "x = {'a': {'b': {'c': 1}}}",
        "x = {'a': {1}}",
        "x = [{}, {}]",
        "x = '''\n{{ a }}\n'''",
        "x = {{ a",
        "x = {{ a b }}",
        "if x:\n    y = {{ a }}\n  z = 1",
    ],
)
def test_other_braces_stay(code: str) -> None:
    assert task(code) == (code, {})
    assert not older_warnings(document(f"- {{step: run, tool: {json.dumps({'kind': 'python', 'code': code})}}}"))


def test_a_name_that_is_an_input_already_means_that_input() -> None:
    assert task("x = {{ a }} + {{ b }}", input={"a": "{{ ctx.a }}"}) == (
        "x = a + b",
        {"a": "{{ ctx.a }}", "b": "{{ b }}"},
    )
    plan = step("- {step: run, input: {a: 1}, tool: {kind: python, code: 'x = {{ a }}'}}")
    assert (plan.tasks[0].config.raw["code"], plan.tasks[0].input.raw) == ("x = a", {"a": 1})


def test_keys_in_spec_and_tasks_of_a_list() -> None:
    plan = step(
        """
        - step: run
          tool:
            - {name: one, kind: python, spec: {code: "x = {{ a }}", args: {b: 1}}}
            - {name: two, kind: noop}
        """
    )
    assert plan.tasks[0].config.raw["code"] == "x = a"
    assert plan.tasks[0].input.raw == {"a": "{{ a }}", "b": 1}


def test_it_is_told_and_written_anew() -> None:
    text = document(
        """
        - step: run
          tool:
            kind: python
            code: |
              # how many
              x = {{ workload.n }}
              result = {"x": x}
        """
    )
    (warning,) = older_warnings(text)
    assert "{{ workload.n }} in code" in warning
    assert 'input: {workload_n: "{{ workload.n }}"}' in warning
    written = rewrite(text, file="f.yaml")
    assert "x = workload_n" in written
    assert "# how many" in written
    assert not older_warnings(written)
    assert compiled(written).plan.steps["run"].tasks[0].input.raw == {"workload_n": "{{ workload.n }}"}
