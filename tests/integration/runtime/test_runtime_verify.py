"""An execution is what its events say: decided again and compared; whatever was changed behind its back is found."""

from __future__ import annotations

from typing import Any

import pytest
from cases import collection, cursor, fill, single
from services import credential_of
from world import World

from noetl_celery import faults
from noetl_celery.store.verify import shown
from noetl_celery.tools.base import ToolCall

ROUTES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: case, path: test/case}
workload: {times: 2}
workflow:
  - step: start
    set: {ctx.round: "{{ (ctx.round | default(0)) + 1 }}", ctx.at: "{{ now() }}"}
    tool: {kind: probe, input: {item: "{{ ctx.round | default(0) }}"}}
    next:
      spec: {mode: inclusive}
      arcs:
        - step: start
          when: "{{ ctx.round < workload.times }}"
        - step: left
          when: "{{ ctx.round >= workload.times }}"
          args: {sum: "{{ start }}"}
        - step: right
          when: "{{ ctx.round >= workload.times }}"
  - step: left
    tool: {kind: probe, input: {item: "{{ args.sum }}"}}
    next: {arcs: [{step: end}]}
  - step: right
    loop: {in: "{{ [1, 2, start] }}", iterator: x}
    tool: {kind: probe, input: {item: "{{ iter.x }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: probe, input: {item: "{{ left }}"}}
"""


@pytest.fixture
def drained(world: World) -> int:
    """A cursor loop of two frames that has ended, one of its rows failed."""
    world.credential("src", credential_of(world.settings.database_url))
    fill(world.settings.database_url, 5)

    def act(given: Any) -> Any:
        if given["item"]["id"] == 2:
            raise ValueError("no")
        return given

    world.probe.act = act
    execution = world.begin(cursor())
    assert world.settle(execution) == "COMPLETED"
    return execution


def test_routes_loops_times_and_arguments_come_out_the_same(world: World) -> None:
    world.probe.act = lambda given: (given["item"] or 0) + 1
    execution = world.begin(ROUTES, times=2)
    assert world.settle(execution) == "COMPLETED"
    found = world.verify(execution)
    assert (found.differences, found.notes) == ([], [])
    turns = world.value("SELECT count(*) FROM noetl.event WHERE event_type = 'playbook.decided'")
    assert found.turns == turns > 4


def test_a_cursor_loop(world: World, drained: int) -> None:
    assert world.verify(drained).differences == []


def test_an_execution_at_work(world: World) -> None:
    execution = world.begin(collection("{{ [1, 2, 3] }}"))
    found = world.verify(execution)
    assert (found.turns, found.differences) == (1, [])
    world.probe.act = lambda given: list(shown(world.verify(execution).differences))
    assert world.settle(execution) == "COMPLETED"
    assert world.value("SELECT json_agg(result)::text FROM noetl.row") == "[[], [], []]"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE noetl.execution SET ctx = '{\"a\": 1}'", "ctx of the execution"),
        ("UPDATE noetl.execution SET status = 'FAILED'", "status of the execution"),
        ("UPDATE noetl.stage SET ok_rows = 5, failed_rows = 0", "ok of step start, visit 1"),
        ("UPDATE noetl.stage SET result = '{}'", "result of step start, visit 1"),
        ("DELETE FROM noetl.stage", "step start, visit 1"),
        ("UPDATE noetl.claim SET sole = NOT sole", "claim "),
        ("DELETE FROM noetl.claim", "claim "),
        ("DELETE FROM noetl.event WHERE event_type = 'step.exit'", "number of events step.exit"),
        (
            "INSERT INTO noetl.event (execution_id, event_type) SELECT execution_id, 'playbook.started' "
            "FROM noetl.stage",
            "number of events playbook.started",
        ),
        ("DELETE FROM noetl.row WHERE row_index = 1", "books of step start"),
        ("UPDATE noetl.row SET status = 'OK', error = NULL", "books of step start"),
        ("UPDATE noetl.row SET status = 'READY' WHERE row_index = 0", "books of step start"),
        ("UPDATE noetl.frame SET ok_rows = ok_rows + 1", "books of step start"),
        ("UPDATE noetl.frame SET lane_requests = lane_starts + 1", "books of step start"),
        ("UPDATE noetl.frame SET status = 'RUNNING' WHERE frame_index = 0", "open frames after the end"),
        (
            "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lease_seconds, lease_until, "
            "heartbeat_seconds) SELECT 1, 1, execution_id, frame_id, 1, now(), 1 FROM noetl.frame LIMIT 1",
            "open runs after the end",
        ),
        (
            "INSERT INTO noetl.wakeup (frame_id, row_index, due_at) SELECT frame_id, 0, now() FROM noetl.frame LIMIT 1",
            "planned wake-ups after the end",
        ),
        (
            "DELETE FROM noetl.event WHERE event_id = (SELECT max(event_id) FROM noetl.event "
            "WHERE event_type = 'playbook.decided')",
            "status of the execution",
        ),
    ],
)
def test_what_was_changed_is_named(world: World, drained: int, change: str, told: str) -> None:
    world.q(change)
    found = world.verify(drained)
    assert any(line.startswith(told) for line in shown(found.differences)), list(shown(found.differences))


def test_a_turn_that_is_missing_in_the_middle_is_named(world: World, drained: int) -> None:
    second = "SELECT event_id FROM noetl.event WHERE event_type = 'playbook.decided' ORDER BY event_id OFFSET 1 LIMIT 1"
    world.q(f"DELETE FROM noetl.event WHERE event_id = ({second})")
    (difference, *_) = world.verify(drained).differences
    assert difference.found == "turn 3 follows turn 1"


def test_without_its_first_events_only_the_books_are_compared(world: World, drained: int) -> None:
    world.q("DELETE FROM noetl.event")
    found = world.verify(drained)
    assert (found.turns, found.differences) == (0, [])
    assert "pruned" in found.notes[0]
    world.q("UPDATE noetl.row SET status = 'OK'")
    assert world.verify(drained).differences


def test_an_alarm_names_the_rows_when_a_frame_ends_whose_books_do_not_balance(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def act(given: ToolCall) -> None:
        world.q("UPDATE noetl.frame SET ok_rows = ok_rows + 1")

    world.probe.act = act  # type: ignore[assignment]
    execution = world.begin(single())
    assert world.run(execution) == "COMPLETED"
    (event,) = world.q("SELECT * FROM noetl.event WHERE event_type = 'ledger.difference'")
    assert event["status"] == "ALARM"
    assert "2 rows ok, 1 in the table" in event["result"]["differences"][0]
    assert "the books of frame" in caplog.text


def test_a_crash_between_decision_and_commit_leaves_one_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = world.submit(single())
    monkeypatch.setattr(faults, "_armed", {"orchestrate.before_commit": ("error", 1)})
    monkeypatch.setattr(faults, "_visits", faults.Counter())
    with pytest.raises(faults.FaultInjected):
        world.orchestrate(execution)
    world.orchestrate(execution)
    assert world.settle(execution) == "COMPLETED"
    assert world.verify(execution).turns == 2
