"""Lanes: how many rows at once, in which order, how long, and what they leave when they end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from cases import collection, single
from proxy import proxied
from services import make_settings
from world import World, in_thread, wait_for, withdraw_stop

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.runtime import holding
from noetl_celery.runtime import process as processes
from noetl_celery.runtime.lane import Lane
from noetl_celery.settings import Settings
from noetl_celery.store import rows, signals
from noetl_celery.store.outbox import Dispatch

pytestmark = pytest.mark.integration

#: a tool's policy: errors are tried again
RETRY = {"policy": {"rules": [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 5}}]}}


@pytest.fixture
def settings(database: str, request: pytest.FixtureRequest) -> Settings:
    """``@pytest.mark.parametrize("settings", [{…}], indirect=True)`` changes some."""
    return make_settings(database, **getattr(request, "param", {}))


def with_settings(**changes: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [changes], indirect=True)


def items(world: World) -> list[Any]:
    return [call["item"] for call in world.probe.calls]


def throttled(seconds: float) -> ToolError:
    return ToolError(ErrorInfo("rate_limit", "slow down", status=429, retryable=True, retry_after=seconds))


def retrying(source: str, spec: str) -> str:
    """Like ``collection``, with a tool that is tried again after errors."""
    return collection(source, spec=spec).replace('"kind": "probe"', f'"kind": "probe", "spec": {json.dumps(RETRY)}')


# how many at once


@with_settings(lane_width=2)
def test_lanes_together_use_the_whole_concurrency_and_never_more(world: World) -> None:
    def act(given: Mapping[str, Any]) -> None:
        wait_for(lambda: world.probe.most >= 5, "five rows at once")
        time.sleep(0.002)

    world.probe.act = act
    execution = world.begin(collection("{{ range(40) | list }}", spec="mode: parallel, max_in_flight: 5"))
    assert len(world.publisher.lanes()) == 3
    assert world.run(execution) == "COMPLETED"
    assert world.probe.most == 5
    assert sorted(items(world)) == list(range(40))


@pytest.mark.parametrize("ack", [False, True])
def test_outcomes_are_written_in_batches(world: World, monkeypatch: pytest.MonkeyPatch, ack: bool) -> None:
    sizes: list[int] = []
    real = rows.finish

    def count(connection: Any, frame: int, run: int, outcomes: Any, **options: Any) -> Any:
        sizes.append(len(outcomes))
        return real(connection, frame, run, outcomes, **options)

    monkeypatch.setattr(rows, "finish", count)
    frame = ", frame: {ack: row}" if ack else ""
    execution = world.begin(collection("{{ range(200) | list }}", spec=f"mode: parallel, max_in_flight: 8{frame}"))
    assert world.run(execution) == "COMPLETED"
    assert sum(sizes) == 200
    if ack:
        assert max(sizes) <= 8  # what ended while the last one was written
    else:
        assert len(sizes) <= 40


def test_two_deliveries_of_a_lane_at_once_are_one(world: World) -> None:
    world.probe.act = lambda given: time.sleep(0.01)
    execution = world.begin(collection("{{ range(10) | list }}", spec="mode: parallel, max_in_flight: 2"))
    ((frame, lane),) = world.publisher.lanes()
    with in_thread(world.lane, frame, lane), in_thread(world.lane, frame, lane):
        world.lane(frame, lane)
    assert world.run(execution) == "COMPLETED"
    assert sorted(items(world)) == list(range(10))
    assert world.probe.most <= 2


def test_messages_for_finished_or_unknown_work_do_nothing(world: World) -> None:
    execution = world.begin(single())
    frame = world.one_frame(execution)
    assert world.run(execution) == "COMPLETED"
    before = world.everything()
    world.lane(frame)
    world.lane(frame, 7)
    world.lane(12345)
    assert world.everything() == before
    assert len(world.probe.calls) == 1


# parked rows


@pytest.mark.parametrize("mode", ["mode: parallel, max_in_flight: 2", "mode: sequential"])
def test_a_long_wait_parks_the_row_and_it_goes_on_where_it_was(world: World, mode: str) -> None:
    def act(given: Mapping[str, Any]) -> Any:
        if given["item"] == 1 and len([item for item in items(world) if item == 1]) < 3:
            raise throttled(30.0)
        return given["item"] * 10

    world.probe.act = act
    execution = world.begin(retrying("{{ [1, 2, 3] }}", mode))
    frame = world.one_frame(execution)
    for parked in range(1, 3):
        assert world.run(execution) == "RUNNING"
        assert world.rows(frame)[0] == "PARKED"
        assert world.value("SELECT count(*) FROM noetl.run") == 0, "a parked row holds no slot"
        assert items(world).count(1) == parked
        if mode == "mode: sequential":
            assert items(world) == [1] * parked, "what comes after it waits"
        world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
        world.sweep()
    assert world.run(execution) == "COMPLETED"
    assert world.steps(execution)["start"]["result"]["results"] == [10, 20, 30]
    assert world.value("SELECT retries FROM noetl.row WHERE row_index = 0") == 2
    if mode == "mode: sequential":
        assert items(world) == [1, 1, 1, 2, 3]


def test_throttled_rows_keep_their_place_also_for_a_fresh_lane(world: World) -> None:
    """Three places, three rows that their target sent away: when one wakes, only that one may run."""

    def act(given: Mapping[str, Any]) -> None:
        if len(items(world)) <= 3:
            raise throttled(30.0)
        time.sleep(0.05)

    world.probe.act = act
    execution = world.begin(retrying("{{ range(9) | list }}", "mode: parallel, max_in_flight: 3"))
    frame = world.one_frame(execution)
    world.run(execution)
    assert world.rows(frame) == ["PARKED"] * 3 + ["READY"] * 6
    world.probe.most = 0
    world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp() WHERE row_index = 1")
    world.sweep()
    assert world.run(execution) == "RUNNING"
    assert world.probe.most == 1
    assert world.rows(frame) == ["PARKED", "OK", "PARKED"] + ["OK"] * 6
    world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
    world.sweep()
    assert world.run(execution) == "COMPLETED"


def test_a_second_delivery_does_not_overtake_a_parked_row_of_a_sequence(world: World) -> None:

    def act(given: Mapping[str, Any]) -> None:
        if len(items(world)) <= 1:
            raise throttled(30.0)

    world.probe.act = act
    execution = world.begin(retrying("{{ [1, 2, 3] }}", "mode: sequential"))
    frame = world.one_frame(execution)
    world.run(execution)
    assert world.rows(frame) == ["PARKED", "READY", "READY"]
    world.lane(frame)
    assert items(world) == [1]
    world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
    world.sweep()
    assert world.run(execution) == "COMPLETED"
    assert items(world) == [1, 1, 2, 3]


# suspects


def test_suspects_run_alone_and_last(world: World) -> None:
    beside: dict[Any, int] = {}

    def act(given: Mapping[str, Any]) -> None:
        time.sleep(0.02)
        beside[given["item"]] = len(world.probe.running)

    world.probe.act = act
    execution = world.begin(collection("{{ range(8) | list }}"))
    world.q("UPDATE noetl.row SET crashes = 1 WHERE row_index IN (0, 1, 5)")
    world.q("UPDATE noetl.frame SET attempt = 2")
    assert world.run(execution) == "COMPLETED"
    assert sorted(items(world)[-3:]) == [0, 1, 5]
    assert [beside[suspect] for suspect in (0, 1, 5)] == [1, 1, 1]


def test_a_row_that_wakes_meanwhile_leaves_a_suspect_alone(world: World) -> None:
    beside: dict[Any, list[Any]] = {}

    def act(given: Mapping[str, Any]) -> None:
        if given["item"] == 0:
            world.q("UPDATE noetl.row SET status = 'READY' WHERE row_index = 1 AND status = 'PARKED'")
            time.sleep(1.3)  # longer than a lane looks for new rows
        beside[given["item"]] = [running["item"] for running in world.probe.running]

    world.probe.act = act
    execution = world.begin(collection("{{ [0, 1] }}"))
    world.q("UPDATE noetl.row SET crashes = 1 WHERE row_index = 0")
    world.q("UPDATE noetl.row SET status = 'PARKED' WHERE row_index = 1")
    world.q("UPDATE noetl.frame SET attempt = 2")
    assert world.run(execution) == "COMPLETED"
    assert beside == {0: [0], 1: [1]}


# how long


@with_settings(lane_seconds=0.15)
@pytest.mark.parametrize("mode", ["mode: parallel, max_in_flight: 3", "mode: sequential"])
def test_a_lane_hands_over_when_its_time_is_up(world: World, mode: str) -> None:
    world.probe.act = lambda given: time.sleep(0.02)
    execution = world.begin(collection("{{ range(30) | list }}", spec=mode))
    begun = time.monotonic()
    world.deliver()
    assert time.monotonic() - begun < 1.0
    assert world.value("SELECT open_rows FROM noetl.frame") > 0
    assert world.value("SELECT count(*) FROM noetl.outbox") == 1
    assert world.run(execution) == "COMPLETED"
    assert sorted(items(world)) == list(range(30))
    if mode == "mode: sequential":
        assert items(world) == list(range(30))


def test_a_stop_gives_the_rows_back_with_what_they_have_reached(world: World) -> None:
    """A row at work ends; one that waits for its next attempt is called back; the others were not begun."""
    waiting = threading.Event()

    def act(given: Mapping[str, Any]) -> None:
        if given["item"] == 0 and items(world).count(0) == 1:
            waiting.set()
            raise throttled(4.0)  # short enough to wait in the lane
        if given["item"] == 1 and not processes.stop_announced() and items(world).count(1) == 1:
            wait_for(processes.stop_announced, "the stop")

    world.probe.act = act
    execution = world.begin(retrying("{{ range(6) | list }}", "mode: parallel, max_in_flight: 2"))
    frame, lane = world.publisher.lanes()[0]
    world.publisher.sent.clear()
    begun = time.monotonic()
    with in_thread(world.lane, frame, lane):
        assert waiting.wait(5)
        wait_for(lambda: items(world).count(1) == 1, "the second row is at work")
        processes.announce_stop(60)
    assert time.monotonic() - begun < 3.0
    assert world.rows(frame) == ["READY", "OK"] + ["READY"] * 4
    assert world.q("SELECT * FROM noetl.run") == []
    (position,) = world.column("SELECT position FROM noetl.row WHERE row_index = 0")
    assert position["attempt"] == 2
    assert set(world.publisher.lanes()) == {(frame, lane)}
    withdraw_stop()
    assert world.run(execution) == "COMPLETED"
    assert items(world).count(1) == 1


def test_a_stop_hands_over_at_once_what_has_not_begun_and_later_what_has(world: World) -> None:
    """Another lane goes on beside the row at work, within the frame's concurrency; then the grace time ends."""
    over = threading.Event()

    def act(given: Mapping[str, Any]) -> None:
        if given["item"] == 0 and items(world).count(0) == 1:
            assert over.wait(10)
        if given["item"] == 1:
            wait_for(processes.stop_announced, "the stop")

    world.probe.act = act
    execution = world.begin(collection("{{ range(6) | list }}", spec="mode: parallel, max_in_flight: 2"))
    frame, lane = world.publisher.lanes()[0]
    world.publisher.sent.clear()
    with in_thread(world.lane, frame, lane):
        wait_for(lambda: len(items(world)) == 2, "the first two rows are at work")
        processes.announce_stop(60)
        wait_for(lambda: world.publisher.lanes() == [(frame, lane)], "room for the others is there once one has ended")
        withdraw_stop()  # the second lane is another worker's
        world.lane(frame, lane)
        assert world.rows(frame) == ["TAKEN"] + ["OK"] * 5
        world.publisher.sent.clear()
        processes.announce_stop(0)
    assert world.rows(frame) == ["READY"] + ["OK"] * 5
    over.set()
    withdraw_stop()
    assert world.publisher.lanes() == [(frame, lane)]
    assert world.run(execution) == "COMPLETED"
    assert (items(world).count(0), world.value("SELECT reruns FROM noetl.frame")) == (2, 1)
    assert world.value("SELECT max(crashes) FROM noetl.row") == 0


