"""The events that tools follow: iterations and retries with their ``meta``, who caused what, and no secret in any."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from cases import collection, cursor
from families import calling, child, children_of, looping, playbook
from services import make_settings
from world import World

from noetl_celery.errors import ErrorInfo, LeaseLost, ToolError
from noetl_celery.settings import Settings

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(database: str) -> Settings:
    return make_settings(database, iteration_events=5)


def events(world: World, execution: int, *types: str) -> list[dict[str, Any]]:
    return world.q(
        "SELECT * FROM noetl.event WHERE execution_id = %s AND (event_type = ANY(%s) OR %s) ORDER BY event_id",
        execution,
        list(types),
        not types,
    )


def fail_once(world: World) -> Any:
    """The first attempt of every item fails."""

    def act(given: Mapping[str, Any]) -> None:
        if world.probe.calls.count(given) == 1:
            raise ToolError(ErrorInfo("busy", "come back"))

    return act


RETRY = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": 0.01}}]


def test_a_loop_tells_of_its_beginning_its_iterations_and_its_end(world: World) -> None:
    def act(given: Mapping[str, Any]) -> None:
        if given["item"] == "b":
            raise ToolError(ErrorInfo("odd", "b is odd"))

    world.probe.act = act
    best = {"policy": {"failure": {"mode": "best_effort"}}}
    execution = world.begin(collection("{{ ['a', 'b', 'c'] }}", step=best))
    assert world.run(execution) == "COMPLETED"
    (started,) = events(world, execution, "iterator_started")
    assert started["meta"]["iterator"] == {
        "iterator_name": "item",
        "mode": "parallel",
        "total_count": 3,
        "collection_size": 3,
    }
    assert started["context"]["nested_task"] == {"name": "start", "tool": "probe"}
    done = sorted(events(world, execution, "iteration_completed"), key=lambda e: e["result"]["iteration_index"])
    assert [(event["result"], event["status"]) for event in done] == [
        ({"iteration_index": 0, "status": "success"}, "COMPLETED"),
        ({"iteration_index": 1, "status": "failed"}, "FAILED"),
        ({"iteration_index": 2, "status": "success"}, "COMPLETED"),
    ]
    assert done[1]["meta"]["iterator"] == {
        "parent_execution_id": str(execution),
        "iteration_index": 1,
        "total_iterations": 3,
        "iterator_name": "item",
        "mode": "parallel",
    }
    (ended,) = events(world, execution, "iterator_completed")
    counts = {"total_iterations": 3, "successful": 2, "failed": 1}
    assert ended["result"] == counts
    assert ended["meta"]["iterator"] == {"iterator_name": "item", "mode": "parallel", **counts}
    assert {event["parent_event_id"] for event in [*done, ended]} == {started["event_id"]}


@pytest.mark.parametrize(("items", "told"), [(5, 5), (6, 0)])
def test_a_long_loop_tells_of_no_single_iteration(world: World, items: int, told: int) -> None:
    execution = world.begin(collection(f"{{{{ range({items}) | list }}}}"))
    assert world.run(execution) == "COMPLETED"
    assert len(events(world, execution, "iteration_completed")) == told
    assert len(events(world, execution, "iterator_started", "iterator_completed")) == 2


def test_an_empty_loop_begins_and_ends_too(world: World) -> None:
    execution = world.begin(collection("{{ [] }}"))
    assert world.run(execution) == "COMPLETED"
    (ended,) = events(world, execution, "iterator_completed")
    assert ended["result"] == {"total_iterations": 0, "successful": 0, "failed": 0}
    assert [event["event_id"] for event in events(world, execution, "iterator_started")] == [ended["parent_event_id"]]


def test_a_retry_tells_its_attempt_and_when_it_will_be(world: World) -> None:
    world.probe.act = fail_once(world)
    execution = world.begin(collection("{{ ['a'] }}", policy={"rules": RETRY}))
    assert world.run(execution) == "COMPLETED"
    (event,) = events(world, execution, "task.retry")
    assert event["result"]["row"] == 0
    assert event["result"]["task"] == "start"
    assert event["result"]["error"]["kind"] == "busy"
    assert event["meta"]["error"] == {"message": "come back"}
    meta = event["meta"]["retry"]
    assert (meta["type"], meta["attempt_number"], meta["max_attempts"]) == ("on_error", 2, 3)
    assert 0 <= meta["backoff_seconds"] <= 0.02
    assert meta["scheduled_at"].endswith("+00:00")
    (entered,) = events(world, execution, "step.enter")
    assert event["parent_event_id"] == entered["event_id"]


def test_the_retries_of_a_cursors_rows_are_told_together(here: World) -> None:
    here.probe.act = fail_once(here)
    execution = here.begin(cursor(frame="max_rows: 7, row_concurrency: 7", policy={"rules": RETRY}))
    assert here.run(execution) == "COMPLETED"
    told = events(here, execution, "task.retry")
    assert sum(event["result"]["count"] for event in told) == 7
    assert {row["row"] for event in told for row in event["result"]["rows"]} == set(range(7))
    assert len(told) <= 3
    assert not events(here, execution, "iterator_started", "iteration_completed", "iterator_completed")


OLDER = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: older, path: test/older}
workload: {word: x}
workflow:
  - step: fetch
    tool: probe
    args: {page: 1}
    retry:
      - when: "{{ error.kind == 'busy' }}"
        then: {max_attempts: 3, backoff: fixed, initial_delay: 0.01}
      - when: "{{ response.more }}"
        then:
          max_attempts: 5
          next_call: {args: {page: "{{ response.page + 1 }}"}}
          collect: {strategy: append, path: rows}
    next: [{step: end}]
  - step: end
"""


