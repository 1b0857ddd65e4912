"""Frames and rows: every write twice, by a run that lost its lease, and while somebody else holds the rows."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import IntegrityError
from world import World, in_thread, wait_for

from noetl_celery.errors import LeaseLost
from noetl_celery.store import claims, frames, outbox, rows, runs
from noetl_celery.store.frames import NewFrame
from noetl_celery.store.rows import RowOutcome

pytestmark = pytest.mark.integration

EXECUTION, STAGE, FRAME, RUN, OTHER, WORKER = 1, 2, 3, 100, 200, 9
AGAIN = {"republish_seconds": 30.0}
#: sessions of this test's database that wait for another one
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def new_frame(count: int = 4, **changes: Any) -> NewFrame:
    values: dict[str, Any] = {"row_concurrency": 2, "lanes": 1, "claim_id": 7, **changes}
    return NewFrame(FRAME, STAGE, EXECUTION, 0, [{"id": n} for n in range(count)], **values)


def make(world: World, count: int = 4, *, run: bool = True, **changes: Any) -> None:
    """A stage with one frame, and a run on its lane 0."""
    world.q(
        "INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings) "
        "VALUES (%s, %s, 'drain', 1, 'cursor', 'OPEN', '{}')",
        STAGE,
        EXECUTION,
    )
    world.do(frames.create, new_frame(count, **changes))
    if run:
        assert start(world)


def start(world: World, run: int = RUN, lane: int = 0) -> bool:
    ask(world, lane)
    return begin(world, run, lane)


def ask(world: World, *lanes: int) -> None:
    world.do(outbox.add_lanes, EXECUTION, STAGE, FRAME, lanes or [0], "b", delay_seconds=30.0)


def begin(world: World, run: int = RUN, lane: int = 0) -> bool:
    return bool(world.do(runs.start_lane, run, WORKER, FRAME, lane, lease=10.0, heartbeat=5.0))


def take(world: World, run: int = RUN, *, limit: int = 10, floor: int = 0, suspects: bool = False) -> list[int]:
    taken = world.do(rows.take, FRAME, run, 0, floor=floor, limit=limit, suspects=suspects)
    return [row.index for row in taken]


def finish(world: World, *indexes: int, run: int = RUN, ok: bool = True) -> rows.FrameEnd:
    outcomes = [RowOutcome(index, ok, error=None if ok else '{"kind": "x"}') for index in indexes]
    end = world.do(rows.finish, FRAME, run, outcomes, **AGAIN)
    assert isinstance(end, rows.FrameEnd)
    return end


def test_a_frame_is_made_with_its_first_lane(world: World) -> None:
    first = frames.FirstLane(RUN, WORKER, 3, 2, lease_seconds=10.0, heartbeat_seconds=5.0)
    asked = frames.Asked("b", 30.0, first)
    with world.process.db.begin() as connection:
        frame = new_frame(row_concurrency=4, lanes=2)
        others = frames.create(connection, frame, asked)
        assert first.taken() == [(n, {"id": n}) for n in range(3)]
    assert [(other.target, other.lanes, other.queue) for other in others] == [(FRAME, (1,), "b")]
    assert world.rows(FRAME) == ["TAKEN"] * 3 + ["READY"]
    assert world.q("SELECT lane, taken_by FROM noetl.row WHERE row_index = 2") == [{"lane": 0, "taken_by": RUN}]
    assert world.column("SELECT begun FROM noetl.run WHERE run_id = %s", RUN) == [[0, 1]]
    assert world.column("SELECT lane FROM noetl.outbox") == [1]
    assert not begin(world, RUN + 1), "nobody asks for the lane"
    assert finish(world, 0, 1, 2) == rows.FrameEnd(False, False)
    assert world.value("SELECT lane_requests - lane_starts FROM noetl.frame") == 1


def frame(world: World) -> dict[str, Any]:
    return world.q("SELECT * FROM noetl.frame WHERE frame_id = %s", FRAME)[0]


def test_creating_a_frame_twice_is_refused_whole(world: World) -> None:
    make(world, run=False)
    before = world.everything()
    with pytest.raises(IntegrityError):
        world.do(frames.create, new_frame(9))
    assert world.everything() == before


def test_an_empty_frame_and_odd_payloads(world: World) -> None:
    payloads: list[Any] = [None, 0, "", [], {"a": None}, "ä\u2028'\"\\", 2**60, False]
    world.do(frames.create, NewFrame(FRAME, STAGE, EXECUTION, 0, payloads, 1, 1))
    world.do(frames.create, NewFrame(FRAME + 1, STAGE, EXECUTION, 1, [], 1, 1))
    stored = world.column("SELECT payload FROM noetl.row WHERE frame_id = %s ORDER BY row_index", FRAME)
    assert stored == payloads
    assert world.rows(FRAME + 1) == []


def test_a_lane_is_started_once_and_twice_by_its_own_run(world: World) -> None:
    make(world, run=False)
    assert not begin(world), "nobody has asked for it"
    assert start(world)
    before = world.everything()
    assert not begin(world)
    assert not begin(world, OTHER)
    assert world.everything() == before
    assert start(world, OTHER, lane=1)
    assert frame(world)["lane_requests"] == frame(world)["lane_starts"] == 2
    world.do(runs.finish_lane, RUN, FRAME)
    before = world.everything()
    assert not begin(world, OTHER + 1), "a message that comes once more when the lane has ended"
    assert world.everything() == before


def test_a_request_for_a_lane_waits_until_its_holder_has_ended(world: World) -> None:
    make(world)
    ask(world)
    before = world.everything()
    assert not begin(world, OTHER)
    assert world.everything() == before
    world.do(runs.finish_lane, RUN, FRAME)
    assert begin(world, OTHER)
    assert world.q("SELECT * FROM noetl.outbox") == []


def test_a_request_is_taken_by_one_of_two_messages_at_once(world: World) -> None:
    make(world, run=False)
    ask(world)
    with world.process.db.begin() as connection:
        assert runs.start_lane(connection, RUN, WORKER, FRAME, 0, lease=10.0, heartbeat=5.0)
        found: list[bool] = []
        with in_thread(lambda: found.append(begin(world, OTHER))):
            wait_for(lambda: world.value(WAITING), "the second one waits for the first")
            connection.commit()
    assert found == [False]
    assert world.column("SELECT run_id FROM noetl.run") == [RUN]
    assert (frame(world)["lane_requests"], frame(world)["lane_starts"]) == (1, 1)


@pytest.mark.parametrize("change", ["status = 'TENTATIVE'", "stopping = true", "status = 'COMPLETED', open_rows = 0"])
def test_no_lane_starts_on_a_frame_that_starts_nothing(world: World, change: str) -> None:
    make(world, run=False)
    world.q(f"UPDATE noetl.frame SET {change}")
    assert not start(world)
    assert world.q("SELECT * FROM noetl.run") == []


def test_rows_are_taken_in_order_once_and_only_by_a_living_run(world: World) -> None:
    make(world)
    assert take(world, OTHER) == []
    assert take(world, limit=2) == [0, 1]
    assert take(world, limit=2) == [2, 3]
    assert take(world) == []
    assert world.rows(FRAME) == ["TAKEN"] * 4


def test_taking_skips_suspects_and_rows_below_the_floor(world: World) -> None:
    make(world)
    world.q("UPDATE noetl.row SET crashes = 1 WHERE row_index = 2")
    assert take(world, floor=1) == [1, 3]
    assert take(world, suspects=True) == [0, 2]


def test_taking_passes_over_rows_that_another_connection_holds(world: World) -> None:
    make(world)
    with psycopg.connect(world.settings.libpq_url) as holder:
        holder.execute("SELECT FROM noetl.row WHERE row_index < 2 FOR UPDATE")
        assert take(world) == [2, 3]


def test_two_runs_never_take_the_same_row(world: World) -> None:
    make(world, count=200)
    assert start(world, OTHER, lane=1)
    taken: list[int] = []

    def pull(run: int) -> None:
        while got := take(world, run, limit=3):
            taken.extend(got)

    with in_thread(pull, OTHER):
        pull(RUN)
    taken += take(world)  # what both passed over because the other one was looking at it
    assert sorted(taken) == list(range(200))


def test_outcomes_twice(world: World) -> None:
    make(world)
    take(world)
    assert finish(world, 0, 1) == rows.FrameEnd(ended=False, stopping=False)
    before = world.everything()
    with pytest.raises(LeaseLost):
        finish(world, 0, 1)
    assert world.everything() == before
    assert (frame(world)["open_rows"], frame(world)["ok_rows"]) == (2, 2)


def test_outcomes_of_a_wrong_run_change_nothing_not_even_for_the_rows_that_match(world: World) -> None:
    make(world)
    take(world, limit=2)
    start(world, OTHER, lane=1)
    take(world, OTHER)
    before = world.everything()
    for run, indexes in ((OTHER, (0,)), (RUN, (0, 1, 2)), (RUN, (0, 99)), (12345, (3,))):
        with pytest.raises(LeaseLost):
            finish(world, *indexes, run=run)
    assert world.everything() == before


def test_the_last_outcome_ends_the_frame_once(world: World) -> None:
    make(world, weight=3, slots=2)
    ask(world, 5)
    take(world)
    finish(world, 0, 1, 2, ok=False)
    assert world.q("SELECT * FROM noetl.signal") == []
    assert finish(world, 3).ended
    assert frame(world)["status"] == "COMPLETED"
    assert frame(world)["completed_at"] is not None
    assert world.events(EXECUTION) == ["cursor.item.done", "frame.committed"]
    (data,) = world.column("SELECT data FROM noetl.signal")
    assert data == {"stage": STAGE, "frame": FRAME, "slots": 2, "ok": 3, "failed": 9, "ctx": False, "retries": 0}
    assert world.q("SELECT * FROM noetl.outbox") == []
    before = world.everything()
    world.do(frames.end, FRAME, **AGAIN)
    with pytest.raises(LeaseLost):
        finish(world, 3)
    assert world.everything() == before


def test_two_lanes_end_a_frame_together_and_one_signal_comes_of_it(world: World) -> None:
    """Race with a real winner: the second transaction waits for the first, then sees its count."""
    make(world, lanes=2)
    start(world, OTHER, lane=1)
    take(world, limit=2)
    take(world, OTHER)
    with world.process.db.begin() as connection:
        first = rows.finish(connection, FRAME, RUN, [RowOutcome(0, True), RowOutcome(1, True)], **AGAIN)
        assert not first.ended
        ended: list[bool] = []
        with in_thread(lambda: ended.append(finish(world, 2, 3, run=OTHER).ended)):
            wait_for(
                lambda: world.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND datname = current_database()"
                ),
                "the second transaction waits",
            )
            connection.commit()
    assert ended == [True]
    assert world.value("SELECT count(*) FROM noetl.signal") == 1
    assert frame(world)["ok_rows"] == 4


def test_fail_fast_skips_what_has_not_started_and_lets_the_rest_end(world: World) -> None:
    make(world, fail_fast=True)
    take(world, limit=2)
    assert finish(world, 0, ok=False) == rows.FrameEnd(ended=False, stopping=True)
    assert world.rows(FRAME) == ["FAILED", "TAKEN", "SKIPPED", "SKIPPED"]
    assert finish(world, 1).ended
    assert (frame(world)["ok_rows"], frame(world)["failed_rows"], frame(world)["open_rows"]) == (1, 1, 0)


def test_parking_twice_waking_twice(world: World) -> None:
    make(world)
    take(world, limit=1)
    options: dict[str, Any] = {"seconds": 0.0, "retries": 3, "counts": True}
    world.do(rows.park, FRAME, RUN, 0, {"task": 1}, **options)
    assert world.do(runs.places_taken, FRAME, 0) == 1
    before = world.everything()
    with pytest.raises(LeaseLost):
        world.do(rows.park, FRAME, RUN, 0, {"task": 2}, **options)
    assert world.everything() == before
    assert world.do(rows.due, limit=10) == [FRAME]
    (woken,) = world.do(rows.wake, FRAME, limit=10)
    assert woken == {"frame_id": FRAME, "stage_id": STAGE, "execution_id": EXECUTION, "lane": 0, "step_name": "drain"}
    assert world.do(rows.due, limit=10) == []
    assert world.do(rows.wake, FRAME, limit=10) == []
    assert world.do(runs.places_taken, FRAME, 0) == 0
    (row,) = world.do(rows.take, FRAME, RUN, 0, floor=0, limit=1, suspects=False)
    assert (row.index, row.position, row.retries) == (0, {"task": 1}, 3)


def test_parking_by_a_wrong_run(world: World) -> None:
    make(world)
    take(world, limit=1)
    before = world.everything()
    for run, index in ((OTHER, 0), (RUN, 1)):
        with pytest.raises(LeaseLost):
            world.do(rows.park, FRAME, run, index, {}, seconds=1.0, retries=0, counts=False)
    assert world.everything() == before


def test_only_due_rows_wake_and_two_sweeps_share_them(world: World) -> None:
    make(world, count=6)
    take(world)
    for index in range(6):
        wait = 60.0 if index == 5 else 0.0
        world.do(rows.park, FRAME, RUN, index, {}, seconds=wait, retries=0, counts=False)
    with world.process.db.begin() as connection:
        assert len(rows.wake(connection, FRAME, limit=2)) == 1  # one frame, whatever the number of rows
        woken: list[Any] = []
        with in_thread(lambda: woken.extend(world.do(rows.wake, FRAME, limit=10))):
            wait_for(lambda: world.value(WAITING), "the second one waits for the first")
            connection.commit()
    assert len(woken) == 1
    assert world.rows(FRAME) == ["READY"] * 5 + ["PARKED"]
    assert world.value("SELECT count(*) FROM noetl.wakeup") == 1


def test_releasing_twice_and_by_a_wrong_run(world: World) -> None:
    make(world)
    take(world, limit=2)
    before = world.everything()
    world.do(rows.release, FRAME, OTHER, [(0, None, 1)])
    world.do(rows.release, FRAME, RUN, [])
    assert world.everything() == before
    world.do(rows.release, FRAME, RUN, [(0, {"task": 1}, 2), (1, None, 0)])
    assert world.rows(FRAME) == ["READY"] * 4
    start(world, OTHER, lane=1)
    assert take(world, OTHER, limit=1) == [0]
    before = world.everything()
    world.do(rows.release, FRAME, RUN, [(0, None, 0)])
    assert world.everything() == before
    assert world.value("SELECT position FROM noetl.row WHERE row_index = 0") == {"task": 1}


def test_skipping_twice(world: World) -> None:
    make(world)
    take(world, limit=2)
    world.do(rows.park, FRAME, RUN, 1, {}, seconds=60.0, retries=0, counts=False)
    assert world.do(frames.skip_unstarted, FRAME) == 1
    assert world.rows(FRAME) == ["TAKEN", "SKIPPED", "SKIPPED", "SKIPPED"]
    before = world.everything()
    assert world.do(frames.skip_unstarted, FRAME) == 1
    assert world.everything() == before
    assert world.q("SELECT * FROM noetl.wakeup") == []


def test_stopping_a_stage_twice(world: World) -> None:
    make(world)
    take(world, limit=1)
    world.do(frames.stop_stage, STAGE, **AGAIN)
    assert world.rows(FRAME) == ["TAKEN", "SKIPPED", "SKIPPED", "SKIPPED"]
    assert world.q("SELECT * FROM noetl.signal") == []
    before = world.everything()
    world.do(frames.stop_stage, STAGE, **AGAIN)
    assert world.everything() == before
    assert finish(world, 0).ended


def test_recalling_the_claims_of_a_stage_twice(world: World) -> None:
    world.q(
        "INSERT INTO noetl.claim (claim_id, stage_id, execution_id, status, frame_index, sole, more, taken_by) "
        "VALUES (50, %s, 1, 'OPEN', 0, true, false, NULL), (51, %s, 1, 'TAKEN', 1, false, false, 5)",
        STAGE,
        STAGE,
    )
    for _ in range(2):
        world.do(claims.recall, STAGE, **AGAIN)
        assert world.column("SELECT status FROM noetl.claim ORDER BY 1") == ["CANCELLED", "TAKEN"]
        assert len(world.q("SELECT * FROM noetl.signal")) == 1


def test_stopping_a_stage_without_rows_at_work_ends_its_frames(world: World) -> None:
    make(world, run=False)
    world.do(frames.stop_stage, STAGE, **AGAIN)
    assert frame(world)["status"] == "COMPLETED"
    assert world.column("SELECT type FROM noetl.signal") == ["frame.done"]


def test_giving_a_lane_up_twice(world: World) -> None:
    make(world)
    take(world, limit=2)
    finish(world, 0)
    found = world.do(runs.finish_lane, RUN, FRAME)
    assert found == {"status": "RUNNING", "stopping": False, "parked": False}
    assert world.rows(FRAME) == ["OK", "READY", "READY", "READY"]
    before = world.everything()
    assert world.do(runs.finish_lane, RUN, FRAME) is None
    assert world.do(runs.finish_lane, OTHER, FRAME) is None
    assert world.everything() == before


def test_a_lost_run_does_not_give_up_what_another_run_took(world: World) -> None:
    make(world)
    take(world)
    world.q("DELETE FROM noetl.run")
    world.q("UPDATE noetl.row SET status = 'READY', taken_by = NULL")
    start(world, OTHER)
    take(world, OTHER)
    before = world.everything()
    assert world.do(runs.finish_lane, RUN, FRAME) is None
    assert world.everything() == before


@pytest.mark.parametrize(
    ("concurrency", "rows", "width"), [(1, 1, 16), (16, 100, 16), (17, 100, 16), (100, 5, 16), (40, 40, 16), (3, 9, 1)]
)
def test_widths_of_lanes_add_up_to_the_concurrency(concurrency: int, rows: int, width: int) -> None:
    lanes = frames.lane_count(concurrency, rows, width)
    widths = [frames.lane_width(concurrency, lanes, lane) for lane in range(lanes)]
    assert sum(widths) == concurrency
    assert min(widths) >= 1
    assert lanes <= max(rows, 1)


def test_short_rows_get_no_more_lanes_than_there_is_work_for() -> None:
    assert frames.lane_count(100, 100, 16) == 7
    assert frames.lane_count(100, 100, 16, row_seconds=10.0) == 7
    assert frames.lane_count(100, 100, 16, row_seconds=0.02) == 3
    assert frames.lane_count(100, 100, 16, row_seconds=0.0) == 1