def test_a_process_that_is_told_to_end_in_the_middle_of_a_lane_hands_it_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Celery tells the processes of its pool, whatever they are doing."""
    over, real = threading.Event(), Lane._collect

    def act(given: Mapping[str, Any]) -> None:
        if given["item"] == 0 and items(world).count(0) == 1:
            assert over.wait(10)

    def told(lane: Lane) -> None:
        real(lane)
        if len(items(world)) >= 3:
            raise SystemExit(1)

    world.probe.act = act
    execution = world.begin(collection("{{ range(6) | list }}", spec="mode: parallel, max_in_flight: 2"))
    frame, lane = world.publisher.lanes()[0]
    world.publisher.sent.clear()
    monkeypatch.setattr(Lane, "_collect", told)
    with pytest.raises(SystemExit):
        world.lane(frame, lane)
    monkeypatch.undo()
    over.set()
    assert world.q("SELECT * FROM noetl.run") == []
    assert world.publisher.lanes() == [(frame, lane)]
    assert world.settle(execution) == "COMPLETED"
    assert 1 <= world.value("SELECT reruns FROM noetl.frame") == len(items(world)) - 6
    assert world.value("SELECT max(crashes) FROM noetl.row") == 0


# failures


def test_fail_fast_starts_no_more_rows(world: World) -> None:
    def act(given: Mapping[str, Any]) -> None:
        if given["item"] == 2:
            raise ToolError(ErrorInfo("client_error", "no such thing", status=404))

    world.probe.act = act
    execution = world.begin(collection("{{ range(100) | list }}", spec="mode: sequential"))
    assert world.run(execution) == "FAILED"
    assert items(world) == [0, 1, 2]
    error = world.value("SELECT error FROM noetl.execution")
    assert (error["kind"], error["step"]) == ("client_error", "start")
    assert world.rows(world.one_frame(execution))[2:] == ["FAILED"] + ["SKIPPED"] * 97


def test_best_effort_goes_on(world: World) -> None:
    world.probe.act = lambda given: 1 / given["item"]
    playbook = collection("{{ [1, 0, 2] }}", step={"policy": {"failure": {"mode": "best_effort"}}})
    execution = world.begin(playbook)
    assert world.run(execution) == "COMPLETED"
    assert world.steps(execution)["start"]["result"]["stats"] == {"total": 3, "ok": 2, "failed": 1}


# losing the lease, and the database


def test_a_lane_that_loses_its_run_stops_and_changes_nothing(world: World) -> None:
    """Its process goes on after a pause: the pulse tells the lane; what its rows did meanwhile counts for nothing."""
    world.process.start()
    before: list[Any] = []

    def act(given: Mapping[str, Any]) -> None:
        if not before:
            world.q("DELETE FROM noetl.run")
            before.append(world.everything())
        time.sleep(0.4)

    world.probe.act = act
    world.begin(collection("{{ range(20) | list }}", spec="mode: parallel, max_in_flight: 1"))
    frame, lane = world.publisher.lanes()[0]
    world.lane(frame, lane)
    assert len(items(world)) < 4
    assert world.everything() == before[0]


@pytest.mark.parametrize("committed", [False, True])
def test_a_lost_commit_runs_no_row_twice(world: World, committed: bool) -> None:
    """The connection breaks at COMMIT, before or after the server has done it, with rows in the air: outcomes that are
    there are not written again, and rows that were taken with them are not lost sight of."""

    def act(given: Mapping[str, Any]) -> None:
        if given["item"] in (5, 30, 55):  # a batch of outcomes is written between each two
            proxy.lose(b"COMMIT", answered=committed)
        time.sleep(0.005)

    world.probe.act = act
    execution = world.begin(collection("{{ range(60) | list }}", spec="mode: parallel, max_in_flight: 3"))
    frame, lane = world.publisher.lanes()[0]
    with proxied(world.settings.libpq_url) as proxy:
        far = world.another_process(make_settings(proxy.url, outcome_batch_rows=20))
        world.lane(frame, lane, far)
        far.close()
    assert proxy.lost >= 2
    assert sorted(items(world)) == list(range(60))
    assert world.rows(frame) == ["OK"] * 60
    world.publisher.orchestrate(execution)  # as the chord does when its lanes have ended
    assert world.settle(execution) == "COMPLETED"
    assert world.value("SELECT ok_rows FROM noetl.frame") == 60
    assert world.events(execution).count("iteration_completed") == 60, "nothing was told twice"


@pytest.mark.parametrize("request_", [b"synchronous_commit", b"SET begun"])
def test_a_connection_that_is_lost_when_rows_begin_is_made_again(world: World, request_: bytes) -> None:
    world.begin(collection("{{ range(6) | list }}", spec="mode: sequential"))
    frame, lane = world.publisher.lanes()[0]
    with proxied(world.settings.libpq_url) as proxy:
        far = world.another_process(make_settings(proxy.url))
        proxy.lose(request_, answered=False)
        world.lane(frame, lane, far)
        far.close()
    assert proxy.lost == 1
    assert items(world) == list(range(6))


def test_rows_of_a_lane_that_fails_are_run_again_at_once(world: World) -> None:
    """For a reason that nobody has thought of, and while its process lives on: nobody waits for the end of a lease."""
    world.process.start()
    real, ended, faults = world.process.beginnings.begin, list[int](), [RuntimeError("of all things")]

    def fails(run_id: int, rows: Any, *, seconds: float) -> None:
        if 3 in rows and faults:
            raise faults.pop()
        real(run_id, rows, seconds=seconds)

    def act(given: Mapping[str, Any]) -> None:
        time.sleep(0.2)
        ended.append(given["item"])

    world.process.beginnings.begin, world.probe.act = fails, act  # type: ignore[method-assign]
    execution = world.begin(collection("{{ range(6) | list }}", spec="mode: parallel, max_in_flight: 3"))
    frame, lane = world.publisher.lanes()[0]
    world.publisher.sent.clear()
    with pytest.raises(RuntimeError, match="of all things"):
        world.lane(frame, lane)
    assert sorted(ended) == [0, 1, 2], "what was at work has come to its end"

    def returned() -> bool:
        world.sweep()
        return bool(world.publisher.lanes())

    wait_for(returned, "the rows are free")
    assert world.settle(execution) == "COMPLETED"
    assert set(items(world)) == set(range(6))
    assert world.value("SELECT reruns FROM noetl.frame") == len(items(world)) - 6


@with_settings(outcome_batch_rows=5)
@pytest.mark.parametrize(("seconds", "ahead"), [(0.0, 50), (0.03, 2)])
def test_rows_are_noted_before_they_begin_and_until_they_are_written(world: World, seconds: float, ahead: int) -> None:
    """As many as begin within the next moment together."""
    noted: list[tuple[int, list[int]]] = []

    def act(given: Mapping[str, Any]) -> None:
        noted.append((given["item"], world.value("SELECT begun FROM noetl.run")))
        time.sleep(seconds)

    # One row at a time, whose looks at the table do not meet.
    world.probe.act = act
    execution = world.begin(collection("{{ range(30) | list }}", spec="mode: sequential"))
    assert world.run(execution) == "COMPLETED"
    assert [item for item, _ in noted] == list(range(30))
    for item, begun in noted:
        assert item in begun, "it is noted before it begins"
        assert set(begun) <= set(range(item + 1 + ahead)), "what was taken ahead has not begun"
        assert len(begun) <= 6 + ahead, "rows in the air and a batch of outcomes"


def test_nothing_begins_for_a_lane_that_was_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pause of the whole process: its lease was over, and somebody else has the rows."""
    monkeypatch.setattr(holding, "SURE_SECONDS", 0.1)

    def act(given: Any) -> None:
        if len(world.probe.calls) == 4:
            world.q("DELETE FROM noetl.run")
            time.sleep(0.2)  # longer than what was announced ahead is good for

    world.probe.act = act
    world.begin(collection("{{ range(10) | list }}", spec="mode: sequential"))
    frame, lane = world.publisher.lanes()[0]
    world.lane(frame, lane)
    assert items(world) == [0, 1, 2, 3]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_row_that_waits_for_its_next_attempt_ends_when_the_execution_is_cancelled(
    world: World, cancelled: bool
) -> None:
    """Not when another row of a loop that fails fast has failed: there what has begun comes to its end."""
    waits = threading.Event()

    def act(given: Mapping[str, Any]) -> Any:
        if given["item"] == 0 and len(items(world)) < 3:
            waits.set()
            raise throttled(4.0)
        if given["item"] == 1:
            assert waits.wait(10)
            if not cancelled:
                raise ToolError(ErrorInfo("final", "no"))
        return None

    world.probe.act = act
    playbook = retrying("{{ [0, 1] }}", "mode: parallel, max_in_flight: 2")
    fails = json.dumps({"when": "{{ output.error.kind == 'final' }}", "then": {"do": "fail"}})
    execution = world.begin(playbook.replace('"rules": [', f'"rules": [{fails}, '))
    frame, lane = world.publisher.lanes()[0]
    begun = time.monotonic()
    with in_thread(world.lane, frame, lane):
        wait_for(lambda: len(items(world)) == 2, "one waits, the other one has ended")
        if cancelled:
            world.do(signals.add, execution, "cancel", republish_seconds=30.0)
            world.orchestrate(execution)
    assert (time.monotonic() - begun < 4.0) == cancelled
    assert world.rows(frame) == (["SKIPPED", "OK"] if cancelled else ["OK", "FAILED"])
    # Where the frame has ended as its lane was given up, somebody is asked to look at the execution.
    assert (Dispatch("orchestrate", execution) in world.publisher.sent) == cancelled
    assert world.settle(execution) == ("CANCELLED" if cancelled else "FAILED")
    for table in ("run", "outbox", "wakeup", "signal"):
        assert world.q(f"SELECT * FROM noetl.{table}") == []
