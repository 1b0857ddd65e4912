"""Workbook calls, child playbooks, keychain entries and reductions: what they become, and what is refused."""

from __future__ import annotations

import pytest
from playbook_cases import HEAD, plan, refused, warned

WORKBOOK = (
    HEAD
    + """workbook:
- name: add
  tool:
    kind: python
    input: {a: 1, b: 2}
    code: result = a + b
- {name: old, tool: noop, result: 5}
- {name: again, tool: {kind: workbook, name: add, input: {b: 3}}}
- {name: child, tool: {kind: playbook, path: other}}
- {name: circle, tool: {kind: workbook, name: circle}}
"""
)


def test_a_call_is_the_task_with_the_callers_input_over_its_own() -> None:
    found = plan(
        """
        - step: one
          input: {b: 20, c: 30}
          tool: {kind: workbook, name: add, input: {c: 300}, policy: {rules: [{do: break}]}}
        - step: two
          tool:
          - first: {kind: workbook, name: again}
          - {kind: workbook, name: old}
        - {step: three, tool: {kind: workbook, name: child, input: {x: 1}}}
        """,
        WORKBOOK,
    )
    (one,) = found.steps["one"].tasks
    assert (one.name, one.kind, one.config.raw["code"]) == ("one", "python", "result = a + b")
    assert one.input.render({}) == {"a": 1, "b": 20, "c": 300}
    assert one.rules is not None
    assert [rule.do for rule in one.rules] == ["break"]
    first, second = found.steps["two"].tasks
    assert (first.name, first.kind, first.input.render({})) == ("again", "python", {"a": 1, "b": 3})
    assert (second.name, second.kind, second.config.render({})) == ("old", "noop", {"result": 5})
    (three,) = found.steps["three"].tasks
    assert three.call is not None
    assert (three.call.path.render({}), three.input.render({})) == ("other", {"x": 1})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("{kind: workbook, name: ad}", "`ad` is no task of the workbook (did you mean `add`?)"),
        ("{kind: workbook}", "a call of a workbook task needs its `name`"),
        ("{kind: workbook, name: circle}", "workbook tasks call each other in a circle: circle → circle"),
    ],
)
def test_calls_that_cannot_be_made(call: str, said: str) -> None:
    (line,) = refused(f"- {{step: a, tool: {call}}}", WORKBOOK)
    assert line.endswith(said)


def test_a_task_that_nobody_calls_is_said() -> None:
    head = HEAD + "workbook: [{name: w, tool: {kind: noop}}]\n"
    (warning,) = warned("- {step: a}", head)
    assert "no step calls the workbook task `w`" in warning


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{tool: {kind: noop}}", "a workbook task needs `name` and `tool`"),
        ("{name: a}", "workbook task `a` needs one `tool: {kind: …}`"),
        ("{name: a, tool: {kind: noop}, cod: 1}", "workbook task `a`: unknown key `cod`"),
    ],
)
def test_entries_that_are_no_tasks(entry: str, said: str) -> None:
    lines = refused("- {step: a}", HEAD + f"workbook: [{entry}]\n")
    assert any(said in line for line in lines), lines


def test_a_child_playbook() -> None:
    found = plan(
        """
        - step: a
          tool: {kind: playbook, path: '{{ p }}', payload: {x: '{{ y }}'}, return_step: end, timeout: 5, task: t}
        """
    )
    (task,) = found.steps["a"].tasks
    assert task.call is not None
    assert task.call.path.render({"p": "q"}) == "q"
    assert task.call.timeout is not None
    assert task.call.timeout.render({}) == 5
    assert task.input.render({"y": 1}) == {"x": 1}
    assert found.steps["a"].row_names >= {"p", "y"}


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{kind: playbook}", "`path` is missing"),
        ("{kind: playbook, path: p, retrun_step: e}", "unknown key `retrun_step`"),
        ("{kind: playbook, path: p, timeout: 0}", "`timeout` must be more than 0"),
    ],
)
def test_children_that_are_refused(task: str, said: str) -> None:
    (line,) = refused(f"- {{step: a, tool: {task}}}")
    assert said in line


def test_keychain_entries() -> None:
    head = (
        HEAD
        + """keychain:
- {name: pg, kind: credential, credential: '{{ workload.auth }}'}
- {name: aliased, type: google_oauth, ref: stored}
- {name: api, kind: bearer, scope: global, token: '{{ key }}'}
- {name: given, kind: static, map: {id: 1}}
"""
    )
    found = plan("- {step: a}", head).keychain
    assert found["pg"].credential is not None
    assert found["pg"].credential.render({"workload": {"auth": "x"}}) == "x"
    assert found["aliased"].credential is not None
    assert found["aliased"].credential.render({}) == "stored"
    assert found["api"].fields is not None
    assert found["api"].fields.render({"key": "k"}) == {"token": "k", "access_token": "k"}
    assert found["given"].fields is not None
    assert found["given"].fields.render({}) == {"id": 1}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{name: a, kind: secrets, provider: gcp, map: {k: p}}", "(provider `gcp`), which needs a plugin"),
        ("{name: a, kind: credential}", "gives no secret"),
        ("{kind: static}", "`name` is missing"),
    ],
)
def test_keychain_entries_that_are_refused(entry: str, said: str) -> None:
    lines = refused("- {step: a}", HEAD + f"keychain: [{entry}]\n")
    assert any(said in line for line in lines), lines


def test_reductions_need_one_operation() -> None:
    (line,) = refused(
        "- step: a\n  loop: {in: [1], iterator: x, aggregate: {t: {sum: 1, max: 2}}}\n  tool: {kind: noop}"
    )
    assert "`t` needs one operation" in line
