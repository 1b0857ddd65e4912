"""What code looks up in `context`, read from its text."""

from __future__ import annotations

import pytest
from playbook_cases import plan

from noetl_celery.playbook.code import names_of_context


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = context['a']", {"a"}),
        ("x = context.get('a')\ny = context.get('b', {}).get('c')", {"a", "b"}),
        ("if 'a' in context and 'b' not in context: pass", {"a", "b"}),
        ("def main(context):\n    return context['a']['b']", {"a"}),
        ("return context.get('a')", {"a"}),
        ("context.keys(); context[0]; context[name]; other['a']; context.items('a')", set()),
        ("x = 'context'", set()),
        ("context['a'", set()),
        ("x = 1", set()),
    ],
)
def test_names_that_stand_in_the_code_as_text(code: str, names: set[str]) -> None:
    assert names_of_context(code) == names


def test_results_that_code_looks_up_are_loaded_with_the_step() -> None:
    step = plan(
        """
        - step: first
          tool: {kind: noop}
        - step: second
          tool: {kind: python, code: "result = context['first'], context.get('not a name'), context.get('if')"}
        """
    ).steps["second"]
    assert step.tasks[0].looks_up == {"first", "not a name", "if"}
    assert "first" in step.row_names


def test_a_key_called_code_of_another_tool_is_no_python() -> None:
    step = plan("- {step: first, tool: {kind: http, url: x, code: \"context['first']\"}}").steps["first"]
    assert step.tasks[0].looks_up == frozenset()
