"""Housekeeping: what ended long ago goes, whole families at a time; nothing else is touched, whenever it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from cases import collection, cursor, fill, single
from services import credential_of
from weeks import give_past, make_old, weeks
from world import World, wait_for

from noetl_celery.engine.decision import Event
from noetl_celery.errors import InputError
from noetl_celery.ids import new_id
from noetl_celery.store import events, partitions, signals
from noetl_celery.store import prune as module
from noetl_celery.store.prune import Pruned, prune

pytestmark = pytest.mark.integration

MONTH = timedelta(days=30)
#: tables with rows of executions; those of ``row`` and ``wakeup`` are found by their frames
TABLES = ("execution", "stage", "claim", "frame", "result", "log", "signal", "outbox", "run")


def pruned(world: World, older_than: timedelta = MONTH, **options: Any) -> Pruned:
    return prune(world.process.db.run, older_than, **options)


def old(world: World, *executions_: int, days: int = 40) -> None:
    make_old(world.q, executions_, days)


def member(world: World, parent: int | None = None, *, days: int = 40, status: str = "COMPLETED") -> int:
    """An execution by hand, with a stage, a frame of two rows and a claim; ``parent`` has called it."""
    execution, frame, stage, claim = new_id(), new_id(), new_id(), new_id()
    depth = (
        0 if parent is None else world.value("SELECT depth + 1 FROM noetl.execution WHERE execution_id = %s", parent)
    )
    world.q(
        "INSERT INTO noetl.execution (execution_id, parent_execution_id, depth, catalog_id, path, status, workload, "
        "ctx, state, created_at, finished_at) SELECT %s, %s, %s, 1, 'p', %s, '{}', '{}', '{}', at, "
        "CASE WHEN %s <> 'RUNNING' THEN at END FROM (SELECT clock_timestamp() - %s * interval '1 day' AS at)",
        execution, parent, depth, status, status, days,
    )  # fmt: skip
    world.q(
        "INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings) "
        "VALUES (%s, %s, 's', 1, 'cursor', 'COMPLETED', '{}')", stage, execution,
    )  # fmt: skip
    world.q(
        "INSERT INTO noetl.frame (frame_id, stage_id, execution_id, status, frame_index, rows) "
        "VALUES (%s, %s, %s, 'COMPLETED', 0, 2)", frame, stage, execution,
    )  # fmt: skip
    world.q(
        "INSERT INTO noetl.row (frame_id, row_index, status) SELECT %s, n, 'OK' FROM generate_series(0, 1) AS n", frame
    )
    world.q(
        "INSERT INTO noetl.claim (claim_id, stage_id, execution_id, status, frame_index, sole, more) "
        "VALUES (%s, %s, %s, 'EMPTY', 0, true, false)", claim, stage, execution,
    )  # fmt: skip
    world.q("INSERT INTO noetl.result (result_id, execution_id, body, bytes) VALUES (%s, %s, '1', 1)", claim, execution)
    world.q(
        "INSERT INTO noetl.log (execution_id, stage_id, frame_id, row_index, task, text, total, printed_at) "
        "VALUES (%s, %s, %s, 0, 't', 'printed', 107, clock_timestamp())", execution, stage, frame,
    )  # fmt: skip
    return execution


def here(world: World) -> set[int]:
    return set(world.column("SELECT execution_id FROM noetl.execution"))


def left(world: World, *executions_: int) -> dict[str, int]:
    """How much there is of these executions, by table."""
    ids = list(executions_)
    found = {
        table: world.value(f"SELECT count(*) FROM noetl.{table} WHERE execution_id = ANY(%s)", ids) for table in TABLES
    }
    found["row"] = world.value(
        "SELECT count(*) FROM noetl.row JOIN noetl.frame USING (frame_id) WHERE execution_id = ANY(%s)", ids
    )
    return {table: count for table, count in found.items() if count}


@pytest.fixture
def history(world: World) -> World:
    """Weeks of events for the last three months."""
    give_past(world.q, 12)
    return world


def test_what_ended_long_ago_goes_and_nothing_else(history: World) -> None:
    world = history
    url = world.settings.database_url
    world.credential("src", credential_of(url))
    fill(url, 10)
    world.probe.act = lambda given: "x" * 70_000  # results that have a place of their own
    gone = world.begin(cursor())
    large = world.begin(collection("{{ [1, 2] }}"))
    assert [world.settle(number) for number in (gone, large)] == ["COMPLETED"] * 2
    stays = [world.begin(single()), world.begin(collection("{{ [1, 2] }}"))]
    assert [world.settle(number) for number in stays] == ["COMPLETED"] * 2
    running = world.begin(single())
    old(world, gone, large)
    old(world, running)  # old, but not at its end
    world.do(signals.add, gone, "cancel", republish_seconds=1)
    there = {"execution", "stage", "claim", "frame", "row", "result", "signal"}
    assert left(world, gone, large).keys() == there
    before = {number: left(world, number) for number in (*stays, running)}
    playbooks = world.value("SELECT count(*) FROM noetl.catalog")
    counted = pruned(world, dry_run=True)
    assert left(world, gone, large)["row"] == 12
    done = pruned(world)
    assert left(world, gone, large) == {}
    assert {number: left(world, number) for number in (*stays, running)} == before
    assert world.value("SELECT count(*) FROM noetl.catalog") == playbooks
    assert world.value("SELECT count(*) FROM noetl.credential") == 1
    assert (done.executions, done.stages, done.frames, done.rows) == (2, 2, 5, 12)
    assert done.claims >= 5
    assert done.results >= 2
    assert counted == done
    assert world.settle(running) == "COMPLETED"


def test_a_family_stays_until_all_of_it_is_old(world: World) -> None:
    root = member(world)
    child = member(world, root)
    young = member(world, child, days=20)
    other = member(world, days=20)
    old_child_of_other = member(world, other)
    whole = member(world)
    of_whole = [member(world, whole), member(world, whole)]
    done = pruned(world)
    assert done.executions == 3
    assert here(world) == {root, child, young, other, old_child_of_other}
    assert left(world, whole, *of_whole) == {}
    assert pruned(world, timedelta(days=10)).executions == 5
    assert here(world) == set()
    assert world.everything()["row"] == []


def test_what_still_runs_keeps_its_family(world: World) -> None:
    root = member(world)
    child = member(world, root, status="RUNNING")
    assert pruned(world).executions == 0
    assert here(world) == {root, child}


@pytest.mark.parametrize("batch", [1, 2, 5000])
def test_batches_of_any_size_remove_the_same(batch: int, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", batch)
    monkeypatch.setattr(module, "PAGE", min(batch, 100))
    roots = [member(world) for _ in range(5)]
    for root in roots[:3]:
        member(world, member(world, root))
    stays = member(world, days=1)
    told: list[Pruned] = []
    done = pruned(world, told=told.append)
    assert (done.executions, done.stages, done.frames, done.rows, done.claims) == (11, 11, 11, 22, 11)
    assert (done.results, done.logs) == (11, 11)
    assert told[-1] == done
    assert here(world) == {stays}
    assert left(world, stays) == {"execution": 1, "stage": 1, "claim": 1, "frame": 1, "row": 2, "result": 1, "log": 1}


def test_interrupted_anywhere_it_can_be_run_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of its transactions: what is left is found again, and a family's root goes last."""
    monkeypatch.setattr(module, "BATCH", 3)
    monkeypatch.setattr(module, "PAGE", 1)
    stays = member(world, days=1)

    def prune_until(transactions: int) -> bool:
        """True if that many were enough."""
        count = 0

        def run(work: Callable[[Any], Any]) -> Any:
            nonlocal count
            if count == transactions:
                raise KeyboardInterrupt
            count += 1
            return world.process.db.run(work)

        try:
            prune(run, MONTH)
        except KeyboardInterrupt:
            return False
        return True

    transactions = 0
    while True:
        root = member(world)
        members = {root, member(world, root), member(world, member(world, root))}
        complete = prune_until(transactions)
        remaining = here(world) - {stays}
        assert not remaining or root in remaining, f"after {transactions}"
        assert not any(left(world, gone) for gone in members - remaining)
        assert pruned(world).executions == len(remaining)
        assert here(world) == {stays}
        assert world.value("SELECT count(*) FROM noetl.row") == 2
        if complete:
            break
        transactions += 1
    assert transactions > 10


