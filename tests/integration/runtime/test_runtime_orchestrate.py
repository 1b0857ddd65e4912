"""Orchestration: one decider at a time, no signal lost, a bounded number of passes, no harm from stale messages."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from cases import collection, cursor, fill, single
from services import credential_of, make_settings
from world import World, in_thread, wait_for

from noetl_celery import faults
from noetl_celery.engine import decide as real_decide
from noetl_celery.engine import replay
from noetl_celery.runtime.onward import Onward
from noetl_celery.settings import Settings
from noetl_celery.store import executions, signals

pytestmark = pytest.mark.integration

AGAIN = {"republish_seconds": 30.0}


@pytest.fixture
def settings(database: str) -> Settings:
    return make_settings(database, orchestrate_passes=3)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The signals of each decision that is made."""
    made: list[list[str]] = []

    def decide(plan: Any, state: Any, given: Any, *rest: Any) -> Any:
        made.append([signal.type for signal in given])
        return real_decide(plan, state, given, *rest)

    monkeypatch.setattr(replay, "decide", decide)
    return made


def test_whoever_finds_the_execution_locked_leaves_and_its_signal_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.submit(single())
    deciding, go_on = threading.Event(), threading.Event()

    def decide(*arguments: Any) -> Any:
        deciding.set()
        assert go_on.wait(10)
        return real_decide(*arguments)

    monkeypatch.setattr(replay, "decide", decide)
    with in_thread(world.orchestrate, execution):
        assert deciding.wait(10)
        world.do(signals.add, execution, "cancel", **AGAIN)
        assert world.orchestrate(execution) == 0, "it does not wait for the lock"
        assert world.value("SELECT count(*) FROM noetl.signal") == 2
        go_on.set()
    assert world.q("SELECT * FROM noetl.signal") == []
    assert world.settle(execution) == "CANCELLED"


def test_two_at_once_decide_each_signal_once(world: World, decisions: list[list[str]]) -> None:
    execution = world.submit(single())
    gate = threading.Barrier(3)

    def go() -> None:
        gate.wait(5)
        world.orchestrate(execution)

    with in_thread(go), in_thread(go):
        go()
    assert [kind for given in decisions for kind in given] == ["start"]
    assert world.events(execution)[:2] == ["playbook.started", "step.enter"]


def test_a_signal_of_an_open_transaction_is_decided_on_later(world: World, decisions: list[list[str]]) -> None:
    execution = world.submit(single())
    with world.process.db.begin() as connection:
        signals.add(connection, execution, "cancel", **AGAIN)
        assert world.orchestrate(execution) == 1
    world.orchestrate(execution)
    assert decisions == [["start"], ["cancel"], ["frame.done"]]


def test_after_its_passes_the_rest_is_left_to_a_fresh_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = world.submit(single())

    def decide(*arguments: Any) -> Any:
        world.do(signals.add, execution, "resume", **AGAIN)
        return real_decide(*arguments)

    monkeypatch.setattr(replay, "decide", decide)
    world.publisher.sent.clear()
    assert world.orchestrate(execution) == 3
    assert execution in world.publisher.sent
    assert world.value("SELECT count(*) FROM noetl.signal") == 1
    monkeypatch.undo()
    assert world.run(execution) == "COMPLETED"


def test_many_signals_are_taken_in_batches(world: World, decisions: list[list[str]]) -> None:
    execution = world.begin(single())
    process = world.another_process()
    process.settings = make_settings(world.settings.libpq_url, signal_batch=2)
    for _ in range(5):
        world.do(signals.add, execution, "resume", **AGAIN)
    decisions.clear()
    Onward(process, world.publisher).orchestrate(execution)
    process.close()
    assert [len(given) for given in decisions] == [2, 2, 1]


def test_a_crash_before_the_commit_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = world.submit(single())
    before = world.everything()
    monkeypatch.setattr(faults, "_armed", {"orchestrate.before_commit": ("error", 1)})
    faults._visits.clear()
    with pytest.raises(faults.FaultInjected):
        world.orchestrate(execution)
    assert world.everything() == before
    assert world.run(execution) == "PENDING"
    world.orchestrate(execution)
    assert world.run(execution) == "COMPLETED"


