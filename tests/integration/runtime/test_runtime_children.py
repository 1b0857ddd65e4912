"""Child playbooks: started with the row that waits for them, woken by their end, ended with their caller."""

from __future__ import annotations

import time
from typing import Any

import pytest
from families import (
    calling,
    child,
    child_of,
    children_of,
    error_of,
    hold,
    looping,
    nothing_left,
    playbook,
    run_alone,
    statuses,
)
from services import make_settings
from tickets import Arm
from world import World

from noetl_celery import faults
from noetl_celery.errors import ErrorInfo, ToolError, Unreachable

pytestmark = pytest.mark.integration


def fail(given: object) -> object:
    raise ToolError(ErrorInfo("odd", "it did not work"))


def result(world: World, execution: int, step: str = "call") -> Any:
    return world.steps(execution)[step]["result"]


def test_a_child_is_started_with_the_row_that_waits_for_it(world: World) -> None:
    world.register(child())
    parent = world.begin(calling(input={"n": 7}))
    started = hold(world, parent)
    row = world.q("SELECT status, waits_for, taken_by FROM noetl.row")[0]
    assert row == {"status": "PARKED", "waits_for": started, "taken_by": None}
    assert world.status(started) == "PENDING"
    assert world.value("SELECT type FROM noetl.signal WHERE execution_id = %s", started) == "start"
    assert started in world.publisher.sent
    assert world.q("SELECT * FROM noetl.run") == [], "no slot waits"


def test_its_end_wakes_the_row_and_its_result_is_the_rows(world: World) -> None:
    world.probe.act = lambda given: {"doubled": given["n"] * 2}
    world.register(child())
    parent = world.begin(calling(input={"n": 7}))
    assert world.run(parent) == "COMPLETED", "without a sweep"
    assert result(world, parent) == {"doubled": 14}
    assert "playbook.called" in world.events(parent)
    nothing_left(world)


def test_a_process_that_dies_before_it_announces_the_child(world: World, crash_at: Arm) -> None:
    world.register(child())
    parent = world.begin(calling())
    crash_at("lane.child_started")
    with pytest.raises(faults.FaultInjected):
        world.lane(world.one_frame(parent))
    world.publisher.sent.clear()
    world.q("UPDATE noetl.signal SET publish_at = clock_timestamp()")
    assert world.settle(parent) == "COMPLETED"
    assert len(children_of(world, parent)) == 1
    assert len(world.probe.calls) == 1


