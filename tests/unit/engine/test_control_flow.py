"""The control flow, row by row: given a workflow, when this is told, then these steps run and it ends so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_cases import Told, collection, cursor, noop, router

BAD = {"kind": "bad", "message": "it cannot be done", "task": "work"}
When = Callable[[Told], Any]


def ok(step: str, data: Any = None) -> When:
    return lambda told: told.row(step, data)


def fails(step: str) -> When:
    return lambda told: told.row(step, error=BAD)


def frame(step: str, ok: int, failed: int = 0) -> When:
    return lambda told: told.frame(step, ok=ok, failed=failed)


def claims(step: str) -> When:
    return lambda told: told.filled(step)


def drains(step: str) -> When:
    return lambda told: told.empty(step, sole=True)


@dataclass(frozen=True)
class Flow:
    what: str
    given: Sequence[dict[str, Any]]
    when: Sequence[When] = ()
    then: Sequence[str] = field(default=(), kw_only=True)  #: terminal events, in order
    status: str = field(default="COMPLETED", kw_only=True)


ON_FAILURE = {"step": "rescue", "when": "{{ event.name == 'step.failed' }}"}
ON_ERROR = {"step": "rescue", "when": "{{ error.kind == 'bad' }}"}
ON_OUTPUT = {"step": "rescue", "when": "{{ output.status == 'error' }}"}
ON_OUTCOME = {"step": "rescue", "when": "{{ outcome.error.message is defined and outcome.error.message }}"}
ON_RESPONSE = {"step": "rescue", "when": "{{ response is none }}"}
ON_OTHER = {"step": "rescue", "when": "{{ response.n != 1 }}"}
ON_CTX = {"step": "next", "when": "{{ ctx.x is not defined }}"}
BEST_EFFORT = {"policy": {"failure": {"mode": "best_effort"}}}
FAIL_FAST = {"policy": {"failure": {"mode": "fail_fast"}}}
NO_MATCH_FAILS = {"spec": {"on_no_match": "fail"}, "arcs": [{"step": "next", "when": "{{ false }}"}]}
NO_MATCH_QUIET = {"arcs": [{"step": "next", "when": "{{ false }}"}]}
DENIED = {"policy": {"admit": {"rules": [{"when": "{{ ctx.x is defined }}", "then": {"allow": True}}]}}}
DENIED["policy"]["admit"]["rules"].append({"else": {"then": {"allow": False}}})

RESCUE, NEXT = noop("rescue"), noop("next")

FLOWS = [
    Flow("a plain step ends in step.done", [noop("a")], [ok("a")], then=["a:step.done"]),
    Flow("a chain", [noop("a", "next"), NEXT], [ok("a"), ok("next")], then=["a:step.done", "next:step.done"]),
    Flow("a router alone", [router("a")], then=["a:step.done"]),
    Flow(
        "routers in a chain end in one turn",
        [router("a", "b"), router("b", "c"), router("c")],
        then=["a:step.done", "b:step.done", "c:step.done"],
    ),
    Flow("a row that fails in a plain step", [noop("a")], [fails("a")], then=["a:step.failed"], status="FAILED"),
    Flow(
        "best_effort means nothing to a plain step",
        [noop("a", spec=BEST_EFFORT)],
        [fails("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "after a failure an arc without a condition does not match",
        [noop("a", "next"), NEXT],
        [fails("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "after a failure a true condition that does not look at it does not match",
        [noop("a", [ON_CTX]), NEXT],
        [fails("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    *(
        Flow(
            f"a failure is handled by an arc that looks at `{name}`",
            [noop("a", [arc, "next"]), RESCUE, NEXT],
            [fails("a"), ok("rescue")],
            then=["a:step.failed", "rescue:step.done"],
        )
        for name, arc in {
            "event": ON_FAILURE,
            "error": ON_ERROR,
            "output": ON_OUTPUT,
            "outcome": ON_OUTCOME,
            "response": ON_RESPONSE,
        }.items()
    ),
    Flow(
        "an arc about the response of the step",
        [noop("a", [ON_OTHER, {"step": "next", "when": "{{ response.n == 1 }}"}]), RESCUE, NEXT],
        [ok("a", {"n": 1}), ok("next")],
        then=["a:step.done", "next:step.done"],
    ),
    Flow(
        "such an arc does not match after success",
        [noop("a", [ON_FAILURE, "next"]), RESCUE, NEXT],
        [ok("a"), ok("next")],
        then=["a:step.done", "next:step.done"],
    ),
    Flow(
        "one that looks and is false",
        [noop("a", [{"step": "rescue", "when": "{{ error.kind == 'other' }}"}]), RESCUE],
        [fails("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "a failed loop fails by default if it loops over a collection",
        [collection("a", [1, 2]), NEXT],
        [frame("a", ok=1, failed=1)],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "unless it is best_effort",
        [collection("a", [1, 2], "next", spec={}) | {"spec": BEST_EFFORT}, NEXT],
        [frame("a", ok=0, failed=2), ok("next")],
        then=["a:loop.done", "next:step.done"],
    ),
    Flow(
        "an empty collection", [collection("a", [], "next"), NEXT], [ok("next")], then=["a:loop.done", "next:step.done"]
    ),
    Flow(
        "an empty source",
        [cursor("a", "next"), NEXT],
        [drains("a"), ok("next")],
        then=["a:loop.done", "next:step.done"],
    ),
    Flow(
        "a cursor loop ends well even if all rows failed",
        [cursor("a", "next"), NEXT],
        [claims("a"), frame("a", ok=0, failed=5), drains("a"), ok("next")],
        then=["a:loop.done", "next:step.done"],
    ),
    Flow(
        "unless it is fail_fast",
        [cursor("a", "next", spec=FAIL_FAST), NEXT],
        [claims("a"), frame("a", ok=4, failed=1)],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "a claim that fails for good",
        [cursor("a", "next"), NEXT],
        [lambda told: told.claim_failed("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "a loop that fails can be handled",
        [cursor("a", [ON_FAILURE]), RESCUE],
        [lambda told: told.claim_failed("a"), ok("rescue")],
        then=["a:step.failed", "rescue:step.done"],
    ),
    Flow("no arc matches: quiet", [noop("a", NO_MATCH_QUIET), NEXT], [ok("a")], then=["a:step.done"]),
    Flow(
        "no arc matches: fail",
        [noop("a", NO_MATCH_FAILS), NEXT],
        [ok("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "no arcs at all is no failure to match",
        [noop("a", {"spec": {"on_no_match": "fail"}})],
        [ok("a")],
        then=["a:step.done"],
    ),
    Flow(
        "exclusive follows the first arc that holds",
        [
            noop("a", {"arcs": [{"step": "rescue", "when": False}, {"step": "next"}, {"step": "b"}]}),
            RESCUE,
            NEXT,
            noop("b"),
        ],
        [ok("a"), ok("next")],
        then=["a:step.done", "next:step.done"],
    ),
    Flow(
        "inclusive follows all",
        [noop("a", ["b", "next"]), noop("b"), NEXT],
        [ok("a"), ok("next"), ok("b")],
        then=["a:step.done", "next:step.done", "b:step.done"],
    ),
    Flow(
        "a step that is not admitted ends its branch",
        [noop("a", "b"), noop("b", "next", spec=DENIED), NEXT],
        [ok("a")],
        then=["a:step.done"],
    ),
    Flow(
        "the first admission rule that holds decides",
        [noop("a", "b", set={"ctx.x": 1}), noop("b", spec=DENIED)],
        [ok("a"), ok("b")],
        then=["a:step.done", "b:step.done"],
    ),
    Flow(
        "an implicit way to `end`",
        [{"step": "a", "tool": {"kind": "noop"}}, noop("end")],
        [ok("a"), ok("end")],
        then=["a:step.done", "end:step.done"],
    ),
    Flow(
        "a failure lets running stages end, and starts none",
        [noop("a", ["b", "c"]), noop("b", "next"), noop("c"), NEXT],
        [ok("a"), fails("c"), ok("b")],
        then=["a:step.done", "c:step.failed", "b:step.done"],
        status="FAILED",
    ),
    Flow(
        "a loop back makes a new stage",
        [noop("a", {"arcs": [{"step": "a", "when": "{{ ctx.n < 2 }}"}]}, set={"n": "{{ ctx.n | default(0) + 1 }}"})],
        [ok("a"), ok("a")],
        then=["a:step.done", "a:step.done"],
    ),
    Flow(
        "a collection that is none",
        [collection("a", "{{ workload.n }}", "next"), NEXT],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "which can be handled",
        [collection("a", "{{ workload.n }}", [ON_FAILURE]), RESCUE],
        [ok("rescue")],
        then=["a:step.failed", "rescue:step.done"],
    ),
    Flow(
        "a `set` that cannot be rendered",
        [noop("a", set={"x": "{{ nothing }}"})],
        [ok("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "an arc's `when` that cannot be rendered",
        [noop("a", [{"step": "next", "when": "{{ 1 / 0 }}"}]), NEXT],
        [ok("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "an arc's `args` that are no mapping",
        [noop("a", [{"step": "next", "args": "{{ [1] }}"}]), NEXT],
        [ok("a")],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "an admission rule that cannot be rendered",
        [noop("a", spec={"policy": {"admit": {"rules": [{"when": "{{ 1 / 0 }}", "then": {"allow": True}}]}}})],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "a timeout that is no time",
        [noop("a", spec={"timeout": "{{ 'inf' }}"})],
        then=["a:step.failed"],
        status="FAILED",
    ),
    Flow(
        "a bound of a loop that is no number",
        [collection("a", [1], pace={"mode": "parallel", "max_in_flight": "{{ 'many' }}"})],
        then=["a:step.failed"],
        status="FAILED",
    ),
]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.what)
def test_flow(flow: Flow) -> None:
    told = Told(flow.given, workload={"n": 3})
    for tell in flow.when:
        assert told.state.status == "RUNNING"
        tell(told)
    assert told.terminal == list(flow.then)
    assert told.state.status == flow.status
    assert not told.state.stages


def test_the_first_failure_is_the_one_that_is_told() -> None:
    told = Told([noop("a", ["b", "c"]), noop("b"), noop("c")])
    told.row("a")
    told.row("c", error=BAD)
    told.row("b", error={"kind": "later", "message": "too"})
    assert told.state.error == {"kind": "bad", "message": "it cannot be done", "step": "c", "task": "work"}


def test_a_failed_loop_tells_of_its_first_failed_row() -> None:
    told = Told([collection("a", [1, 2, 3])])
    told.facts.failed[told.stage("a").stage_id] = [{"index": 1, "item": 2, "error": BAD}]
    told.frame("a", ok=2, failed=1)
    assert told.state.error == {"kind": "bad", "message": "it cannot be done", "step": "a", "task": "work"}


def test_routers_in_a_circle_without_end_fail_the_execution() -> None:
    told = Told([router("a", "b"), router("b", "a")])
    assert told.state.status == "FAILED"
    assert told.state.error is not None
    assert told.state.error["kind"] == "endless"
    assert told.state.error["step"] in {"a", "b"}
    assert {closing.status for closing in told.last.closings} == {"COMPLETED"}


# -- `set` and the names of a route ------------------------------------------------------------------------------------


def test_set_is_applied_before_the_arcs_on_success_and_on_failure() -> None:
    arcs = {"arcs": [{"step": "next", "when": "{{ ctx.seen == 1 and output.status in ['ok', 'error'] }}"}]}
    for tell in (ok("a"), fails("a")):
        told = Told([noop("a", arcs, set={"ctx.seen": 1}), NEXT])
        tell(told)
        assert told.open == ["next"]
        assert told.decisions[-1].ctx_changed


def test_set_sees_the_envelope_the_step_by_name_and_what_was_set_before() -> None:
    values = {"first": "{{ output.data.n }}", "second": "{{ a.n + ctx.first }}", "third": "{{ result.n }}"}
    told = Told([noop("a", set=values)])
    told.row("a", {"n": 4})
    assert told.state.ctx == {"first": 4, "second": 8, "third": 4}


def test_a_set_that_has_no_json_form_fails_its_step() -> None:
    told = Told([noop("a", set={"x": "{{ namespace(n=1) }}"})])
    told.row("a")
    assert told.terminal == ["a:step.failed"]
    assert told.state.ctx == {}


def test_after_a_failure_its_own_error_is_told_not_that_set_misses_something() -> None:
    told = Told([noop("a", set={"x": "{{ output.data.rows[0] }}"})])
    told.row("a", error=BAD)
    assert told.state.error is not None
    assert told.state.error["kind"] == "bad"


def test_args_and_set_of_an_arc_reach_the_next_step() -> None:
    arc = {"step": "b", "set": {"ctx.from": "a"}, "args": {"n": "{{ output.data }}"}}
    told = Told([noop("a", [arc]), noop("b", set={"ctx.seen": "{{ args.n | default('gone') }}"})])
    told.row("a", 5)
    (opening,) = told.last.openings
    assert (opening.step, opening.args, opening.previous) == ("b", {"n": 5}, "a")
    assert told.state.ctx == {"from": "a"}


def test_what_an_arc_knows_of_a_drained_loop() -> None:
    arcs = {"arcs": [{"step": "next", "when": "{{ event.name == 'loop.done' and __cursor_drained }}"}]}
    told = Told([cursor("a", arcs), NEXT])
    told.empty("a", sole=True)
    assert told.open == ["next"]


def test_a_step_sees_the_results_of_steps_that_ended_in_the_same_turn() -> None:
    told = Told([collection("a", [], "b"), router("b", set={"n": "{{ a.count }}"})])
    assert told.state.ctx == {"n": 0}
