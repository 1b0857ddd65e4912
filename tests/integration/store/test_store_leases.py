"""Leases: whose run ends, who is dead and who only paused, and what becomes of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from world import World

from noetl_celery.errors import LeaseLost
from noetl_celery.store import crashes, frames, outbox, rows, runs, workers
from noetl_celery.store.frames import NewFrame
from noetl_celery.store.rows import RowOutcome

pytestmark = pytest.mark.integration

EXECUTION, STAGE, FRAME, RUN = 1, 2, 3, 100
#: larger than 32 bits, as real ones are: its two halves are what pg_locks shows
WORKER = (5 << 32) + 0xFFFF0001
AGAIN = {"republish_seconds": 30.0}


@pytest.fixture
def running(world: World) -> World:
    """A frame of four rows; a run of WORKER holds three of them and has finished the first."""
    world.q(
        "INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings) "
        "VALUES (%s, %s, 'drain', 1, 'cursor', 'OPEN', '{}')",
        STAGE,
        EXECUTION,
    )
    world.do(frames.create, NewFrame(FRAME, STAGE, EXECUTION, 0, [0, 1, 2, 3], 2, 1))
    start(world)
    return world


def start(world: World, run: int = RUN) -> None:
    world.do(outbox.add_lanes, EXECUTION, STAGE, FRAME, [0], "b", delay_seconds=30.0)
    assert world.do(runs.start_lane, run, WORKER, FRAME, 0, lease=10.0, heartbeat=5.0)
    world.do(rows.take, FRAME, run, 0, floor=0, limit=3, suspects=True)
    assert runs.begin_rows(world.session, run, [0, 1, 2])


def alive(world: World) -> psycopg.Connection[Any]:
    """The process's own session, that holds its lock."""
    session = psycopg.connect(world.settings.libpq_url, autocommit=True)
    workers.register(session, WORKER, "worker")
    return session


def age(world: World, *, seen: float = 0.0, lease: float = 10.0) -> None:
    world.q("UPDATE noetl.worker SET seen_at = clock_timestamp() - %s * interval '1 second'", seen)
    world.q("UPDATE noetl.run SET lease_until = clock_timestamp() + %s * interval '1 second'", lease)


def expired(world: World, dead_after: float = 1.0) -> list[dict[str, Any]]:
    found = world.do(runs.lost, dead_after_seconds=dead_after, limit=10)
    removed = world.do(runs.expire, RUN, dead_after_seconds=dead_after)
    assert found == ([] if removed is None else [RUN])
    return [] if removed is None else [dict(removed)]


def return_rows(world: World, *, max_crashes: int = 3, run: int = RUN, begun: Sequence[int] = (0, 1, 2)) -> Any:
    lost = {"run_id": run, "frame_id": FRAME, "lane": 0, "begun": list(begun)}
    return world.do(crashes.return_rows, lost, max_crashes=max_crashes, **AGAIN)


# who is dead


def test_nothing_happens_to_a_healthy_process(running: World) -> None:
    with alive(running):
        age(running)
        before = running.everything()
        assert expired(running) == []
        assert running.everything() == before


def test_a_paused_process_keeps_its_lock_and_gets_its_whole_lease(running: World) -> None:
    with alive(running):
        age(running, seen=1000.0, lease=1.0)
        assert expired(running) == []
        age(running, seen=1000.0, lease=-0.1)
        assert [run["run_id"] for run in expired(running)] == [RUN]
        assert expired(running) == []


def test_a_dead_process_is_known_by_its_lock_and_its_silence(running: World) -> None:
    alive(running).close()
    age(running, seen=0.5)
    assert expired(running) == [], "it may only be reconnecting"
    age(running, seen=1.5)
    (run,) = expired(running)
    assert run == {
        "run_id": RUN,
        "worker_id": WORKER,
        "execution_id": EXECUTION,
        "frame_id": FRAME,
        "claim_id": None,
        "lane": 0,
        "begun": [0, 1, 2],
    }


def test_a_process_that_never_registered_is_dead(running: World) -> None:
    assert [run["run_id"] for run in expired(running)] == [RUN]


