"""The other nouns of the store: each write twice, by somebody who may not, and beside one who holds the row."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from cryptography.fernet import Fernet
from psycopg import IntegrityError
from services import make_settings
from world import World, in_thread, wait_for

from noetl_celery.engine.decision import ClaimSpec, Closing, Decision, Event, Opening
from noetl_celery.engine.state import ExecutionState, LoopSettings
from noetl_celery.errors import InputError, LeaseLost, NotFound, ServiceError
from noetl_celery.store import catalog, claims, credentials, events, executions, outbox, runs, signals, stages
from noetl_celery.store.credentials import Vault
from noetl_celery.store.frames import NewFrame
from noetl_celery.store.frames import create as create_frame

pytestmark = pytest.mark.integration

EXECUTION, STAGE, CLAIM, RUN, OTHER, WORKER = 1, 2, 7, 100, 200, 9
AGAIN = {"republish_seconds": 30.0}
TICKET = {"claim_id": CLAIM, "stage_id": STAGE, "execution_id": EXECUTION, "frame_index": 0, "budget": 1}


# claims


def issue(world: World, status: str = "OPEN", run: int | None = None) -> None:
    world.do(claims.issue, EXECUTION, [ClaimSpec(CLAIM, STAGE, 0)], "c", republish_seconds=30.0)
    world.q("UPDATE noetl.claim SET status = %s, taken_by = %s", status, run)


def add_tentative(world: World, frame_id: int = 3) -> None:
    new = NewFrame(frame_id, STAGE, EXECUTION, 0, [1, 2], 1, 1, claim_id=CLAIM, tentative=True, source={"xid": "5"})
    world.do(create_frame, new)


def test_a_ticket_is_locked_by_one_and_the_other_leaves(world: World) -> None:
    issue(world)
    with world.process.db.begin() as connection:
        assert claims.lock_open(connection, CLAIM)
        assert world.do(claims.lock_open, CLAIM) is None
        assert world.do(claims.failing, CLAIM) is None
    assert world.do(claims.lock_open, CLAIM)
    assert world.do(claims.lock_open, 12345) is None
    with pytest.raises(IntegrityError):
        issue(world)


def test_taking_and_holding_a_ticket(world: World) -> None:
    issue(world)
    world.do(claims.take, CLAIM, RUN)
    world.do(runs.start_claim, RUN, WORKER, EXECUTION, CLAIM, lease=5.0)
    before = world.everything()
    for run in (RUN, OTHER):
        with pytest.raises(LeaseLost):
            world.do(claims.take, CLAIM, run)
    world.do(claims.hold, CLAIM, RUN)
    with pytest.raises(LeaseLost):
        world.do(claims.hold, CLAIM, OTHER)
    assert world.everything() == before
    world.do(runs.finish, RUN)  # its lease is over, though the ticket still names it
    with pytest.raises(LeaseLost):
        world.do(claims.hold, CLAIM, RUN)


def test_a_claim_run_is_started_once(world: World) -> None:
    issue(world)
    assert world.do(runs.start_claim, RUN, WORKER, EXECUTION, CLAIM, lease=5.0)
    before = world.everything()
    assert not world.do(runs.start_claim, OTHER, WORKER, EXECUTION, CLAIM, lease=5.0)
    assert world.everything() == before
    for _ in range(2):
        world.do(runs.finish, RUN)
        assert world.value("SELECT count(*) FROM noetl.run") == 0


@pytest.mark.parametrize(("status", "holder"), [("OPEN", None), ("TAKEN", RUN)])
def test_answering_twice_and_by_a_wrong_run(world: World, status: str, holder: int | None) -> None:
    issue(world, status, holder)
    world.do(outbox.add_claim, EXECUTION, STAGE, CLAIM, "q", delay_seconds=0.0)
    before = world.everything()

    def answer(run: int | None) -> None:
        world.do(claims.answer, TICKET, "EMPTY", "claim.empty", {"sole": True}, run_id=run, **AGAIN)

    for run in {None, RUN, OTHER} - {holder}:
        with pytest.raises(LeaseLost):
            answer(run)
    assert world.everything() == before
    answer(holder)
    assert world.column("SELECT data FROM noetl.signal") == [{"stage": 2, "claim": 7, "budget": 1, "sole": True}]
    assert world.q("SELECT * FROM noetl.outbox") == []
    before = world.everything()
    for run in (None, RUN, OTHER):
        with pytest.raises(LeaseLost):
            answer(run)
    assert world.everything() == before


def test_reopening_twice_and_by_a_wrong_run(world: World) -> None:
    issue(world, "TAKEN", RUN)
    assert world.do(claims.reopen, CLAIM, run_id=OTHER, failed=True) is None
    assert world.do(claims.reopen, CLAIM, run_id=None, failed=True) is None
    assert world.do(claims.reopen, CLAIM, run_id=RUN, failed=True)["attempts"] == 1
    before = world.everything()
    assert world.do(claims.reopen, CLAIM, run_id=RUN, failed=True) is None
    assert world.everything() == before
    world.q("UPDATE noetl.claim SET status = 'EMPTY'")
    assert world.do(claims.reopen, CLAIM, run_id=None, failed=False) is None


def test_tentative_frames_are_confirmed_or_forgotten_once(world: World) -> None:
    issue(world, "TAKEN", RUN)
    add_tentative(world)
    assert [found["source"] for found in world.do(claims.tentative, CLAIM)] == [{"xid": "5"}]
    (confirmed,) = world.do(claims.confirm, CLAIM)
    assert (confirmed["frame_id"], confirmed["rows"]) == (3, 2)
    before = world.everything()
    assert world.do(claims.confirm, CLAIM) == []
    world.do(claims.forget, CLAIM)
    assert world.do(claims.tentative, CLAIM) == []
    assert world.everything() == before
    add_tentative(world, 4)
    world.do(claims.forget, CLAIM)
    assert world.everything() == before


def test_orphans_are_tickets_whose_run_is_gone_and_nobody_looks_at(world: World) -> None:
    issue(world, "TAKEN", RUN)
    world.do(runs.start_claim, RUN, WORKER, EXECUTION, CLAIM, lease=5.0)
    assert world.do(claims.orphaned, limit=5) == []
    world.do(runs.finish, RUN)
    with world.process.db.begin() as connection:
        assert [found["claim_id"] for found in claims.orphaned(connection, limit=5)] == [CLAIM]
        assert world.do(claims.orphaned, limit=5) == []


def seen(world: World, *digests: int) -> Any:
    return world.do(claims.seen_before, STAGE, digests)


def add_frame(world: World, frame_id: int, digests: list[int], *, status: str = "COMPLETED", failed: int = 0) -> None:
    payloads = [{"n": digest} for digest in digests]
    world.do(create_frame, NewFrame(frame_id, STAGE, EXECUTION, frame_id, payloads, 1, 1, digests=digests))
    world.q(
        "UPDATE noetl.frame SET status = %s, failed_rows = %s,"
        " open_rows = CASE WHEN %s = 'COMPLETED' THEN 0 ELSE rows END"
        " WHERE frame_id = %s",
        status,
        failed,
        status,
        frame_id,
    )


def test_the_same_rows_three_times_in_a_row_are_noticed(world: World) -> None:
    assert seen(world, 1, 2) is None
    add_frame(world, 1, [1, 2])
    assert seen(world, 1, 2) is None
    add_frame(world, 2, [1, 2])
    assert "3 claims in a row" in seen(world, 1, 2)
    assert seen(world, 2, 1) is None


def test_a_failed_row_that_its_queue_hands_out_again_is_given_more_chances(world: World) -> None:
    for frame_id in range(1, claims.ALIKE_FAILED):
        assert seen(world, 1) is None
        add_frame(world, frame_id, [1], failed=1)
    assert f"{claims.ALIKE_FAILED} claims in a row" in seen(world, 1)


def test_a_row_that_waits_in_an_open_frame_is_noticed_at_once(world: World) -> None:
    add_frame(world, 3, [2, -(2**63)], status="RUNNING")
    assert "another open frame" in seen(world, 7, 8, -(2**63))
    assert seen(world, 1) is None
    assert world.do(claims.seen_before, STAGE + 1, [2]) is None


def test_a_row_at_work_may_have_been_given_back_by_its_own_body(world: World) -> None:
    add_frame(world, 3, [2, 5], status="RUNNING")
    world.q("UPDATE noetl.row SET status = 'TAKEN', taken_by = 1 WHERE frame_id = 3 AND row_index = 0")
    assert seen(world, 2) is None
    assert "another open frame" in seen(world, 5)


# outbox


def test_outbox_rows_are_kept_once_and_published_later_and_later(world: World) -> None:
    world.do(create_frame, NewFrame(3, STAGE, EXECUTION, 0, [0, 1], 2, 2))
    for _ in range(2):
        world.do(outbox.add_claim, EXECUTION, STAGE, CLAIM, "c", delay_seconds=0.0)
        world.do(outbox.add_lanes, EXECUTION, STAGE, 3, [0, 1], "b", delay_seconds=0.0)
    assert world.value("SELECT lane_requests FROM noetl.frame") == 2
    assert world.value("SELECT count(*) FROM noetl.outbox") == 3
    published = world.do(outbox.due, limit=10, republish_seconds=8.0)
    assert {(item.kind, item.target, item.lanes, item.queue) for item in published} == {
        ("claim", CLAIM, (), "c"),
        ("lanes", 3, (0,), "b"),
        ("lanes", 3, (1,), "b"),
    }
    assert world.do(outbox.due, limit=10, republish_seconds=8.0) == []
    for times in (1, 2, 10):
        world.q("UPDATE noetl.outbox SET publish_at = clock_timestamp(), published = %s", times)
        world.do(outbox.due, limit=10, republish_seconds=8.0)
        waits = world.column("SELECT extract(epoch FROM publish_at - clock_timestamp())::float FROM noetl.outbox")
        expected = 8.0 * 2 ** min(times, 6)
        assert all(expected - 2 < wait <= expected for wait in waits)


def test_two_sweeps_share_what_is_due(world: World) -> None:
    for claim in range(5):
        world.do(outbox.add_claim, EXECUTION, STAGE, claim, "c", delay_seconds=0.0)
    with world.process.db.begin() as connection:
        first = outbox.due(connection, limit=2, republish_seconds=8.0)
        second = world.do(outbox.due, limit=10, republish_seconds=8.0)
    assert len(first) == 2
    assert sorted(item.target for item in (*first, *second)) == list(range(5))


def test_a_lane_that_is_asked_for_again_is_published_soon_again(world: World) -> None:
    """It may have been refused often, while somebody held it: each time it was published later."""
    world.do(create_frame, NewFrame(3, STAGE, EXECUTION, 0, [0], 1, 1))
    soon = "SELECT publish_at <= clock_timestamp() + interval '10 seconds' FROM noetl.outbox"
    for delay, expected in ((600.0, False), (10.0, True), (600.0, True)):
        world.do(outbox.add_lanes, EXECUTION, STAGE, 3, [0], "b", delay_seconds=delay)
        assert world.value(soon) is expected
    assert world.value("SELECT lane_requests FROM noetl.frame") == 1


def test_taking_a_claim_from_the_outbox_twice(world: World) -> None:
    world.do(outbox.add_claim, EXECUTION, STAGE, CLAIM, "c", delay_seconds=0.0)
    for _ in range(2):
        world.do(outbox.take_claim, CLAIM)
    assert world.q("SELECT * FROM noetl.outbox") == []


@pytest.mark.parametrize("status", ["TENTATIVE", "COMPLETED"])
def test_nobody_asks_for_lanes_of_a_frame_that_is_not_at_work(world: World, status: str) -> None:
    world.do(create_frame, NewFrame(3, STAGE, EXECUTION, 0, [], 1, 1))
    world.q("UPDATE noetl.frame SET status = %s", status)
    world.do(outbox.add_lanes, EXECUTION, STAGE, 3, [0], "b", delay_seconds=0.0)
    assert world.q("SELECT * FROM noetl.outbox") == []
    assert world.value("SELECT lane_requests FROM noetl.frame") == 0


# signals


def test_signals_are_consumed_by_the_ids_that_were_read(world: World) -> None:
    for number in range(3):
        world.do(signals.add, EXECUTION, "resume", {"n": number}, **AGAIN)
    inbox = world.do(signals.read, EXECUTION, 2)()
    assert [signal.data for signal in inbox.signals] == [{"n": 0}, {"n": 1}]
    for _ in range(2):
        world.do(executions.save, ExecutionState(EXECUTION), Decision(), inbox.ids)
        assert world.column("SELECT data FROM noetl.signal") == [{"n": 2}]
    assert world.do(signals.pending, EXECUTION)()
    assert not world.do(signals.pending, EXECUTION + 1)()


def test_a_signal_that_commits_out_of_order_is_not_lost(world: World) -> None:
    """A lower id that becomes visible after a higher one was consumed is still there."""
    with psycopg.connect(world.settings.libpq_url) as slow:
        slow.execute("INSERT INTO noetl.signal (execution_id, type, data) VALUES (1, 'cancel', '{}')")
        world.do(signals.add, EXECUTION, "resume", **AGAIN)
        inbox = world.do(signals.read, EXECUTION, 10)()
        world.do(executions.save, ExecutionState(EXECUTION), Decision(), inbox.ids)
        assert not world.do(signals.pending, EXECUTION)()
    assert world.do(signals.pending, EXECUTION)()
    assert [signal.type for signal in world.do(signals.read, EXECUTION, 10)().signals] == ["cancel"]


def test_timers_wait_and_unread_signals_are_announced_again(world: World) -> None:
    world.do(signals.add, EXECUTION, "stage.timeout", {"stage": 1}, republish_seconds=0.0, delay_seconds=60.0)
    world.do(signals.add, EXECUTION + 1, "start", republish_seconds=0.0)
    world.do(signals.add, EXECUTION + 1, "resume", republish_seconds=0.0)
    assert not world.do(signals.pending, EXECUTION)()
    assert world.do(signals.unread, limit=10, republish_seconds=8.0) == [EXECUTION + 1]
    assert world.do(signals.unread, limit=10, republish_seconds=8.0) == []


# executions, stages, events


def test_submitting_twice_is_one_execution(world: World) -> None:
    for number in range(2):
        submit = lambda: world.do(executions.submit, EXECUTION, 1, "p", {"a": 1}, **AGAIN)  # noqa: E731
        if number:
            with pytest.raises(IntegrityError):
                submit()
        else:
            submit()
    assert world.value("SELECT count(*) FROM noetl.signal") == 1
    assert world.status(EXECUTION) == "PENDING"


def test_the_lock_is_one_holders_and_hinders_nobody_else(world: World) -> None:
    world.do(executions.submit, EXECUTION, 1, "p", {}, **AGAIN)
    with world.process.db.begin() as connection:
        assert executions.lock(connection, EXECUTION)()
        assert world.do(executions.lock, EXECUTION)() is None
        world.do(signals.add, EXECUTION, "cancel", **AGAIN)
    assert world.do(executions.lock, EXECUTION)()
    assert world.do(executions.lock, 12345)() is None


def test_saving_twice(world: World) -> None:
    world.do(executions.submit, EXECUTION, 1, "p", {}, **AGAIN)
    _, state = world.do(executions.lock, EXECUTION)()
    state.status, state.ctx = "COMPLETED", {"a": 1}
    for _ in range(2):
        world.do(executions.save, state, Decision(ctx_changed=True), ())
        assert world.q("SELECT status, ctx, finished_at IS NOT NULL AS done FROM noetl.execution") == [
            {"status": "COMPLETED", "ctx": {"a": 1}, "done": True}
        ]
    state.ctx = {"a": 2}
    world.do(executions.save, state, Decision(), ())
    assert world.value("SELECT ctx FROM noetl.execution") == {"a": 1}


def test_a_stage_closes_once(world: World) -> None:
    opening = Opening(STAGE, "s", 1, "single", LoopSettings(), None, None)
    world.do(stages.open_stages, EXECUTION, [opening])
    with pytest.raises(IntegrityError):
        world.do(stages.open_stages, EXECUTION, [opening])
    world.do(stages.close_stages, [Closing(STAGE, "s", "COMPLETED", None)])
    before = world.everything()
    world.do(stages.close_stages, [Closing(STAGE, "s", "FAILED", {"other": 1})])
    assert world.everything() == before
    assert stages_result(world) == {"s": None}, "JSON null is a result too"


def stages_result(world: World) -> dict[str, Any]:
    return dict(world.do(lambda connection: stages.Results(connection, EXECUTION, ["s"]).load(["s", "t"])))


def test_events_are_bounded(world: World) -> None:
    world.do(executions.submit, EXECUTION, 1, "p", {}, republish_seconds=30.0)
    error = {"message": "x" * 900, "data": "y" * 20_000, "list": ["z" * 20_000], "small": [1]}
    world.do(events.append, EXECUTION, [Event("a", result={"error": error}), Event("b")])
    world.do(events.append, EXECUTION, [])
    first, second = world.do(events.read, EXECUTION)
    assert len(first["result"]["error"]["message"]) == 500
    assert first["result"]["error"]["data"] == {"_truncated": True, "_size": 20_000}
    assert first["result"]["error"]["list"]["_truncated"]
    assert first["result"]["error"]["small"] == [1]
    assert [event["event_type"] for event in world.do(events.read, EXECUTION, after=first["event_id"])] == ["b"]
    assert second["event_id"] > first["event_id"]


# catalog


def test_registering_twice_makes_one_version(world: World) -> None:
    first = world.do(catalog.register, "p", "a: 1", "f1", None)
    assert first[1:] == (1, True)
    assert world.do(catalog.register, "p", "a: 1", "f1", None) == (first[0], 1, False)
    assert world.do(catalog.register, "p", "a: 2", "f2", None)[1:] == (2, True)
    assert world.do(catalog.register, "q", "a: 1", "f1", None)[1:] == (1, True)
    assert world.do(catalog.like, "folder/p") == ["p"]
    assert world.q("SELECT kind, count(*) FROM noetl.catalog GROUP BY kind") == [{"kind": "Playbook", "count": 3}]


def test_versions_of_a_path_are_made_in_turn(world: World) -> None:
    made: list[int] = []
    with world.process.db.begin() as connection:
        made.append(catalog.register(connection, "p", "a: 1", "f1", None)[1])
        with in_thread(lambda: made.append(world.do(catalog.register, "p", "a: 2", "f2", None)[1])):
            wait_for(
                lambda: world.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
                "the second one waits",
            )
            connection.commit()
    assert made == [1, 2]


# credentials


def test_a_credential_is_unreadable_in_the_database(world: World) -> None:
    world.credential("pg", {"db_user": "ada", "db_password": "hunter2-geheim"})
    world.credential("pg", {"db_user": "ada", "db_password": "hunter3-geheim"})
    everything = str(world.q("SELECT * FROM noetl.credential")).encode()
    (row,) = world.q("SELECT data FROM noetl.credential")
    for text in (b"hunter", b"geheim", b"ada"):
        assert text not in bytes(row["data"])
        assert text not in everything
    vault = Vault(world.settings)
    fields = world.do(vault.fetch, "pg")
    assert fields == {"db_user": "ada", "db_password": "hunter3-geheim", "_type": "postgres"}
    assert [set(item) for item in world.do(credentials.names)] == [{"name", "type", "created_at", "updated_at"}]
    assert [world.do(credentials.delete, "pg") for _ in range(2)] == [True, False]


def test_wrong_missing_and_unknown(world: World) -> None:
    world.credential("pg", {"db_password": "hunter2"})
    other = Vault(make_settings(world.settings.libpq_url, secret_key=Fernet.generate_key().decode()))
    with pytest.raises(ServiceError, match=r"'pg' was encrypted with another key.*NOETL_SECRET_KEY") as caught:
        world.do(other.fetch, "pg")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(NotFound, match=r"no credential 'nope'.*credential set nope"):
        world.do(other.fetch, "nope")
    with pytest.raises(InputError, match=r"need NOETL_SECRET_KEY.*generate_key"):
        Vault(make_settings(world.settings.libpq_url, secret_key=None))
