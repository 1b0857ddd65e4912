"""Random playbooks under random schedules, in the simulated world: what must hold whatever happens.

Most of what is asserted stands in ``engine_checks`` and is looked at all the time; the tests differ in what they let
happen, and say what must have come of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_playbooks import Case, cases, compiled, simulated, task
from engine_sources import SourceSpec
from hypothesis import given
from hypothesis import strategies as st
from simulator import Chaos, World

SEEDS = st.integers(0, 2**16)
HARSH = st.builds(
    Chaos,
    lost=st.sampled_from([0.0, 0.2, 0.5]),
    doubled=st.sampled_from([0.0, 0.3]),
    crashes=st.integers(0, 4),
    slow=st.integers(0, 3),
    stale=st.sampled_from([0.0, 0.05]),
    claims_fail=st.sampled_from([0.0, 0.1]),
    elsewhere=st.booleans(),
)
#: messages go astray and a worker dies, but no row is ever given up for it
MILD = st.builds(
    Chaos,
    lost=st.sampled_from([0.0, 0.3]),
    doubled=st.sampled_from([0.0, 0.3]),
    crashes=st.integers(0, 1),
    slow=st.integers(0, 1),
    elsewhere=st.booleans(),
)


@simulated(120)
@given(case=cases(), seed=SEEDS, chaos=HARSH)
def test_whatever_happens_the_execution_ends_and_nothing_is_lost_or_done_twice(
    case: Case, seed: int, chaos: Chaos
) -> None:
    World(case.plan, seed=seed, chaos=chaos, sources=case.sources).run()


@simulated(90)
@given(case=cases(flaws=False, back=False, least=3, most=8), seed=SEEDS, chaos=MILD)
def test_without_cycles_each_step_runs_at_most_once_and_the_schedule_changes_nothing(
    case: Case, seed: int, chaos: Chaos
) -> None:
    world = World(case.plan, seed=seed, chaos=chaos, sources=case.sources).run()
    assert world.status == "COMPLETED"
    assert sorted(world.checks.visits) == sorted(expected_visits(case.workflow))


@simulated(60)
@given(case=cases(), seed=SEEDS, chaos=HARSH, cancel_at=st.integers(1, 150))
def test_a_cancelled_execution_ends_with_nothing_open(case: Case, seed: int, chaos: Chaos, cancel_at: int) -> None:
    world = World(case.plan, seed=seed, chaos=replace(chaos, cancel_at=cancel_at), sources=case.sources).run()
    if "playbook.cancelled" in [event.type for event in world.checks.events]:
        assert world.status == "CANCELLED"


@simulated(50)
@given(case=cases(), seed=SEEDS, chaos=HARSH, pause_at=st.integers(1, 100))
def test_a_paused_execution_starts_nothing_and_goes_on_when_resumed(
    case: Case, seed: int, chaos: Chaos, pause_at: int
) -> None:
    World(case.plan, seed=seed, chaos=replace(chaos, pause_at=pause_at), sources=case.sources).run()


@simulated(50)
@given(
    seed=SEEDS,
    chaos=MILD,
    flight=st.integers(1, 4),
    frame=st.none() | st.fixed_dictionaries({"max_rows": st.integers(1, 4), "row_concurrency": st.integers(1, 4)}),
    source=st.builds(SourceSpec, st.integers(0, 12), st.booleans(), st.booleans()),
)
def test_two_loops_side_by_side_drain_their_growing_queues(
    seed: int, chaos: Chaos, flight: int, frame: dict[str, int] | None, source: SourceSpec
) -> None:
    spec = {"max_in_flight": flight} | ({"frame": frame} if frame else {})
    loop = {"cursor": {"kind": "queue", "claim": "take"}, "iterator": "row", "spec": spec}
    workflow: list[dict[str, Any]] = [{"step": "fork", "next": {"spec": {"mode": "inclusive"}, "arcs": []}}]
    for name in ("left", "right"):
        workflow[0]["next"]["arcs"].append({"step": name})
        workflow.append({"step": name, "loop": loop, "tool": [task("first", "none")], "next": "join"})
    workflow.append({"step": "join"})
    world = World(compiled(workflow), seed=seed, chaos=chaos, sources={"left": source, "right": source}).run()
    assert sorted(world.checks.visits) == ["fork", "join", "left", "right"]
    assert [event.type for event in world.checks.events].count("loop.done") == 2
    for stage in world.tables.stages.values():
        if stage.opening.kind == "cursor":
            leases = sum(world.source(stage.opening.stage_id).leases.values())
            assert stage.closing is not None
            assert stage.closing.result == {
                "processed": leases, "ok": leases, "failed": 0, "frames": stage.closing.frames, "failures": []
            }  # fmt: skip


def expected_visits(workflow: list[dict[str, Any]]) -> list[str]:
    """The steps that run, in a workflow whose arcs lead to later steps only and whose conditions are constant."""
    reached, visited = {workflow[0]["step"]}, []
    for step in workflow:
        if step["step"] not in reached or "admit" in step.get("spec", {}).get("policy", {}):
            continue
        visited.append(step["step"])
        holds = [arc["step"] for arc in step["next"]["arcs"] if arc.get("when") in (None, "{{ true }}")]
        reached |= set(holds[:1] if step["next"]["spec"]["mode"] == "exclusive" else holds)
    return visited
