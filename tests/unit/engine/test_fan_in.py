"""Where tokens meet: a step that several branches of a fan-out reach runs once, after the last that can reach it."""

from __future__ import annotations

from engine_cases import Told, noop, router

LATER = {"step": "join", "when": "{{ ctx.never is defined }}"}


def test_a_join_waits_for_all_branches() -> None:
    told = Told([noop("fork", ["a", "b"]), noop("a", "join"), noop("b", "join"), noop("join")])
    told.row("fork")
    assert told.open == ["a", "b"]
    told.row("b")
    assert told.open == ["a"]
    told.row("a")
    assert told.open == ["join"]
    told.row("join")
    assert told.visits == ["fork", "a", "b", "join"]
    assert told.state.status == "COMPLETED"


def test_a_join_waits_for_a_longer_branch() -> None:
    told = Told([noop("fork", ["a", "join"]), noop("a", "b"), noop("b", "join"), noop("join")])
    told.row("fork")
    assert told.open == ["a"]
    told.row("a")
    assert told.open == ["b"]
    told.row("b")
    assert told.open == ["join"]


def test_a_join_does_not_wait_for_a_branch_that_cannot_reach_it() -> None:
    told = Told([noop("fork", ["a", "aside"]), noop("aside"), noop("a", "join"), noop("join")])
    told.row("fork")
    told.row("a")
    assert sorted(told.open) == ["aside", "join"]


def test_a_branch_that_ends_elsewhere_lets_the_join_run() -> None:
    told = Told([noop("fork", ["a", "b"]), noop("a", "join"), noop("b", [LATER]), noop("join")])
    told.row("fork")
    told.row("a")
    assert told.open == ["b"]
    told.row("b")
    assert told.open == ["join"]


def test_a_branch_that_is_not_admitted_lets_the_join_run() -> None:
    deny = {"policy": {"admit": {"rules": [{"else": {"then": {"allow": False}}}]}}}
    told = Told([noop("fork", ["a", "b"]), noop("a", "join"), noop("b", "join", spec=deny), noop("join")])
    told.row("fork")
    assert told.open == ["a"]
    told.row("a")
    assert told.open == ["join"]


def test_a_failed_branch_that_is_handled_still_reaches_the_join() -> None:
    rescue = {"step": "join", "when": "{{ event.name == 'step.failed' }}"}
    told = Told([noop("fork", ["a", "b"]), noop("a", [rescue]), noop("b", "join"), noop("join")])
    told.row("fork")
    told.row("b")
    told.row("a", error={"kind": "bad", "message": "no"})
    assert told.open == ["join"]
    told.row("join")
    assert told.state.status == "COMPLETED"


def test_an_inner_fan_out_is_joined_inside_or_outside() -> None:
    told = Told(
        [
            noop("fork", ["a", "b"]),
            noop("a", ["a1", "a2"]),
            noop("b", "join"),
            noop("a1", "inner"),
            noop("a2", "join"),
            noop("inner", "join"),
            noop("join"),
        ]
    )
    for step in ("fork", "b", "a", "a2"):
        told.row(step)
    assert told.open == ["a1"]
    told.row("a1")
    assert told.open == ["inner"]
    told.row("inner")
    assert told.open == ["join"]
    assert told.stage("join").lineage == ()


def test_a_join_before_a_join() -> None:
    told = Told(
        [router("fork", ["a", "b", "c"]), noop("a", "d"), noop("b", "d"), noop("c", "e"), noop("d", "e"), noop("e")]
    )
    for step in ("c", "a"):
        told.row(step)
    assert told.open == ["b"]
    told.row("b")
    assert told.open == ["d"]
    told.row("d")
    assert told.open == ["e"]


def test_two_arcs_to_one_step_enter_it_once_with_the_args_of_both() -> None:
    arcs = {"spec": {"mode": "inclusive"}, "arcs": [{"step": "b", "args": {"x": 1}}, {"step": "b", "args": {"y": 2}}]}
    told = Told([noop("a", arcs), noop("b")])
    told.row("a")
    assert told.open == ["b"]
    assert told.last.openings[0].args == {"x": 1, "y": 2}


def test_a_way_back_is_never_held() -> None:
    # given a circle and, in its first step, another way into a second circle
    told = Told([noop("p", ["q", "t"]), noop("q", "p"), noop("t", "x"), noop("x", "t")])
    told.row("p")
    assert told.open == ["q", "t"]
    told.row("t")
    told.row("q")
    assert told.open == ["x", "p"]
    # when the second one goes round while the first step runs again, from which it is reached: it is not held
    told.row("x")
    assert told.open == ["p", "t"]


def test_a_way_back_is_never_merged() -> None:
    told = Told([noop("p", ["q", "y"]), noop("q", "p"), noop("y", "t"), noop("t", "x"), noop("x", "t")])
    for step in ("p", "y", "t", "q", "p"):
        told.row(step)
    assert sorted(told.open) == ["q", "x", "y"]
    told.row("q")
    told.row("y")
    # a token waits before `t` for what `p` will send there; one that comes back to `t` neither waits nor takes it along
    assert (sorted(told.open), [token.step for token in told.state.waiting]) == (["p", "x"], ["t"])
    told.row("x")
    assert (sorted(told.open), [token.step for token in told.state.waiting]) == (["p", "t"], ["t"])


def test_a_branch_that_goes_back_is_waited_for() -> None:
    # given a fan-out of which one branch repeats a part of itself
    again = {"arcs": [{"step": "a", "when": "{{ ctx.n < 2 }}"}, {"step": "join"}]}
    told = Told(
        [
            noop("fork", ["a", "b"]),
            noop("a", "check"),
            noop("check", again, set={"n": "{{ ctx.n | default(0) + 1 }}"}),
            noop("b", "join"),
            noop("join"),
        ]
    )
    told.row("fork")
    told.row("a")
    # when it goes back it runs at once
    told.row("check")
    assert sorted(told.open) == ["a", "b"]
    # and the join still waits for both
    told.row("b")
    assert told.open == ["a"]
    told.row("a")
    told.row("check")
    assert told.open == ["join"]
    assert told.visits == ["fork", "a", "b", "check", "a", "check", "join"]


def test_a_fan_out_that_is_repeated_joins_each_time() -> None:
    again = {"arcs": [{"step": "fork", "when": "{{ ctx.n < 3 }}"}]}
    told = Told(
        [
            router("fork", ["a", "b"]),
            noop("a", "join"),
            noop("b", "join"),
            noop("join", again, set={"n": "{{ ctx.n | default(0) + 1 }}"}),
        ]
    )
    for _ in range(3):
        for step in ("a", "b", "join"):
            told.row(step)
    assert told.visits == ["fork", "a", "b", "join"] * 3
    assert [opening.visit for decision in told.decisions for opening in decision.openings if opening.step == "a"] == [
        1,
        2,
        3,
    ]
    assert told.state.status == "COMPLETED"


def test_a_merged_token_forgets_the_fan_outs_that_are_joined() -> None:
    told = Told([noop("fork", ["a", "b", "c"]), noop("a", "d"), noop("b", "d"), noop("c"), noop("d", "e"), noop("e")])
    told.row("fork")
    told.row("a")
    told.row("b")
    assert len(told.stage("d").lineage) == 1
    told.row("c")
    told.row("d")
    assert told.stage("e").lineage == ()