def test_older_forms_are_told_by_their_own_names(world: World) -> None:
    def act(given: Mapping[str, Any]) -> Any:
        if len(world.probe.calls) == 1:
            raise ToolError(ErrorInfo("busy", "come back"))
        page = int(given.get("page", 1))
        return {"page": page, "more": page < 3, "rows": [page]}

    world.probe.act = act
    execution = world.begin(OLDER)
    assert world.run(execution) == "COMPLETED"
    (waited,) = events(world, execution, "retry_scheduled")
    assert waited["meta"]["retry"]["type"] == "on_error"
    (ended,) = events(world, execution, "retry_sequence_completed")
    assert ended["meta"]["retry"]["type"] == "on_success"
    assert ended["result"]["total_attempts"] == ended["meta"]["retry"]["attempt_number"]
    assert ended["result"]["task"] == "fetch"


def test_every_event_says_whose_child_it_is_and_what_kind_of_step(world: World) -> None:
    world.register(child())
    parent = world.begin(looping("{{ [1, 2] }}"))
    assert world.run(parent) == "COMPLETED"
    for number in children_of(world, parent):
        told = events(world, number)
        assert {event["parent_execution_id"] for event in told} == {parent}
        assert {event["node_type"] for event in told if event["node_name"]} == {"probe"}
    told = events(world, parent)
    assert {event["parent_execution_id"] for event in told} == {None}
    called = [event for event in told if event["event_type"] == "playbook.called"]
    assert {event["result"]["execution_id"] for event in called} == {str(n) for n in children_of(world, parent)}
    kinds = {event["event_type"]: event["node_type"] for event in told}
    assert kinds["playbook.started"] == "playbook"
    assert kinds["step.enter"] == kinds["loop.done"] == "loop"


STEPS = """
  - step: router
    next: [pipe]
  - step: pipe
    tool:
      - {name: one, kind: noop}
      - {name: two, kind: noop}
    next: []
"""


def test_steps_end_with_how_long_they_took_and_what_they_were(world: World) -> None:
    execution = world.begin(playbook("test/steps", STEPS))
    assert world.run(execution) == "COMPLETED"
    exits = {event["node_name"]: event for event in events(world, execution, "step.exit")}
    enters = {event["node_name"]: event for event in events(world, execution, "step.enter")}
    assert {name: event["node_type"] for name, event in exits.items()} == {"router": "router", "pipe": "pipeline"}
    for name, event in exits.items():
        assert event["duration"] >= 0
        assert event["parent_event_id"] == enters[name]["event_id"]


def test_no_context_holds_what_sounds_like_a_secret(world: World) -> None:
    given = {
        "password": "hidden-1",
        "nested": {"api_key": "hidden-2", "list": [{"Authorization": "hidden-3", "kept": "shown"}]},
        "_private": "hidden-4",
    }
    execution = world.begin(calling("test/one", path="test/child"), **given)
    world.register(child())
    world.run(execution)
    (started,) = events(world, execution, "playbook.started")
    assert started["context"] == {"workload": {"nested": {"list": [{"kept": "shown"}]}}}
    everything = json.dumps(events(world, execution), default=str)
    assert "hidden" not in everything


def test_a_result_is_summed_up_and_a_long_value_is_cut(world: World) -> None:
    world.probe.act = lambda given: {"x": "y" * 50_000}
    execution = world.begin(collection("{{ [1] }}"), long="z" * 20_000)
    assert world.run(execution) == "COMPLETED"
    (ended,) = events(world, execution, "step.exit")
    assert ended["context"] == {
        "_step_results": {"start": {"has_data": True, "status": "completed", "data_type": "dict"}}
    }
    (started,) = events(world, execution, "playbook.started")
    assert started["context"]["workload"]["long"] == {"_truncated": True, "_size": 20_000}
    assert world.value("SELECT max(octet_length(e::text)) FROM noetl.event e") < 12_000


def test_a_lane_that_lost_its_lease_tells_nothing(world: World) -> None:
    """Its rows retried and ended, but that is another run's to tell."""
    fails, lock, before = fail_once(world), threading.Lock(), dict[str, Any]()

    def act(given: Any) -> Any:
        with lock:
            if not before:
                world.q("DELETE FROM noetl.run")
                world.q("UPDATE noetl.row SET status = 'READY', taken_by = NULL")
                before.update(world.everything())
        return fails(given)

    world.probe.act = act
    execution = world.begin(collection("{{ ['a', 'b'] }}", policy={"rules": RETRY}))
    frame = world.one_frame(execution)
    lane = world.taken_lane(frame)
    assert lane is not None

    with pytest.raises(LeaseLost):
        lane.work()
    assert lane.held.give_up([], lane.notes.told(lane.outcomes), 0) == []
    lane.close()
    assert len(world.probe.calls) >= 3
    assert world.everything() == before
