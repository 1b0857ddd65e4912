"""A newcomer's slips: one message each, and it says what to write."""

from __future__ import annotations

import pytest
from playbook_cases import HEAD, compiled, refused


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        ("- {step: a, tools: {kind: noop}}", "unknown key `tools` (did you mean `tool`?)"),
        ("- {step: a, tool: {knd: noop}}", "`kind` is missing (did you mean it by `knd`?)"),
        ("- {step: a, tool: {url: x}}", "`kind` is missing (every tool says its kind: `kind: http`)"),
        ("- {stp: a}", "unknown key `stp` (did you mean `step`?)"),
        ("- {step: a, tool: [noop]}", "`tool`: a mapping is expected (write `{kind: noop}`)"),
        ("- {step: a, when: x}", "a step has no `when` (a condition stands in the arc that leads here (`when`)"),
        ("- {step: a, loop: {inn: [1], iterator: x}}", "unknown key `inn` in `loop` (did you mean `in`?)"),
        ("- {step: a, loop: {in: [1], iter: x}}", "unknown key `iter` in `loop` (did you mean `iterator`?)"),
        (
            "- {step: a, loop: {in: [1], iterator: x, spec: {max_rows: 1}}}",
            "unknown key `max_rows` in `spec` (`max_rows` stands inside `frame`: `frame: {max_rows: …}`)",
        ),
        ("- {step: a, max_in_flight: 3}", "unknown key `max_in_flight` (a key of a tool"),
        ("- {step: a, next: {mode: inclusive, arcs: []}}", "(`mode` stands inside `spec`: `spec: {mode: …}`)"),
        ("- {step: a, next: {arc: []}}", "unknown key `arc` in `next` (did you mean `arcs`?)"),
        ("- {step: a, next: {arcs: [{when: x}]}}", "`step` is missing (an arc says where it leads: `step: …`)"),
        ("- {step: a, next: {arcs: [{step: a, if: x}]}}", "unknown key `if` in `arcs` (did you mean `when`?)"),
    ],
)
def test_one_message_that_leads_to_what_is_right(workflow: str, said: str) -> None:
    [line] = refused(workflow)
    assert said in line


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{wen: x, then: {do: fail}}", "unknown key `wen` in `rules` (did you mean `when`?)"),
        ("{when: x, thn: {do: fail}}", "unknown key `thn` in `rules` (did you mean `then`?)"),
        ("{if: x, do: fail}", "unknown key `if` in `rules` (did you mean `when`?)"),
        ("{when: x, then: fail}", "`then`: a mapping is expected (write `then: {do: fail}`)"),
        ("{when: x, then: {do: fail}, else: {do: break}}", "write `- else: …` as a rule of its own, after this one"),
        ("{when: x, then: {do: retry, attemps: 3}}", "unknown key `attemps` in `then` (did you mean `attempts`?)"),
    ],
)
def test_rules(rule: str, said: str) -> None:
    [line] = refused(f"- {{step: a, tool: {{kind: noop, policy: {{rules: [{rule}]}}}}}}")
    assert said in line


@pytest.mark.parametrize(
    ("text", "hinted"),
    [("{{.Name}}", True), ("{{json .}}", True), ("{{`{{json .}}`}}", True), ("{{ a b }}", False), ("{{ a. }}", False)],
)
def test_braces_of_other_languages(text: str, hinted: bool) -> None:
    [line] = refused(f"- {{step: a, tool: {{kind: noop, result: '{text}'}}}}")
    assert ("between {% raw %} and {% endraw %}" in line) is hinted, line


def test_a_slip_in_executor_spec() -> None:
    head = HEAD + "executor: {spec: {entrystep: a, replicas: 3}}\n"
    [warning] = compiled("- step: a", head).warnings
    assert (warning.code, warning.message, warning.hint) == (
        "no-effect",
        "`entrystep` has no effect",
        "did you mean `entry_step`?",
    )


def test_a_step_that_a_broken_arc_should_lead_to_is_not_called_unreachable() -> None:
    [line] = refused("- {step: a, next: bb}\n- {step: b}")
    assert "an arc to `bb`, which is no step" in line
