"""The books: they balance after every commit of a lane, and what does not is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from cases import collection
from world import World

from noetl_celery.ids import new_id
from noetl_celery.store import crashes, frames, ledger, outbox, rows, runs
from noetl_celery.store.frames import NewFrame
from noetl_celery.store.rows import RowOutcome

pytestmark = pytest.mark.integration

EXECUTION, STAGE, FRAME = 1, 2, 3
AGAIN = {"republish_seconds": 30.0}


@pytest.fixture
def lane(world: World) -> int:
    """A frame of six rows, of three source rows each; a run on its only lane holds the first four."""
    world.q(
        "INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings) "
        "VALUES (%s, %s, 'drain', 1, 'cursor', 'OPEN', '{}')",
        STAGE,
        EXECUTION,
    )
    world.do(frames.create, NewFrame(FRAME, STAGE, EXECUTION, 0, [*range(6)], 2, 1, weight=3))
    run = begin(world)
    world.do(rows.take, FRAME, run, 0, floor=0, limit=4, suspects=True)
    return run


def begin(world: World) -> int:
    run = new_id()
    world.do(outbox.add_lanes, EXECUTION, STAGE, FRAME, [0], "b", delay_seconds=30.0)
    assert world.do(runs.start_lane, run, 9, FRAME, 0, lease=10.0, heartbeat=5.0)
    return run


def books(world: World, *, recount: bool = False) -> dict[str, Any]:
    of_stage = world.do(ledger.of_stage, STAGE, recount=recount)
    assert [of_stage] == world.do(ledger.of_execution, EXECUTION, recount=recount)
    return {name: value for name, value in of_stage.document().items() if value or name == "differences"}


HEAD = {"stage_id": STAGE, "step": "drain", "visit": 1, "status": "OPEN", "claimed": 18, "differences": ()}


def test_the_books_at_every_turn(world: World, lane: int) -> None:
    assert books(world) == HEAD | {"taken": 12, "ready": 6, "requests": 1, "starts": 1}
    world.do(rows.finish, FRAME, lane, [RowOutcome(0, True), RowOutcome(1, False)], **AGAIN)
    world.do(rows.park, FRAME, lane, 2, {}, seconds=1.0, retries=0, counts=False)
    now = HEAD | {"ok": 3, "failed": 3, "parked": 3, "taken": 3, "ready": 6, "requests": 1, "starts": 1}
    assert books(world) == now
    world.do(outbox.add_lanes, EXECUTION, STAGE, FRAME, [0, 1], "b", delay_seconds=30.0)
    assert books(world) == now | {"requests": 3, "waiting": 2}
    world.do(runs.finish_lane, lane, FRAME)
    again = begin(world)
    world.do(rows.take, FRAME, again, 0, floor=0, limit=1, suspects=True)
    assert books(world) == now | {"requests": 3, "starts": 2, "waiting": 1}
    world.do(frames.stop_stage, STAGE, **AGAIN)
    world.do(rows.finish, FRAME, again, [RowOutcome(3, True)], **AGAIN)
    for recount in (False, True):
        assert books(world, recount=recount) == HEAD | {
            "ok": 6,
            "failed": 3,
            "released": 9,
            "requests": 2,  # the lane that never started is not wanted any more
            "starts": 2,
        }
    assert "ledger.difference" not in world.events(EXECUTION)
    world.q("UPDATE noetl.stage SET status = 'CANCELLED', ok_rows = 6, failed_rows = 2")
    assert books(world)["differences"] == ("the step counted 2 rows failed, its frames 3",)


def test_a_crash_leaves_the_books_balanced(world: World, lane: int) -> None:
    assert runs.begin_rows(world.session, lane, [0, 1])
    world.do(runs.finish, lane)
    world.do(
        crashes.return_rows, {"run_id": lane, "frame_id": FRAME, "lane": 0, "begun": [0, 1]}, max_crashes=3, **AGAIN
    )
    assert books(world) == HEAD | {"ready": 18, "requests": 1, "starts": 1, "reruns": 6}


def test_a_difference_is_told_and_ends_the_frame_all_the_same(
    world: World, lane: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.q("UPDATE noetl.frame SET open_rows = 1, lane_starts = 2")
    with caplog.at_level(logging.ERROR):
        assert world.do(rows.finish, FRAME, lane, [RowOutcome(0, True)], **AGAIN).ended
    assert world.value("SELECT status FROM noetl.frame") == "COMPLETED"
    (event,) = world.q("SELECT * FROM noetl.event WHERE event_type = 'ledger.difference'")
    assert (event["status"], event["node_name"], event["stage_id"], event["frame_id"]) == (
        "ALARM",
        "drain",
        STAGE,
        FRAME,
    )
    problems = ["0 rows open, 5 in the table", "1 lanes asked for, 2 started or waiting"]
    named = [{"row": index, "status": status} for index, status in enumerate(["TAKEN"] * 3 + ["READY"] * 2, 1)]
    assert event["result"] == {"frame_index": 0, "differences": problems, "rows": named}
    assert "0 rows open, 5 in the table" in caplog.text
    assert books(world)["differences"] == ("frame 0: 1 lanes asked for, 2 started or waiting",)
    assert books(world, recount=True)["differences"] == tuple(f"frame 0: {text}" for text in problems)


def test_a_row_that_is_not_there_is_missed(world: World, lane: int) -> None:
    world.q("DELETE FROM noetl.row WHERE row_index = 5")
    (text,) = world.do(ledger.of_stage, STAGE).differences[:1]
    assert text == "frame 0: 6 rows, 5 in the table"


def test_no_more_than_twenty_are_named(world: World) -> None:
    world.q("INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings) "
            "VALUES (2, 1, 'drain', 1, 'cursor', 'OPEN', '{}')")  # fmt: skip
    for index in range(25):
        world.do(frames.create, NewFrame(100 + index, STAGE, EXECUTION, index, [0] * 30, 2, 1))
    world.q("UPDATE noetl.frame SET ok_rows = 1, open_rows = 0")
    assert len(world.do(ledger.of_stage, STAGE).differences) == 20 * 2
    world.do(frames.end, 100, **AGAIN)
    event = world.value("SELECT result FROM noetl.event WHERE event_type = 'ledger.difference'")
    assert len(event["rows"]) == 20


def test_an_execution_without_frames_has_no_books(world: World) -> None:
    assert world.do(ledger.of_execution, 12345) == []
    assert world.do(ledger.of_stage, 12345) is None


def test_the_books_of_a_real_execution(world: World) -> None:
    execution = world.begin(collection("{{ range(50) | list }}", spec="mode: parallel, max_in_flight: 40"))
    assert world.settle(execution) == "COMPLETED"
    (found,) = world.do(ledger.of_execution, execution, recount=True)
    assert (found.claimed, found.ok, found.differences) == (50, 50, ())
    assert found.requests == found.starts >= 1
