"""Children that are not waited for any more: a timeout, a cancelled caller, a loop that stops."""

from __future__ import annotations

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
from world import World, in_thread, wait_for, withdraw_stop

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.settings import BODY_QUEUE
from noetl_celery.store import signals

pytestmark = pytest.mark.integration

#: a child that never ends by itself: its one row waits for a retry that is far away
ENDLESS = playbook(
    "test/child",
    """
  - step: work
    tool:
      kind: probe
      input: {n: "{{ workload.n | default(0) }}"}
      spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 9, delay: 3600}}]}}
""",
)


def fail(given: object) -> object:
    raise ToolError(ErrorInfo("odd", "it did not work"))


def tell(world: World, execution: int, signal: str) -> None:
    world.do(signals.add, execution, signal, republish_seconds=0.05)
    world.publisher.orchestrate(execution)


def test_a_child_that_takes_too_long_is_cancelled(world: World) -> None:
    world.probe.act = fail
    world.register(ENDLESS)
    parent = world.begin(calling(timeout=0.3))
    assert world.settle(parent) == "FAILED"
    started = children_of(world, parent)[0]
    error = error_of(world, parent)
    assert error["kind"] == "timeout"
    assert error["message"] == f"playbook 'test/child' took longer than 0.3 s (execution {started})"
    assert world.settle(started) == "CANCELLED"
    nothing_left(world)


def test_after_a_timeout_a_rule_may_call_again(world: World) -> None:
    world.probe.act = lambda given: fail(given) if len(world.probe.calls) == 1 else "quick"
    world.register(ENDLESS)
    rules = [{"when": "{{ output.error.kind == 'timeout' }}", "then": {"do": "retry", "attempts": 2, "delay": 0}}]
    parent = world.begin(calling(timeout=0.3, spec={"policy": {"rules": rules}}))
    assert world.settle(parent) == "COMPLETED"
    first, second = children_of(world, parent)
    assert world.settle(first) == "CANCELLED"
    assert world.status(second) == "COMPLETED"
    nothing_left(world)


def test_a_child_that_ends_in_time_leaves_no_timer(world: World) -> None:
    world.register(child())
    parent = world.begin(calling(timeout=3600))
    assert world.run(parent) == "COMPLETED"
    nothing_left(world)


def test_cancel_reaches_children_and_grandchildren(world: World) -> None:
    world.probe.act = fail
    world.register(ENDLESS.replace("test/child", "test/grandchild"))
    world.register(looping("{{ [1, 2] }}", path="test/grandchild").replace("test/parent", "test/child"))
    parent = world.begin(calling())
    world.run(parent)
    assert statuses(world) == ["RUNNING"] * 4
    tell(world, parent, "cancel")
    world.orchestrate(parent)
    assert world.status(parent) == "CANCELLING", "it ends after its children"
    assert world.run(parent) == "CANCELLED", "without a sweep"
    assert statuses(world) == ["CANCELLED"] * 4
    ends = world.column("SELECT finished_at FROM noetl.execution ORDER BY execution_id")
    assert ends[0] >= ends[1] >= max(ends[2:])
    nothing_left(world)


def test_cancel_reaches_a_child_that_has_not_begun_and_one_that_is_paused(world: World) -> None:
    world.probe.act = fail
    world.register(ENDLESS)
    parent = world.begin(looping("{{ [1, 2] }}"))
    hold(world, parent)
    first, second = children_of(world, parent)
    tell(world, first, "pause")
    run_alone(world, first)
    assert [world.status(first), world.status(second)] == ["PAUSED", "PENDING"]
    tell(world, parent, "cancel")
    run_alone(world, parent)
    assert world.settle(parent) == "CANCELLED"
    assert statuses(world) == ["CANCELLED"] * 3
    assert len(world.probe.calls) == 0
    nothing_left(world)


def test_a_caller_that_is_cancelled_tries_no_new_child(world: World) -> None:
    """The policy would; the stage starts nothing more."""
    world.probe.act = fail
    world.register(ENDLESS)
    rules = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 5, "delay": 0}}]
    parent = world.begin(looping("{{ [1, 2, 3] }}", policy={"rules": rules}))
    world.run(parent)
    tell(world, parent, "cancel")
    assert world.settle(parent) == "CANCELLED"
    assert len(children_of(world, parent)) == 3
    nothing_left(world)


def test_the_timeout_of_a_step_ends_its_children(world: World) -> None:
    world.probe.act = fail
    world.register(ENDLESS)
    parent = world.begin(looping("{{ [1, 2] }}", step="{timeout: 0.2}"))
    assert world.settle(parent) == "FAILED"
    assert error_of(world, parent)["kind"] == "timeout"
    assert [world.status(number) for number in children_of(world, parent)] == ["CANCELLED", "CANCELLED"]
    nothing_left(world)