def test_a_crash_after_the_commit_is_published_by_the_sweep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = world.submit(single())
    monkeypatch.setattr(faults, "_armed", {"orchestrate.committed": ("error", 1)})
    faults._visits.clear()
    with pytest.raises(faults.FaultInjected):
        world.orchestrate(execution)
    assert not world.publisher.sent
    world.q("UPDATE noetl.outbox SET publish_at = clock_timestamp()")
    world.sweep()
    assert world.publisher.lanes()
    assert world.run(execution) == "COMPLETED"


def test_stale_messages_and_unknown_executions_do_nothing(world: World) -> None:
    execution = world.begin(single())
    assert world.run(execution) == "COMPLETED"
    before = world.everything()
    assert world.orchestrate(execution) == 0
    assert world.orchestrate(12345) == 0
    assert world.everything() == before
    assert not world.publisher.sent


def test_signals_to_an_execution_that_has_ended_are_swallowed(world: World) -> None:
    execution = world.begin(single())
    assert world.run(execution) == "COMPLETED"
    events = world.events(execution)
    world.do(signals.add, execution, "cancel", **AGAIN)
    world.do(signals.add, execution, "frame.done", {"stage": 1, "frame": 2}, **AGAIN)
    assert world.orchestrate(execution) == 1
    assert world.q("SELECT * FROM noetl.signal") == []
    assert (world.status(execution), world.events(execution)) == ("COMPLETED", events)


def test_a_signal_that_nobody_announced_is_announced_by_the_sweep(world: World) -> None:
    execution = world.submit(single())
    world.sweep()
    assert not world.publisher.sent
    world.q("UPDATE noetl.signal SET publish_at = clock_timestamp()")
    world.sweep()
    assert list(world.publisher.sent) == [execution]
    assert world.run(execution) == "COMPLETED"


def test_a_playbook_that_cannot_be_read_here_is_left_alone(world: World) -> None:
    """A worker of another version may know it: nothing is consumed, nothing breaks."""
    execution = world.submit(single())
    world.q("UPDATE noetl.catalog SET content = replace(content, 'probe', 'unheard_of')")
    before = world.everything()
    assert world.orchestrate(execution) == 0
    assert world.everything() == before


def test_pausing_lets_running_work_end_and_starts_nothing_new(world: World, database: str) -> None:
    world.credential("src", credential_of(database))
    fill(database, 6)
    execution = world.begin(cursor())
    world.deliver()  # the first claim
    world.do(signals.add, execution, "pause", **AGAIN)
    world.orchestrate(execution)
    assert world.run(execution) == "PAUSED"
    assert len(world.probe.calls) == 3
    world.do(signals.add, execution, "resume", **AGAIN)
    world.orchestrate(execution)
    assert world.run(execution) == "COMPLETED"
    assert len(world.probe.calls) == 6


def test_cancelling_stops_rows_that_have_not_started(world: World) -> None:
    began = threading.Event()

    def act(given: Any) -> None:
        began.set()
        wait_for(lambda: world.value("SELECT status FROM noetl.execution") == "CANCELLING", "the cancel")
        time.sleep(0.05)  # a lane hears of it when it writes what it has done

    world.probe.act = act
    execution = world.begin(collection("{{ range(50) | list }}", spec="mode: parallel, max_in_flight: 2"))
    with in_thread(world.deliver):
        assert began.wait(10)
        world.do(signals.add, execution, "cancel", **AGAIN)
        world.session.execute("SELECT 1")
        other = world.another_process()
        Onward(other, world.publisher).orchestrate(execution)
        other.close()
    assert world.run(execution) == "CANCELLED"
    assert 2 <= len(world.probe.calls) < 20
    assert world.value("SELECT count(*) FROM noetl.row WHERE status = 'SKIPPED'") == 50 - len(world.probe.calls)
    assert world.events(execution)[-1] == "playbook.cancelled"


def test_a_lock_held_by_a_stranger_only_delays(world: World) -> None:
    execution = world.submit(single())
    with world.process.db.begin() as connection:
        assert executions.lock(connection, execution)()
        assert world.orchestrate(execution) == 0
    assert world.orchestrate(execution) == 1


def test_a_step_timeout_stops_the_step(world: World) -> None:
    execution = world.begin(collection("{{ [1] }}", step={"timeout": 60}))
    assert world.value("SELECT count(*) FROM noetl.signal WHERE type = 'stage.timeout'") == 1
    world.q("UPDATE noetl.signal SET due_at = clock_timestamp()")
    world.orchestrate(execution)
    assert world.run(execution) == "FAILED"
    assert world.value("SELECT error FROM noetl.execution")["kind"] == "timeout"
    assert world.probe.calls == []