def test_a_lease_extended_meanwhile_is_not_taken(running: World) -> None:
    """The sweep waits for nobody: a run whose row is locked by its own pulse is passed over."""
    with alive(running) as session:
        age(running, lease=-1.0)
        with session.transaction():
            assert runs.extend(session, [RUN]) == ({RUN}, [])
            assert running.do(runs.expire, RUN, dead_after_seconds=1.0) is None
        assert expired(running) == []


def test_two_sweeps_take_each_run_once(running: World) -> None:
    with running.process.db.begin() as connection:
        assert runs.expire(connection, RUN, dead_after_seconds=1.0)
        assert running.do(runs.lost, dead_after_seconds=1.0, limit=10) == [RUN]
        assert running.do(runs.expire, RUN, dead_after_seconds=1.0) is None
    assert expired(running) == []


def test_extending_says_what_is_still_held(running: World) -> None:
    with alive(running) as session:
        assert runs.extend(session, [RUN, 12345]) == ({RUN}, [])
        running.q("UPDATE noetl.run SET heartbeat_at = heartbeat_at - interval '6 seconds'")
        assert runs.extend(session, [RUN]) == ({RUN}, [RUN])
        runs.beat(session, [RUN])
        assert runs.extend(session, [RUN]) == ({RUN}, [])
        assert running.events(EXECUTION) == ["frame.heartbeat"]
        assert running.value("SELECT lease_until > clock_timestamp() FROM noetl.frame")
        assert runs.extend(session, []) == (set(), [])
        runs.beat(session, [12345])
        assert running.events(EXECUTION) == ["frame.heartbeat"]


def test_dead_workers_are_forgotten_once_they_hold_nothing(running: World) -> None:
    alive(running).close()
    age(running, seen=100.0)
    running.do(workers.forget_dead, after_seconds=50.0)
    assert running.value("SELECT count(*) FROM noetl.worker") == 1
    running.do(runs.finish, RUN)
    running.do(workers.forget_dead, after_seconds=500.0)
    assert running.value("SELECT count(*) FROM noetl.worker") == 1
    running.do(workers.forget_dead, after_seconds=50.0)
    assert running.value("SELECT count(*) FROM noetl.worker") == 0


def test_a_process_registers_again_and_leaves(world: World) -> None:
    with alive(world) as session:
        workers.register(session, WORKER, "worker")
        workers.seen(session, WORKER)
        assert world.value("SELECT count(*) FROM noetl.worker") == 1
        workers.leave(session, WORKER)
        workers.leave(session, WORKER)
    assert world.value("SELECT count(*) FROM noetl.worker") == 0


# what becomes of its rows


def test_rows_come_back_as_suspects(running: World) -> None:
    running.do(rows.finish, FRAME, RUN, [RowOutcome(0, True)], **AGAIN)
    expired(running)
    found = return_rows(running)
    assert (found["frame_id"], found["lane"], found["step_name"]) == (FRAME, 0, "drain")
    assert running.rows(FRAME) == ["OK", "READY", "READY", "READY"]
    assert running.column("SELECT crashes FROM noetl.row ORDER BY row_index") == [0, 1, 1, 0]
    (frame,) = running.q("SELECT open_rows, reruns, attempt, failed_rows FROM noetl.frame")
    assert frame == {"open_rows": 3, "reruns": 2, "attempt": 2, "failed_rows": 0}
    assert running.events(EXECUTION) == ["frame.abandoned"]


@pytest.mark.parametrize("begun", [[], [0]])
def test_rows_that_had_not_begun_come_back_as_they_were(running: World, begun: list[int]) -> None:
    """What was taken ahead is no suspect, and its next run is its first one."""
    running.do(rows.finish, FRAME, RUN, [RowOutcome(0, True)], **AGAIN)
    running.q("UPDATE noetl.row SET position = '{}', retries = 2 WHERE row_index = 1")
    expired(running)
    assert return_rows(running, max_crashes=1, begun=begun) is not None
    assert running.rows(FRAME) == ["OK", "READY", "READY", "READY"]
    assert running.column("SELECT crashes FROM noetl.row ORDER BY row_index") == [0] * 4
    (row,) = running.q("SELECT position, retries, taken_by, lane FROM noetl.row WHERE row_index = 1")
    assert row == {"position": {}, "retries": 2, "taken_by": None, "lane": None}
    (frame,) = running.q("SELECT reruns, attempt, failed_rows FROM noetl.frame")
    assert frame == {"reruns": 0, "attempt": 1, "failed_rows": 0}
    (event,) = running.column("SELECT result FROM noetl.event")
    assert event == {"lane": 0, "returned": 2, "reruns": 0, "failed": 0}


