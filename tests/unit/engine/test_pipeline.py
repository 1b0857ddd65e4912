"""One row's way through the tasks of its step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from engine_playbooks import simulated
from engine_rows import Row, bad, good, rule, step_of
from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.engine import Done, Failed

ERROR, OK = "{{ output.status == 'error' }}", "{{ output.status == 'ok' }}"
FIRST, SECOND, THIRD = {"name": "first"}, {"name": "second"}, {"name": "third"}


# -- the way -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "first", "outcomes", "tasks", "end"),
    [
        ("all ok", [], [good(1), good(2)], "first second", Done(2)),
        ("an error without a policy", None, [bad("x")], "first", "x"),
        ("an error, no rule holds", [rule("fail", OK)], [bad(), good(2)], "first second", Done(2)),
        ("continue after an error", [rule("continue", ERROR)], [bad(), good(2)], "first second", Done(2)),
        ("break ends the pipeline well", [rule("break")], [good(1)], "first", Done(1)),
        ("break after an error too", [rule("break", ERROR)], [bad()], "first", Done(None)),
        ("fail with the task's own error", [rule("fail", ERROR)], [bad("x")], "first", "x"),
        ("fail what was ok", [rule("fail", "{{ output.data == 1 }}")], [good(1)], "first", "policy"),
        ("jump", [rule("jump", to="third")], [good(1), good(3)], "first third", Done(3)),
        ("a rule that cannot be rendered", [rule("fail", "{{ 1 / 0 }}")], [good(1)], "first", "template"),
        ("a `set` that cannot", [rule("continue", set={"x": "{{ nothing }}"})], [good(1)], "first", "template"),
    ],
)
def test_the_way_of_a_row(what: str, first: Any, outcomes: Any, tasks: str, end: Any) -> None:
    rules = {} if first is None else {"rules": first}
    others = [SECOND, THIRD] if "third" in tasks else [SECOND]
    way = Row(step_of({**FIRST, **rules}, *others), outcomes).run()
    assert way.tasks == tasks.split()
    if isinstance(end, str):
        assert isinstance(way.end, Failed)
        assert (way.end.error.kind, way.end.task) == (end, "first")
    else:
        assert way.end == end


def test_a_jump_back_runs_tasks_again_and_the_last_result_counts() -> None:
    step = step_of(FIRST, {**SECOND, "rules": [rule("jump", "{{ output.data < 3 }}", to="first")]})
    way = Row(step, [good("a"), good(1), good("b"), good(3)]).run()
    assert way.tasks == ["first", "second", "first", "second"]
    assert way.end == Done(3)
    assert way.position.results == {"first": "b", "second": 3}


def test_a_pipeline_without_end_is_an_error() -> None:
    way = Row(step_of({**FIRST, "rules": [rule("jump", to="first")]}), lambda *_: good(), jump_budget=20).run()
    assert isinstance(way.end, Failed)
    assert way.end.error.kind == "jump_budget"
    assert len(way.tasks) == 21


def test_a_jump_begins_with_a_fresh_count_of_attempts() -> None:
    rules = [rule("retry", ERROR, attempts=2), rule("jump", "{{ output.data == 'again' }}", to="first")]
    step = step_of({**FIRST, "rules": rules})
    way = Row(step, [bad(), good("again"), bad(), good("end")]).run()
    assert way.end == Done("end")


@pytest.mark.parametrize("key", ["input", "config"])
def test_a_task_that_cannot_be_rendered_fails_the_row_before_it_runs(key: str) -> None:
    task = {**FIRST, "input": {"x": "{{ nothing }}"}} if key == "input" else {**FIRST, "url": "{{ nothing }}"}
    way = Row(step_of({**task, "rules": [rule("continue", ERROR)]}), []).run()
    assert isinstance(way.end, Failed)
    assert (way.end.error.kind, way.end.error.retryable) == ("template", False)
    assert "nothing" in way.end.error.message


# -- what templates see ------------------------------------------------------------------------------------------------


def test_a_later_task_sees_the_envelope_and_the_results_of_those_before_it() -> None:
    seen = {
        "status": "{{ output.status }}",
        "data": "{{ outcome.data.n }}",
        "bare": "{{ first.n }}",
        "previous": "{{ _prev.n }}",
        "item": "{{ iter.item.id }}",
        "index": "{{ iter.index }}",
        "task": "{{ _task }}",
        "workload": "{{ workload.w }}",
    }
    way = Row(step_of(FIRST, {**SECOND, "input": seen}), [good({"n": 4}), good()], item={"id": 9}).run()
    expected = {
        "status": "ok",
        "data": 4,
        "bare": 4,
        "previous": 4,
        "item": 9,
        "index": 0,
        "task": "second",
        "workload": 7,
    }
    assert way.inputs[1] == expected


def test_a_later_task_sees_the_error_that_was_passed_over() -> None:
    task = {**SECOND, "input": {"kind": "{{ output.error.kind }}", "of": "{{ output.error.task }}"}}
    way = Row(step_of({**FIRST, "rules": [rule("continue", ERROR)]}, task), [bad("x"), good()]).run()
    assert way.inputs[1] == {"kind": "x", "of": "first"}


def test_the_set_of_a_task_sees_the_bare_result_and_that_of_a_rule_the_envelope() -> None:
    task = {
        **FIRST,
        "set": {"bare": "{{ output.data }}"},
        "rules": [rule("continue", set={"whole": "{{ output.data }}", "both": "{{ bare }}"})],
    }
    way = Row(step_of(task), [good({"data": 5})]).run()
    assert way.position.names == {"bare": 5, "whole": {"data": 5}, "both": 5}


def test_the_set_of_a_task_is_for_success_only() -> None:
    task = {**FIRST, "set": {"n": "{{ output.n }}"}, "rules": [rule("continue", ERROR)]}
    way = Row(step_of(task), [bad()]).run()
    assert (way.end, way.position.names) == (Done(None), {"n": None})


def test_what_a_failed_task_would_have_set_is_null_where_nobody_else_gives_it() -> None:
    task = {
        **FIRST,
        "set": {"got": "{{ output }}", "kept": 2, "ctx.total": 1, "iter.page": 1},
        "rules": [rule("continue", ERROR)],
    }
    before = {"name": "before", "set": {"kept": 1}}
    way = Row(step_of(before, task, SECOND), [good(), bad(), good()]).run()
    assert way.position.names == {"kept": 1, "got": None}
    assert way.position.ctx == {}
    assert "page" not in way.position.iter


def test_where_set_writes() -> None:
    then = {
        "set": {"a": 1, "iter.b": 2, "ctx.c": 3},
        "set_iter": {"d": 4},
        "set_ctx": {"e": "{{ a + iter.b + ctx.c }}"},
    }
    way = Row(step_of({**FIRST, "rules": [rule("continue", **then)]}), [good()]).run()
    assert way.position.names == {"a": 1}
    assert way.position.iter == {"item": None, "index": 0, "b": 2, "d": 4}
    assert way.position.ctx == {"c": 3, "e": 6}


def test_a_retry_may_set_what_its_next_attempt_sees() -> None:
    task = {
        **FIRST,
        "input": {"page": "{{ iter.page | default(1) }}"},
        "rules": [rule("retry", ERROR, attempts=3, set_iter={"page": "{{ iter.page | default(1) + 1 }}"})],
    }
    way = Row(step_of(task), [bad(), bad(), good()]).run()
    assert [given["page"] for given in way.inputs] == [1, 2, 3]


def test_a_result_is_not_changed_by_what_is_set_into_it() -> None:
    way = Row(step_of({**FIRST, "rules": [rule("continue", set_iter={"item": "{{ output.data }}"})]}), [good({"a": 1})])
    assert way.run().position.results == {"first": {"a": 1}}


@pytest.mark.parametrize("where", ["set", "set_iter", "set_ctx"])
def test_what_has_no_json_form_cannot_be_set(where: str) -> None:
    task = {**FIRST, "rules": [rule("continue", **{where: {"x": "{{ namespace(n=1) }}"}})]}
    way = Row(step_of(task), [good()]).run()
    assert isinstance(way.end, Failed)
    assert way.end.error.kind == "template"


def test_the_outcome_tells_its_attempt() -> None:
    task = {**FIRST, "rules": [rule("retry", ERROR, attempts=3)], "set": {"n": 1}}
    way = Row(step_of(task), [bad(), good()]).run()
    assert way.position.output is not None
    assert way.position.output["meta"]["attempt"] == 2


# -- parked and resumed ------------------------------------------------------------------------------------------------

RULES = st.sampled_from(
    [
        rule("continue", ERROR),
        rule("retry", ERROR, attempts=3, delay=9, set_iter={"tries": "{{ iter.tries | default(0) + 1 }}"}),
        rule("retry", "{{ output.error.retryable }}", attempts=2),
        rule("jump", "{{ output.data is defined and output.data == 1 }}", to="first"),
        rule("jump", ERROR, to="last", set={"jumped": "{{ _task }}"}),
        rule("break", "{{ output.data == 2 }}"),
        rule("fail", "{{ output.error.kind == 'bad' }}"),
        rule("continue", set={"seen": "{{ (seen | default([])) + [output.data] }}"}, set_ctx={"last": "{{ _task }}"}),
    ]
)
TASKS = st.fixed_dictionaries(
    {"input": st.sampled_from([{}, {"n": "{{ iter.tries | default(0) }}", "p": "{{ _prev | default('none') }}"}])},
    optional={
        "rules": st.lists(RULES, max_size=3),
        "set": st.sampled_from([{"mine": "{{ output }}"}, {"iter.mine": "{{ output }}"}, {"ctx.mine": "{{ output }}"}]),
    },
)
OUTCOMES = st.sampled_from(
    [good(1), good(2), good({"a": [1, None, "x"]}), bad(), bad("rate_limit", retryable=True, after=7)]
)


@simulated(60)
@given(
    tasks=st.lists(TASKS, min_size=1, max_size=3),
    outcomes=st.lists(OUTCOMES, min_size=1, max_size=6),
    parks=st.lists(st.booleans(), min_size=1, max_size=6),
)
def test_a_row_that_is_parked_anywhere_ends_as_if_it_had_never_been(
    tasks: list[dict[str, Any]], outcomes: list[Any], parks: list[bool]
) -> None:
    named = [{**task, "name": name} for task, name in zip(tasks, ["first", "middle", "last"], strict=False)]
    named[-1]["name"] = "last"
    named[0]["name"] = "first" if len(named) > 1 else "last"
    for task in named:
        for rule_ in task.get("rules", ()):
            if "to" in rule_.get("then", {}):
                rule_["then"]["to"] = named[0]["name"] if rule_["then"]["to"] == "first" else "last"
    row = Row(step_of(*named), lambda _, number: outcomes[number % len(outcomes)], item={"id": 1}, jump_budget=8)
    straight, parked = row.run(), row.run(itertools.cycle(parks))
    assert (parked.end, parked.tasks, parked.inputs) == (straight.end, straight.tasks, straight.inputs)
    assert parked.waits == straight.waits
    assert parked.position == straight.position
