"""Spellings met in public playbooks that are read as what they plainly mean."""

from __future__ import annotations

import pytest
from playbook_cases import plan, refused


def test_a_step_may_be_called_like_a_path() -> None:
    made = plan("- {step: start, next: flows/by-day/load.v2}\n- {step: flows/by-day/load.v2, tool: {kind: noop}}")
    assert [arc.step for arc in made.steps["start"].next.arcs] == ["flows/by-day/load.v2"]


@pytest.mark.parametrize("name", ["'a b'", "'{{ x }}'", "'a\\nb'", "''"])
def test_other_names_are_refused(name: str) -> None:
    assert len(refused(f"- {{step: {name}}}")) == 1


def test_cond_of_an_arc_is_its_when() -> None:
    [arc] = plan("- {step: a, next: {arcs: [{step: b, cond: args.code == 100}]}}\n- step: b").steps["a"].next.arcs
    assert arc.when is not None
    assert arc.when.raw == "args.code == 100"
    [line] = refused("- {step: a, next: [{step: b, cond: x, when: y}]}\n- step: b")
    assert "`cond` and `when` are the same key" in line


@pytest.mark.parametrize("rule", ["{else: , then: {do: break}}", "{else: {then: {do: break}}}", "{else: {do: break}}"])
def test_an_else_may_have_its_then_beside_it(rule: str) -> None:
    [task] = plan(f"- {{step: a, tool: {{kind: noop, policy: {{rules: [{rule}]}}}}}}").steps["a"].tasks
    assert task.rules is not None
    assert [(found.when, found.do) for found in task.rules] == [(None, "break")]


def test_admission_and_loops_may_say_what_they_do_anyway() -> None:
    made = plan(
        """
        - step: a
          spec: {policy: {admit: {mode: exclusive, rules: [{else: {allow: false}}]}}}
          loop: {in: [1], iterator: i, spec: {policy: {exec: distributed, results: {preserve_order: true}}}}
          tool: {kind: noop}
        """
    )
    assert [rule.allow for rule in made.steps["a"].admit] == [False]
    [line] = refused("- {step: a, spec: {policy: {admit: {mode: inclusive}}}}")
    assert "`mode` must be 'exclusive', not 'inclusive'" in line


def test_the_arguments_of_a_container_are_its_own() -> None:
    found = refused("- {step: a, tool: {kind: container, args: [echo]}}")
    assert len(found) == 1
    assert "kind `container`" in found[0]
    assert "a mapping is expected, not a list" in refused("- {step: a, tool: {kind: python, code: 1, args: [1]}}")[0]