def test_after_a_failure_children_at_work_end_and_no_new_one_starts(world: World) -> None:
    world.probe.act = lambda given: fail(given) if given["n"] == 1 else given["n"]
    world.register(child())
    parent = world.begin(looping("{{ range(8) | list }}", spec="mode: parallel, max_in_flight: 3"))
    hold(world, parent)
    started = [child_of(world, parent, row) for row in range(3)]
    run_alone(world, started[1], parent)
    frame = world.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", parent)
    assert world.rows(frame) == ["PARKED", "FAILED", "PARKED", *["SKIPPED"] * 5]
    assert world.run(parent) == "FAILED"
    assert world.rows(frame) == ["OK", "FAILED", "OK", *["SKIPPED"] * 5]
    assert [world.status(number) for number in started] == ["COMPLETED", "FAILED", "COMPLETED"]
    nothing_left(world)


def test_several_children_that_end_at_once_in_a_loop_that_stops(world: World) -> None:
    """Their rows all wake, and a lane that fails with the first of them gives the others back."""
    world.probe.act = fail
    world.register(child())
    parent = world.begin(looping("{{ range(8) | list }}", spec="mode: parallel, max_in_flight: 4"))
    hold(world, parent)
    run_alone(world, *children_of(world, parent))
    frame = world.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", parent)
    assert world.rows(frame)[:4] == ["READY"] * 4
    assert world.run(parent) == "FAILED"
    assert world.rows(frame) == [*["FAILED"] * 4, *["SKIPPED"] * 4]
    nothing_left(world)


def test_a_lane_that_hands_over_in_a_loop_that_stops_forgets_no_row(world: World) -> None:
    """Rows whose children have ended are given back by a node that stops, and taken up by the next lane."""
    from noetl_celery.runtime import process

    world.register(child())
    parent = world.begin(looping("{{ range(4) | list }}"))
    hold(world, parent)
    run_alone(world, *children_of(world, parent))
    frame = world.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", parent)
    tell(world, parent, "cancel")
    world.orchestrate(parent)
    world.publisher.sent.clear()
    process.announce_stop(60)
    world.lane(frame)
    assert world.rows(frame) == ["READY"] * 4
    assert world.publisher.lanes() == [(frame, 0)]
    withdraw_stop()
    assert world.run(parent) == "CANCELLED"
    assert world.rows(frame) == ["OK"] * 4
    nothing_left(world)


def test_a_stage_that_stops_between_decision_and_start_starts_no_child(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noetl_celery.store import children

    truly = children.start

    def start(*args: Any, **kwargs: Any) -> bool:
        tell(world, parent, "cancel")
        world.orchestrate(parent)
        return truly(*args, **kwargs)

    world.register(child())
    parent = world.begin(calling())
    monkeypatch.setattr(children, "start", start)
    world.lane(world.one_frame(parent))
    assert children_of(world, parent) == []
    assert world.rows(world.one_frame(parent)) == ["SKIPPED"]
    assert world.settle(parent) == "CANCELLED"
    nothing_left(world)


def test_whoever_stops_a_stage_waits_for_a_child_that_is_being_started(world: World) -> None:
    """Else it would not see it, and nobody would tell it to end."""
    from noetl_celery.ids import new_id
    from noetl_celery.store import children, rows

    world.register(child())
    parent = world.begin(calling())
    frame = world.one_frame(parent)
    stage = world.value("SELECT stage_id FROM noetl.stage")
    world.q(
        "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lane, lease_seconds, lease_until, "
        "heartbeat_seconds) VALUES (5, 1, %s, %s, 0, 60, now() + interval '1 hour', 60)",
        parent,
        frame,
    )
    world.do(rows.take, frame, 5, 0, floor=0, limit=1, suspects=True)
    catalog_id = world.value("SELECT min(catalog_id) FROM noetl.catalog")
    new = children.NewChild(new_id(), catalog_id, "test/child", {}, {}, 1, None, BODY_QUEUE)
    place = children.Place(parent, stage, "call", frame, 5, 0)
    tell(world, parent, "cancel")
    with world.process.db.begin() as connection:
        assert children.start(connection, place, new, {"child": new.execution_id}, retries=0, republish_seconds=1)
        with in_thread(world.orchestrate, parent):
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            wait_for(lambda: world.value(waiting), "the decision waits for the frame")
            connection.commit()
    world.q("DELETE FROM noetl.run")
    assert world.settle(parent) == "CANCELLED"
    assert world.status(new.execution_id) == "CANCELLED"
    nothing_left(world)


def test_a_crash_over_a_row_whose_child_has_ended(world: World) -> None:
    """The row looks at the same child again, in a loop that goes on and in one that stops."""
    world.register(child())
    parent = world.begin(looping("{{ range(2) | list }}"))
    hold(world, parent)
    run_alone(world, *children_of(world, parent))
    frame = world.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", parent)
    tell(world, parent, "cancel")
    world.orchestrate(parent)

    dead = world.another_process()
    lane = world.taken_lane(frame, 0, dead)
    assert lane is not None
    lane.close()
    dead.close()
    assert world.rows(frame) == ["TAKEN", "TAKEN"]
    world.q("UPDATE noetl.run SET lease_until = clock_timestamp()")
    assert world.settle(parent) == "CANCELLED"
    assert world.rows(frame) == ["OK", "OK"]
    assert len(children_of(world, parent)) == 2
    nothing_left(world)