def test_rows_begin_only_under_a_run_that_is_there_and_its_lease_is_whole_then(running: World) -> None:
    left = "SELECT extract(epoch FROM lease_until - clock_timestamp())::float FROM noetl.run"
    age(running, lease=0.5)
    assert runs.begin_rows(running.session, RUN, [1, 2, 3])
    assert 9.0 < running.value(left) <= 10.0
    assert running.value("SELECT begun FROM noetl.run") == [1, 2, 3]
    running.do(runs.finish, RUN)
    assert not runs.begin_rows(running.session, RUN, [1, 2, 3])


def test_a_run_is_not_expired_while_it_takes_rows(running: World) -> None:
    """Its rows would be taken by nobody: the sweep would not see them, and nobody else would look."""
    age(running, lease=-1.0)
    with running.process.db.begin() as connection:
        assert rows.take(connection, FRAME, RUN, 0, floor=0, limit=9, suspects=True)
        assert expired_run(running) is None
    assert expired_run(running) is not None
    return_rows(running)
    assert running.rows(FRAME) == ["READY"] * 4


def expired_run(world: World) -> Any:
    return world.do(runs.expire, RUN, dead_after_seconds=1.0)


def test_a_row_whose_last_worker_is_lost_tells_its_child_to_end(running: World) -> None:
    running.q("UPDATE noetl.row SET waits_for = 77 + row_index WHERE row_index IN (1, 2)")
    running.q("UPDATE noetl.row SET crashes = 2 WHERE row_index = 1")
    expired(running)
    return_rows(running, begun=[1, 2])
    assert running.rows(FRAME) == ["READY", "FAILED", "READY", "READY"]
    assert running.q("SELECT execution_id, type FROM noetl.signal") == [{"execution_id": 78, "type": "cancel"}]
    assert running.column("SELECT waits_for FROM noetl.row ORDER BY row_index") == [None, None, 79, None]


def test_returning_twice_returns_nothing_more(running: World) -> None:
    expired(running)
    return_rows(running)
    held = running.q("SELECT * FROM noetl.row ORDER BY row_index")
    return_rows(running)
    return_rows(running, run=12345)
    assert running.q("SELECT * FROM noetl.row ORDER BY row_index") == held
    (frame,) = running.q("SELECT open_rows, reruns FROM noetl.frame")
    assert frame == {"open_rows": 4, "reruns": 3}


def test_a_row_that_crashed_too_often_fails_and_the_others_go_on(running: World) -> None:
    running.q("UPDATE noetl.row SET crashes = 2 WHERE row_index = 1")
    expired(running)
    assert return_rows(running) is not None
    assert running.rows(FRAME) == ["READY", "FAILED", "READY", "READY"]
    (error,) = running.column("SELECT error FROM noetl.row WHERE status = 'FAILED'")
    assert error["kind"] == "worker_lost"
    assert "3 times" in error["message"]
    (frame,) = running.q("SELECT open_rows, failed_rows FROM noetl.frame")
    assert frame == {"open_rows": 3, "failed_rows": 1}


def test_the_frame_ends_when_its_last_open_row_fails_so(running: World) -> None:
    running.do(rows.finish, FRAME, RUN, [RowOutcome(0, True), RowOutcome(1, True)], **AGAIN)
    running.q("UPDATE noetl.row SET status = 'OK' WHERE row_index = 3")
    running.q("UPDATE noetl.frame SET open_rows = 1, ok_rows = 3")
    expired(running)
    assert return_rows(running, max_crashes=1)["open_rows"] == 0
    assert running.value("SELECT status FROM noetl.frame") == "COMPLETED"
    assert running.events(EXECUTION) == ["frame.abandoned", "cursor.item.done", "frame.committed"]
    (signal,) = running.column("SELECT data FROM noetl.signal")
    assert (signal["ok"], signal["failed"]) == (3, 1)