def test_two_at_once_do_the_work_once(world: World) -> None:
    for _ in range(30):
        member(world, member(world))
    done: list[Pruned] = []
    threads = [threading.Thread(target=lambda: done.append(pruned(world))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert here(world) == set()
    assert sum(each.executions for each in done) == 60
    assert sum(each.rows for each in done) == 120
    assert pruned(world).executions == 0


def test_what_is_to_be_run_again_stays(world: World) -> None:
    """Somebody has just asked for it: the signal is not read yet."""
    wanted = member(world, status="FAILED")
    world.do(signals.add, wanted, "retry", republish_seconds=1)
    with world.process.db.begin() as connection:
        held = member(world)
        # Somebody decides on it.
        connection.execute("SELECT FROM noetl.execution WHERE execution_id = %s FOR NO KEY UPDATE", (held,))
        assert pruned(world).executions == 0
    assert left(world, wanted)["stage"] == 1
    assert here(world) == {wanted, held}


# -- events ------------------------------------------------------------------------------------------------------------


def test_weeks_go_when_nothing_that_stays_is_as_old(history: World) -> None:
    world = history
    before = weeks(world.q)
    for days in (85, 60, 50, 20, 1):
        execution = member(world, days=days)
        world.do(events.append, execution, [Event("test", "OK")])
        world.q(
            "UPDATE noetl.event SET created_at = created_at - %s * interval '1 day' WHERE execution_id = %s",
            days,
            execution,
        )
    assert pruned(world, timedelta(days=100)).partitions == ()
    assert weeks(world.q) == before
    would = pruned(world, timedelta(days=55), dry_run=True)
    assert weeks(world.q) == before
    done = pruned(world, timedelta(days=55))
    assert [week.name for week in would.partitions] == [week.name for week in done.partitions]
    assert all(week.bytes > 0 for week in done.partitions)
    cutoff = world.value("SELECT clock_timestamp() - interval '55 days'")
    expected = [name for name in before if name < f"event_{cutoff:%Gw%V}"]
    assert [week.name for week in done.partitions] == expected
    assert expected
    assert weeks(world.q) == [name for name in before if name not in expected]
    assert (
        world.value("SELECT count(*) FROM noetl.event WHERE created_at < clock_timestamp() - interval '70 days'") == 0
    )
    assert world.value("SELECT count(*) FROM noetl.event JOIN noetl.execution USING (execution_id)") == 3


def test_without_any_execution_the_time_decides(history: World) -> None:
    world = history
    before = weeks(world.q)
    pruned(world, MONTH)
    kept = weeks(world.q)
    cutoff = world.value("SELECT clock_timestamp() - interval '30 days'")
    assert kept == [name for name in before if name >= f"event_{cutoff:%Gw%V}"]
    assert len(kept) < len(before)
    assert world.do(partitions.make) == 0, "none for what is to come is gone"


def test_an_old_execution_that_stays_keeps_its_events(history: World) -> None:
    world = history
    running = member(world, days=80, status="RUNNING")
    world.do(events.append, running, [Event("test", "OK")])
    world.q("UPDATE noetl.event SET created_at = created_at - interval '80 days'")
    before = [
        name for name in weeks(world.q) if name >= f"event_{world.value('SELECT created_at FROM noetl.event'):%Gw%V}"
    ]
    pruned(world, timedelta(days=10))
    assert weeks(world.q) == before
    assert len(world.do(events.read, running)) == 1


def test_dropping_a_week_gives_way_to_writers(history: World) -> None:
    world = history
    result: list[Pruned] = []
    url = world.settings.libpq_url
    with psycopg.connect(url) as long, psycopg.connect(url, autocommit=True) as writer:
        long.execute("SELECT count(*) FROM noetl.event")  # a report that takes its time
        thread = threading.Thread(target=lambda: result.append(pruned(world)))
        thread.start()
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'noetl.event'::regclass"
        writer.execute("SET statement_timeout = '2s'")
        for _ in range(3):
            wait_for(lambda: world.q(waiting), "it wants to drop a week")
            writer.execute("INSERT INTO noetl.event (execution_id, event_type) VALUES (1, 'test')")
        assert thread.is_alive()
        long.rollback()
        thread.join(timeout=30)
    assert result
    assert result[0].partitions


# -- strays ------------------------------------------------------------------------------------------------------------


def test_notes_about_what_is_not_there_are_removed_by_the_sweep(world: World) -> None:
    kept = world.begin(single())
    before = world.everything()
    world.do(signals.add, 12345, "cancel", republish_seconds=0)
    world.q(
        "INSERT INTO noetl.outbox (execution_id, stage_id, frame_id, queue, publish_at) "
        "VALUES (12345, 1, 2, 'q', clock_timestamp())"
    )
    world.q("INSERT INTO noetl.wakeup (frame_id, row_index, due_at) VALUES (2, 0, clock_timestamp() + interval '1 h')")
    world.sweep()
    now = world.everything()
    assert {table: now[table] for table in ("signal", "wakeup")} == {
        table: before[table] for table in ("signal", "wakeup")
    }
    assert [line["execution_id"] for line in now["outbox"]] == [kept]
    assert world.settle(kept) == "COMPLETED"


def test_prune_removes_them_as_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    for _ in range(5):
        world.do(signals.add, 12345, "cancel", republish_seconds=0)
    assert pruned(world, dry_run=True).executions == 0
    assert world.value("SELECT count(*) FROM noetl.signal") == 5
    pruned(world)
    assert world.value("SELECT count(*) FROM noetl.signal") == 0


@pytest.mark.parametrize("days", [0, -1, 50_000])
def test_times_that_are_none_are_refused(days: int, world: World) -> None:
    execution = member(world)
    with pytest.raises(InputError, match="older_than must be more than nothing"):
        pruned(world, timedelta(days=days))
    assert here(world) == {execution}