def test_a_lost_reply_to_the_commit_starts_one_child(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is run twice: the second time the row is not ours any more."""
    from noetl_celery.store import children

    truly, seen = children.start, []

    def start(connection: Any, *args: Any, **kwargs: Any) -> bool:
        done = truly(connection, *args, **kwargs)
        seen.append(done)
        if len(seen) == 1:
            connection.commit()
            raise Unreachable("closed")
        return done

    monkeypatch.setattr(children, "start", start)
    world.register(child())
    parent = world.begin(calling())
    world.run(parent)
    world.q("UPDATE noetl.signal SET publish_at = clock_timestamp()")
    assert world.settle(parent) == "COMPLETED"
    assert len(children_of(world, parent)) == 1
    nothing_left(world)


STEPS = """
  - step: first
    tool: {kind: noop, result: one}
    next: [second]
  - step: second
    tool: {kind: noop, result: two}
    next: []
  - step: never
    tool: {kind: noop, result: three}
    next: []
"""


@pytest.mark.parametrize(
    ("step", "expected"),
    [(None, "two"), ("first", "one"), ("never", "two"), ("nowhere", "two"), ("{{ 'first' }}", "one")],
)
def test_return_step_or_the_last_result(world: World, step: str | None, expected: str) -> None:
    world.register(playbook("test/child", STEPS))
    parent = world.begin(calling(**({"return_step": step} if step else {})))
    assert world.run(parent) == "COMPLETED"
    assert result(world, parent) == expected


def test_a_child_without_a_result(world: World) -> None:
    world.register(playbook("test/child", "  - step: nothing\n    next: []\n"))
    parent = world.begin(calling())
    assert world.run(parent) == "COMPLETED"
    assert result(world, parent) is None


def test_a_failed_child_is_an_error_that_says_where(world: World) -> None:
    world.probe.act = fail
    world.register(child())
    parent = world.begin(calling())
    assert world.run(parent) == "FAILED"
    started = children_of(world, parent)[0]
    error = error_of(world, parent)
    assert error["kind"] == "playbook"
    assert error["message"] == f"playbook 'test/child' (execution {started}) FAILED in step 'work': it did not work"
    nothing_left(world)


def test_a_rule_may_try_a_new_child(world: World) -> None:
    def second_time(given: object) -> object:
        return fail(given) if len(world.probe.calls) == 1 else "done"

    world.probe.act = second_time
    world.register(child())
    rules = [{"when": "{{ output.error.kind == 'playbook' }}", "then": {"do": "retry", "attempts": 3}}]
    parent = world.begin(calling(spec={"policy": {"rules": rules}}))
    assert world.run(parent) == "COMPLETED"
    assert result(world, parent) == "done"
    assert statuses(world) == ["COMPLETED", "FAILED", "COMPLETED"]


def test_a_rule_may_go_on_without_it(world: World) -> None:
    world.probe.act = fail
    world.register(child())
    rules = [{"else": {"then": {"do": "continue", "set": {"ctx.why": "{{ output.error.kind }}"}}}}]
    parent = world.begin(calling(spec={"policy": {"rules": rules}}))
    assert world.run(parent) == "COMPLETED"
    assert world.value("SELECT ctx ->> 'why' FROM noetl.execution WHERE execution_id = %s", parent) == "playbook"


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        ({"path": "test/chidl"}, "not_found", "no playbook 'test/chidl' is registered; did you mean 'test/child'?"),
        ({"version": 9}, "not_found", "no playbook version 9 of playbook 'test/child' is registered"),
    ],
)
def test_what_cannot_be_called(world: World, call: dict[str, Any], kind: str, said: str) -> None:
    world.register(child())
    parent = world.begin(calling(**call))
    assert world.run(parent) == "FAILED"
    error = error_of(world, parent)
    assert (error["kind"], error["message"]) == (kind, said)
    assert children_of(world, parent) == []


def test_a_playbook_that_calls_itself_comes_to_an_end(world: World) -> None:
    world.process.settings = make_settings(world.settings.libpq_url, child_depth=3)
    parent = world.begin(calling("test/circle", path="test/circle"))
    assert world.run(parent) == "FAILED"
    assert statuses(world) == ["FAILED"] * 4
    assert world.column("SELECT depth FROM noetl.execution ORDER BY execution_id") == [0, 1, 2, 3]
    assert "does one of them call itself?" in error_of(world, parent)["message"]


def test_input_is_merged_deeply_over_the_childs_workload(world: World) -> None:
    world.register(
        playbook(
            "test/child",
            "  - step: work\n    tool: {kind: probe, input: {all: '{{ workload }}'}}\n",
            "{a: {x: 1, y: 2}, b: [1, 2], c: kept}",
        )
    )
    parent = world.begin(calling(input={"a": {"y": 3}, "b": [9], "new": "{{ 40 + 2 }}"}))
    assert world.run(parent) == "COMPLETED"
    assert world.probe.calls == [{"all": {"a": {"x": 1, "y": 3}, "b": [9], "c": "kept", "new": 42}}]


def test_a_version_is_called_by_number_and_the_latest_without(world: World) -> None:
    for number in (1, 2):
        world.register(playbook("test/child", f"  - step: say\n    tool: {{kind: noop, result: version {number}}}\n"))
    said: list[Any] = []
    for version in ({}, {"version": 1}, {"version": "{{ 2 }}"}):
        parent = world.begin(calling(f"test/parent{len(said)}", **version))
        assert world.run(parent) == "COMPLETED"
        said.append(result(world, parent))
    assert said == ["version 2", "version 1", "version 2"]


def test_a_row_that_is_woken_for_nothing_waits_again(world: World) -> None:
    world.register(child())
    parent = world.begin(calling())
    started = hold(world, parent)
    world.publisher.sent.clear()
    world.q("INSERT INTO noetl.wakeup (frame_id, row_index, due_at) SELECT frame_id, 0, now() FROM noetl.row")
    world.sweep()
    while world.deliver():
        pass
    assert world.q("SELECT status, waits_for FROM noetl.row") == [{"status": "PARKED", "waits_for": started}]
    assert world.value("SELECT due_at > clock_timestamp() FROM noetl.wakeup")
    assert world.run(parent) == "RUNNING"
    world.orchestrate(started)
    assert world.settle(parent) == "COMPLETED"
    assert len(children_of(world, parent)) == 1
    nothing_left(world)


# loops


def test_a_loop_keeps_the_order_of_its_items(world: World) -> None:
    world.probe.act = lambda given: given["n"] * 10
    world.register(child())
    parent = world.begin(looping("{{ [3, 1, 2] }}"))
    assert world.run(parent) == "COMPLETED"
    assert result(world, parent)["results"] == [30, 10, 20]
    nothing_left(world)


def test_a_sequence_starts_a_child_when_the_one_before_has_ended(world: World) -> None:
    world.register(child())
    parent = world.begin(looping("{{ range(5) | list }}", spec="mode: sequential"))
    assert world.run(parent) == "COMPLETED"
    assert [call["n"] for call in world.probe.calls] == [0, 1, 2, 3, 4]
    overlap = """
        SELECT count(*) FROM noetl.execution a JOIN noetl.execution b
        ON a.execution_id < b.execution_id AND a.finished_at > b.created_at
        WHERE a.parent_execution_id IS NOT NULL AND b.parent_execution_id IS NOT NULL
    """
    assert world.value(overlap) == 0


def test_max_in_flight_bounds_the_children_alive_at_once(world: World) -> None:
    world.register(child())
    parent = world.begin(looping("{{ range(20) | list }}", spec="mode: parallel, max_in_flight: 3"))
    most = 0
    while world.deliver():
        alive = world.value(
            "SELECT count(*) FROM noetl.execution WHERE parent_execution_id IS NOT NULL AND finished_at IS NULL"
        )
        most = max(most, alive)
    assert world.status(parent) == "COMPLETED"
    assert most == 3
    assert len(world.probe.calls) == 20
    nothing_left(world)


def test_a_lane_holds_no_slot_while_all_its_places_wait_for_children(database: str) -> None:
    """Rows that it took ahead go back. It would otherwise keep them, and its slot, until its time is up."""
    world = World(make_settings(database, lane_seconds=60))
    try:
        world.register(child())
        parent = world.begin(looping("{{ range(40) | list }}", spec="mode: parallel, max_in_flight: 3"))
        while world.status(parent) == "RUNNING":
            before = time.monotonic()
            assert world.deliver()
            assert time.monotonic() - before < world.settings.lane_seconds / 2
        assert world.status(parent) == "COMPLETED"
    finally:
        world.close()


def test_rows_that_woke_come_before_rows_that_never_began(world: World) -> None:
    """Else the first children's results would wait until the last item has begun."""
    world.register(child())
    parent = world.begin(looping("{{ range(12) | list }}", spec="mode: parallel, max_in_flight: 4"))
    hold(world, parent)
    assert len(children_of(world, parent)) == 4
    run_alone(world, child_of(world, parent, 2), child_of(world, parent, 0))
    frame = world.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", parent)
    assert world.rows(frame)[:4] == ["READY", "PARKED", "READY", "PARKED"]
    world.lane(frame)
    assert world.rows(frame)[:7] == ["OK", "PARKED", "OK", "PARKED", "PARKED", "PARKED", "READY"]


# what its caller was


NAMES = """
  - step: first
    tool: {kind: noop, result: "{{ iter.parent.item }}"}
    next:
      arcs:
        - {step: rows, when: "{{ iter.parent.item == 'b' }}"}
        - {step: other}
  - step: rows
    loop: {in: "{{ [1, 2] }}", iterator: number, spec: {mode: sequential}}
    tool: {kind: playbook, path: test/grandchild}
    next: []
  - step: other
    tool: {kind: noop, result: "{{ iter.parent.index }} {{ iter.parent.parent is defined }}"}
    next: []
"""
GRANDCHILD = """
  - step: say
    tool: {kind: noop, result: "{{ iter.parent.parent.item }}{{ iter.parent.number }}"}
"""


def test_a_child_sees_its_callers_row_in_steps_arcs_and_rows(world: World) -> None:
    world.register(playbook("test/grandchild", GRANDCHILD))
    world.register(playbook("test/child", NAMES))
    parent = world.begin(looping("{{ ['a', 'b'] }}", spec="mode: sequential"))
    assert world.run(parent) == "COMPLETED"
    first, second = result(world, parent)["results"]
    assert first == "0 False"
    assert second["results"] == ["b1", "b2"]


def test_a_single_step_that_calls_has_no_row_to_name(world: World) -> None:
    world.register(
        playbook("test/child", "  - step: say\n    tool: {kind: noop, result: '{{ iter.parent.item | default(0) }}'}\n")
    )
    parent = world.begin(calling())
    assert world.run(parent) == "COMPLETED"
    assert result(world, parent) == 0