def test_a_lost_row_fails_fast_where_the_playbook_says_so(running: World) -> None:
    running.q("UPDATE noetl.frame SET fail_fast = true")
    expired(running)
    assert return_rows(running, max_crashes=1)["open_rows"] == 0
    assert running.rows(FRAME) == ["FAILED", "FAILED", "FAILED", "SKIPPED"]
    assert running.value("SELECT status FROM noetl.frame") == "COMPLETED"


# fencing


def test_a_run_that_was_expired_writes_nothing(running: World) -> None:
    """Its outcomes, its parked rows, its events, signals and counters: all undone, also beside a new holder."""
    expired(running)
    return_rows(running)
    for _ in range(2):  # with nobody on the lane, then with another run on it
        before = running.everything()
        with pytest.raises(LeaseLost):
            running.do(rows.finish, FRAME, RUN, [RowOutcome(0, True, ctx='{"a": 1}')], **AGAIN)
        with pytest.raises(LeaseLost):
            running.do(rows.park, FRAME, RUN, 1, {}, seconds=1.0, retries=0, counts=True)
        assert running.do(rows.take, FRAME, RUN, 0, floor=0, limit=9, suspects=True) == []
        running.do(rows.release, FRAME, RUN, [(1, {"task": 9}, 0)])
        assert running.do(runs.finish_lane, RUN, FRAME) is None
        assert running.everything() == before
        if running.value("SELECT count(*) FROM noetl.run") == 0:
            start(running, RUN + 1)


# leaving a lane


def test_a_lane_that_is_being_left_has_room_for_another_holder(running: World) -> None:
    """What the first one still has in the air counts against the width of the second one."""
    later = RUN + 1
    running.do(rows.release, FRAME, RUN, [(1, None, 0), (2, None, 0)])
    assert running.do(runs.leave_lane, RUN, FRAME) == {"status": "RUNNING", "stopping": False, "parked": False}
    assert running.do(runs.places_taken, FRAME, 0) == 1
    start(running, later)
    assert running.rows(FRAME) == ["TAKEN", "TAKEN", "TAKEN", "TAKEN"]
    assert running.do(runs.places_taken, FRAME, 0) == 1, "its own rows are no others'"
    outcome = RowOutcome(0, True, result="0")
    running.do(rows.finish, FRAME, RUN, [outcome], **AGAIN)
    running.do(runs.finish_lane, RUN, FRAME)
    assert running.do(runs.places_taken, FRAME, 0) == 0
    assert running.column("SELECT run_id FROM noetl.run") == [later]


def test_a_lane_is_left_once_at_a_time(running: World) -> None:
    """Until the first one has gone the second one keeps the lane."""
    running.do(rows.release, FRAME, RUN, [(1, None, 0), (2, None, 0)])
    running.do(runs.leave_lane, RUN, FRAME)
    start(running, RUN + 1)
    before = running.everything()
    assert running.do(runs.leave_lane, RUN + 1, FRAME) is None
    assert running.do(runs.leave_lane, RUN, FRAME) is not None, "it is leaving"
    assert running.everything() == before
    running.do(runs.finish_lane, RUN, FRAME)
    assert running.do(runs.leave_lane, RUN + 1, FRAME) is not None


def test_who_dies_while_leaving_gives_back_rows_of_the_lane(running: World) -> None:
    running.do(runs.leave_lane, RUN, FRAME)
    age(running, lease=-1)
    (lost,) = expired(running)
    assert lost["lane"] == 0
    assert running.do(crashes.return_rows, lost, max_crashes=3, **AGAIN)["lane"] == 0


def test_rows_handed_over_at_work_are_counted_and_no_suspects(running: World) -> None:
    running.do(runs.finish_lane, RUN, FRAME)
    running.do(crashes.hand_over, EXECUTION, "drain", STAGE, FRAME, 0, 2)
    assert running.value("SELECT reruns FROM noetl.frame") == 2
    assert running.value("SELECT sum(crashes) FROM noetl.row") == 0
    assert running.events(EXECUTION) == ["frame.abandoned"]
