"""Policies: which rule applies, how often a task is retried, and how long a retry waits."""

from __future__ import annotations

from typing import Any

import pytest
from engine_rows import Row, Way, bad, good, rule, step_of
from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.engine import Done, Failed
from noetl_celery.engine.policy import JITTER, attempts_allowed, choose, retry_delay
from noetl_celery.errors import TemplateError
from noetl_celery.playbook.plan import Rule
from noetl_celery.template import compile_value

ERROR = "{{ output.status == 'error' }}"


def written(do: str = "retry", **then: Any) -> Rule:
    """A rule with constant or template values."""
    values = {name: compile_value(value, place="rule") for name, value in then.items() if name != "backoff"}
    return Rule(None, do, backoff=then.get("backoff", "none"), **values)  # type: ignore[arg-type]


def one(*rules: dict[str, Any], outcomes: Any) -> Way:
    return Row(step_of({"name": "first", "rules": list(rules)}, {"name": "second"}), outcomes).run()


# -- which rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "rules", "ok", "do"),
    [
        ("no policy, ok", None, True, "continue"),
        ("no policy, error", None, False, "fail"),
        ("no rules at all, error", (), False, "continue"),
        ("none holds, error", (Rule(compile_value(False, place="p"), "fail"),), False, "continue"),
        ("the first that holds", (Rule(compile_value(True, place="p"), "break"), Rule(None, "fail")), True, "break"),
        ("else", (Rule(compile_value(False, place="p"), "break"), Rule(None, "fail")), True, "fail"),
        ("a bare retry repeats failures", (Rule(None, "retry"),), False, "retry"),
        ("but no success", (Rule(None, "retry"),), True, "continue"),
        ("a conditional one does", (Rule(compile_value(True, place="p"), "retry"),), True, "retry"),
    ],
)
def test_the_rule_that_applies(what: str, rules: Any, ok: bool, do: str) -> None:
    assert choose(rules, {}, ok=ok).do == do


# -- attempts ----------------------------------------------------------------------------------------------------------


def test_a_retry_counts_all_attempts_and_then_fails_with_the_last_error() -> None:
    outcomes = [bad(message="one"), bad(message="two"), bad(message="three")]
    way = one(rule("retry", ERROR, attempts=3), outcomes=outcomes)
    assert way.tasks == ["first"] * 3
    assert isinstance(way.end, Failed)
    assert (way.end.error.message, way.end.task) == ("three", "first")


def test_a_retry_that_succeeds_goes_on_with_a_fresh_count() -> None:
    rules = {"rules": [rule("retry", ERROR, attempts=2)]}
    step = step_of({"name": "first", **rules}, {"name": "second", **rules})
    way = Row(step, [bad(), good(1), bad(), good(2)]).run()
    assert way.tasks == ["first", "first", "second", "second"]
    assert way.end == Done(2)


def test_attempts_default_to_three() -> None:
    way = one(rule("retry", ERROR), outcomes=[bad()] * 9)
    assert way.tasks == ["first"] * 3


def test_a_retry_of_what_was_ok_that_is_used_up_fails() -> None:
    way = one(rule("retry", "{{ output.data == 'pending' }}", attempts=2), outcomes=[good("pending")] * 2)
    assert isinstance(way.end, Failed)
    assert way.end.error.kind == "policy"


def test_templates_see_the_attempt() -> None:
    step = step_of({"name": "first", "input": {"n": "{{ _attempt }}"}, "rules": [rule("retry", ERROR, attempts=3)]})
    assert [given["n"] for given in Row(step, [bad(), bad(), good()]).run().inputs] == [1, 2, 3]


def test_the_number_of_attempts_may_depend_on_the_error() -> None:
    attempts = "{{ 4 if error_kind == 'x' else 2 }}"
    assert attempts_allowed(written(attempts=attempts), {"error_kind": "x"}) == 4
    assert attempts_allowed(written(attempts=attempts), {"error_kind": "y"}) == 2


