"""Claims elsewhere: what a crash leaves between two commits, and late runs and sweeps against the next ones."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import Any

import psycopg
import pytest
from cases import cursor, states
from services import credential_of
from tickets import Arm, frames_of, seen, ticket
from world import World, in_thread

from noetl_celery import faults
from noetl_celery.cursors.postgres import PostgresCursor
from noetl_celery.errors import ErrorInfo, LeaseLost, ToolError
from noetl_celery.runtime import claim as claim_module
from noetl_celery.runtime.settle import _resolve
from noetl_celery.store import claims

pytestmark = pytest.mark.integration


# crashes in front of and behind the source's commit


def test_a_crash_before_the_sources_commit_reopens_the_ticket(world: World, source: str, crash_at: Arm) -> None:
    execution = world.begin(cursor())
    crash_at("claim.recorded")
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])
    assert [frame["status"] for frame in frames_of(world)] == ["TENTATIVE"]
    assert states(source) == {"open": 7}
    world.sweep()
    assert frames_of(world) == []
    assert world.column("SELECT count(*) FROM noetl.row") == [0]
    assert (ticket(world)["status"], ticket(world)["attempts"]) == ("OPEN", 0)
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_a_crash_after_the_sources_commit_is_confirmed_by_the_sweep(world: World, source: str, crash_at: Arm) -> None:
    execution = world.begin(cursor())
    crash_at("claim.source_committed")
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])
    assert states(source) == {"open": 4, "claimed": 3}
    assert ticket(world)["status"] == "TAKEN"
    world.sweep()
    assert [frame["status"] for frame in frames_of(world)] == ["RUNNING"]
    assert ticket(world)["status"] == "FILLED"
    assert "frame.claimed" in world.events(execution)
    before = world.everything()
    world.sweep()
    assert world.everything() == before
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_an_open_source_transaction_is_waited_for(world: World, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = world.begin(cursor())
    recorded, go_on = threading.Event(), threading.Event()

    def pause(point: str) -> None:
        if point == "claim.recorded":
            recorded.set()
            assert go_on.wait(20)

    monkeypatch.setattr(claim_module.faults, "reached", pause)
    with in_thread(world.claim, world.publisher.claims()[0]):
        assert recorded.wait(20)
        world.q("DELETE FROM noetl.run")  # its lease is over, but it only stands still
        world.sweep()
        assert ticket(world)["status"] == "TAKEN"
        assert [frame["status"] for frame in frames_of(world)] == ["TENTATIVE"]
        go_on.set()
    # It has committed its claim but may not answer any more: that is the next sweep's, which asks the source again.
    assert ticket(world)["status"] == "TAKEN"
    assert states(source) == {"open": 4, "claimed": 3}
    monkeypatch.undo()
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_a_claim_resumed_after_its_ticket_was_given_to_another_undoes_itself(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still before it recorded anything: the source's rows go back, the other one's frame is untouched."""
    execution = world.begin(cursor())
    (claim,) = world.publisher.claims()
    real = PostgresCursor.claim
    other = world.another_process()

    def interrupted(self: PostgresCursor, request: Any, record: Any) -> Any:
        monkeypatch.setattr(PostgresCursor, "claim", real)

        def late(rows: Any, source: Any) -> None:
            world.q("DELETE FROM noetl.run")
            world.sweep(other)
            world.claim(claim, other)
            record(rows, source)

        return real(self, request, late)

    monkeypatch.setattr(PostgresCursor, "claim", interrupted)
    world.claim(claim)
    other.close()
    assert [frame["rows"] for frame in frames_of(world)] == [3]
    assert states(source) == {"open": 4, "claimed": 3}
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_a_source_that_does_not_know_its_transaction_any_more(world: World, source: str, crash_at: Arm) -> None:
    execution = world.begin(cursor())
    crash_at("claim.source_committed")
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])
    world.q("UPDATE noetl.frame SET source = jsonb_set(source::jsonb, '{system}', '\"another\"')::json")
    world.sweep()
    assert "claim.unknown" in world.events(execution)
    assert ticket(world)["status"] == "OPEN"
    assert frames_of(world) == []
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [4, 5, 6, 7], "the others come back with the playbook's own re-claim"


def test_a_transaction_id_from_the_future_is_unknown(source: str) -> None:
    with psycopg.connect(source) as connection:
        place = connection.execute(
            "SELECT current_database()::text, system_identifier::text FROM pg_control_system()"
        ).fetchone()
    assert place is not None
    recorded = {"database": place[0], "system": place[1], "xid": str(2**50)}
    assert PostgresCursor().settle(recorded, credential_of(source)) == "unknown"


def test_a_source_that_cannot_be_asked_is_asked_again(
    world: World, source: str, crash_at: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.begin(cursor())
    crash_at("claim.source_committed")
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])

    def away(*_: Any) -> Any:
        raise ToolError(ErrorInfo("connection", "the source is away", retryable=True))

    with monkeypatch.context() as patched:
        patched.setattr(PostgresCursor, "settle", away)
        world.sweep()
        assert ticket(world)["status"] == "TAKEN"
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


# sweeps and late runs against each other


def orphan(world: World, crash_at: Arm, point: str = "claim.recorded") -> dict[str, Any]:
    """A ticket whose run died; as a sweep reads it."""
    world.begin(cursor())
    crash_at(point)
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])
    world.q("DELETE FROM noetl.run")
    (found,) = world.do(claims.orphaned, limit=5)
    return dict(found)


@pytest.mark.parametrize("verdict", ["aborted", "unknown", "committed"])
def test_a_sweep_that_comes_too_late_leaves_the_next_runs_frame_alone(
    world: World, source: str, crash_at: Arm, verdict: str
) -> None:
    found = orphan(world, crash_at)
    world.sweep()
    crash_at("claim.recorded")
    with pytest.raises(faults.FaultInjected):
        world.claim(found["claim_id"])
    before = world.everything()
    with contextlib.suppress(LeaseLost):
        assert world.process.db.run(partial(_resolve, world.process, found, verdict)) == []
    assert world.everything() == before


def test_a_sweep_goes_on_after_one_that_was_quicker(
    world: World, source: str, crash_at: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = orphan(world, crash_at, "claim.source_committed")
    monkeypatch.setattr(claims, "orphaned", lambda connection, limit: [found])
    world.sweep()
    before = world.everything()
    world.sweep()
    assert world.everything() == before


@pytest.mark.parametrize("retryable", [True, False])
def test_the_late_failure_of_a_lost_run_is_not_the_next_ones(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch, retryable: bool
) -> None:
    world.begin(cursor())
    (claim,) = world.publisher.claims()

    def lose(*_: Any) -> Any:
        world.q("DELETE FROM noetl.run")
        world.q("UPDATE noetl.claim SET taken_by = 4711")
        world.q(
            "INSERT INTO noetl.run (run_id, worker_id, execution_id, claim_id, lease_seconds, lease_until, "
            "heartbeat_seconds) VALUES (4711, 1, 1, %s, 1, now(), 1)",
            claim,
        )
        raise ToolError(ErrorInfo("timeout", "canceling statement", retryable=retryable))

    monkeypatch.setattr(PostgresCursor, "claim", lose)
    world.claim(claim)
    assert (ticket(world)["status"], ticket(world)["taken_by"]) == ("TAKEN", 4711)
    assert world.column("SELECT run_id FROM noetl.run") == [4711]
