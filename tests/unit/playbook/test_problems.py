"""How many problems are told, how long they may be, and the graph that long playbooks need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from playbook_cases import refused

from noetl_celery.errors import MAX_PROBLEMS
from noetl_celery.playbook import graph

STEPS = "abcdefg"


def test_problems_without_end_are_cut_off_and_said_to_be() -> None:
    found = refused("\n".join(f"- {{step: s{number}, nxt: x}}" for number in range(MAX_PROBLEMS + 50)))
    assert len(found) == MAX_PROBLEMS + 1
    assert f"more problems than the {MAX_PROBLEMS} above" in found[-1]
    assert "unknown key `nxt`" in found[-2]


def test_warnings_without_end_do_not_hide_an_error() -> None:
    steps = "\n".join(f"- {{step: s{number}, tool: noop}}" for number in range(MAX_PROBLEMS + 50))
    [line] = refused(f"- {{step: a, next: s0}}\n{steps}\n- {{step: b, next: nowhere}}")
    assert "correct those first" in line


def test_long_texts_are_cut() -> None:
    long = "x" * 100_000
    for workflow in (
        f"- {{step: a, {long}: 1}}",
        f"- {{step: a, next: {long}}}",
        f"- {{step: a, set: {{x: '{{{{ {long} y }}}}'}}}}",
        f"- {{step: a, next: {{spec: {{mode: {long}}}, arcs: []}}}}",
        f"- {{step: {long}, tool: {{kind: nothing}}}}",
    ):
        assert all(len(line) < 3000 for line in refused(workflow))


@given(st.dictionaries(st.sampled_from(STEPS), st.lists(st.sampled_from(STEPS), max_size=4)))
def test_what_lies_ahead_is_what_is_reached_without_going_back(arcs: dict[str, list[str]]) -> None:
    entry = next(iter(arcs), "a")
    back = graph.back_edges(arcs, entry)
    ahead = {step: [target for target in targets if (step, target) not in back] for step, targets in arcs.items()}
    expected = {step: graph.reached(ahead, step) - {step} for step in arcs}
    assert graph.forward(arcs, back) == expected