@pytest.mark.parametrize("attempts", ["{{ 'often' }}", "{{ -1 }}", "{{ 2.5 }}", "{{ none }}", "{{ nothing }}"])
def test_attempts_that_are_no_whole_number_fail_the_row(attempts: str) -> None:
    with pytest.raises(TemplateError):
        attempts_allowed(written(attempts=attempts), {})
    way = one(rule("retry", ERROR, attempts=attempts), outcomes=[bad()])
    assert isinstance(way.end, Failed)
    assert way.end.error.kind == "template"


# -- delays ------------------------------------------------------------------------------------------------------------

MIDDLE = 0.5  #: the random number that changes nothing


@pytest.mark.parametrize(
    ("then", "delays"),
    [
        ({}, [0, 0, 0]),
        ({"delay": 2}, [2, 2, 2]),
        ({"delay": 2, "backoff": "none"}, [2, 2, 2]),
        ({"delay": 2, "backoff": "fixed"}, [2, 2, 2]),
        ({"delay": 2, "backoff": "linear"}, [2, 4, 6]),
        ({"delay": 2, "backoff": "exponential"}, [2, 4, 8]),
        ({"backoff": "fixed"}, [1, 1, 1]),
        ({"backoff": "exponential"}, [1, 2, 4]),
        ({"delay": 2, "backoff": "exponential", "max_delay": 5}, [2, 4, 5]),
        ({"delay": 1000}, [300, 300, 300]),
        ({"delay": "{{ n * 2 }}", "max_delay": "{{ n }}"}, [3, 3, 3]),
    ],
)
def test_delays_of_the_first_attempts(then: dict[str, Any], delays: list[float]) -> None:
    rule = written(**then)
    assert [retry_delay(rule, {"n": 3}, attempt, None, lambda: MIDDLE) for attempt in (1, 2, 3)] == delays


@given(
    backoff=st.sampled_from(["none", "fixed", "linear", "exponential"]),
    delay=st.floats(0, 1000),
    most=st.floats(0, 1000),
    attempt=st.integers(1, 10_000),
    least=st.none() | st.floats(0, 1000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_stays_near_its_bound_and_never_below_what_the_server_asked_for(
    backoff: str, delay: float, most: float, attempt: int, least: float | None, chance: float
) -> None:
    rule = written(delay=delay, max_delay=most, backoff=backoff)
    found = retry_delay(rule, {}, attempt, least, lambda: chance)
    assert found >= (least or 0)
    assert found <= max(most * (1 + JITTER / 2), (least or 0) * (1 + JITTER)) * 1.0001
    if least is None:
        assert found >= min(delay, most) * (1 - JITTER / 2) * 0.9999


def test_rows_that_failed_together_do_not_come_back_together() -> None:
    rule = written(delay=10)
    assert retry_delay(rule, {}, 1, None, lambda: 0.0) < retry_delay(rule, {}, 1, None, lambda: 0.99)
    assert retry_delay(rule, {}, 1, 30, lambda: 0.0) < retry_delay(rule, {}, 1, 30, lambda: 0.99)


def test_retry_after_beats_max_delay() -> None:
    way = one(rule("retry", ERROR, delay=1, max_delay=2), outcomes=[bad("rate_limit", after=30), good(), good()])
    (wait,) = way.waits
    assert wait.seconds >= 30
    assert wait.throttled
    assert wait.error is not None


@pytest.mark.parametrize(("kind", "throttled"), [("rate_limit", True), ("server_error", False)])
def test_only_a_rate_limit_keeps_the_rows_place(kind: str, throttled: bool) -> None:
    way = one(rule("retry", ERROR, delay=1), outcomes=[bad(kind), good(), good()])
    assert [wait.throttled for wait in way.waits] == [throttled]


@pytest.mark.parametrize("delay", ["{{ 'long' }}", "{{ -1 }}", "{{ 'inf' }}", "{{ nothing }}"])
def test_a_delay_that_is_none_fails_the_row(delay: str) -> None:
    way = one(rule("retry", ERROR, delay=delay), outcomes=[bad()])
    assert isinstance(way.end, Failed)
    assert way.end.error.kind == "template"
