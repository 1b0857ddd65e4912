"""The pulse keeps leases, whatever happens to its session; the sweep's clock is for one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from cases import collection, single
from proxy import proxied
from services import Server, make_settings
from world import World, in_thread, wait_for

from noetl_celery.runtime.pulse import Pulse
from noetl_celery.runtime.sweep import Sweeper, sweep
from noetl_celery.runtime.telling import Told
from noetl_celery.store.db import Database

pytestmark = pytest.mark.integration

WORKER, RUN = (7 << 32) + 5, 100


@pytest.fixture
def pulse(world: World) -> Iterator[Pulse]:
    made = Pulse(world.process.db, WORKER, 0.1)
    yield made
    made.stop()


def add_run(world: World, seconds: float = 0.5) -> None:
    world.q(
        "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lease_seconds, lease_until, "
        "heartbeat_seconds) VALUES (%s, %s, 1, 2, %s, clock_timestamp() + %s * interval '1 second', 60)",
        RUN,
        WORKER,
        seconds,
        seconds,
    )


def lease(world: World) -> float:
    return float(world.value("SELECT extract(epoch FROM lease_until)::float FROM noetl.run"))


def locked(world: World) -> bool:
    return bool(world.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 5"))


def test_it_registers_extends_and_leaves(world: World, pulse: Pulse) -> None:
    pulse.start()
    assert locked(world)
    add_run(world)
    before = lease(world)
    lost: list[int] = []
    pulse.hold(RUN, lease=0.5, heartbeat=60.0, lost=lambda: lost.append(1))
    wait_for(lambda: lease(world) > before + 0.3, "the lease is extended")
    pulse.drop(RUN)
    assert not lost
    pulse.stop()
    assert world.q("SELECT * FROM noetl.worker") == []
    wait_for(lambda: not locked(world), "the session's end")


def test_a_run_that_is_gone_is_told_once(world: World, pulse: Pulse) -> None:
    pulse.start()
    add_run(world)
    lost: list[int] = []
    pulse.hold(RUN, lease=0.5, heartbeat=60.0, lost=lambda: lost.append(1))
    world.q("DELETE FROM noetl.run")
    wait_for(lambda: lost, "the lane is told")
    seen = world.value("SELECT seen_at FROM noetl.worker")
    wait_for(lambda: world.value("SELECT seen_at FROM noetl.worker") > seen, "another beat")
    assert lost == [1]


def test_it_comes_back_after_its_session_was_ended(world: World, pulse: Pulse) -> None:
    pulse.start()
    add_run(world, 30.0)
    pulse.hold(RUN, lease=0.5, heartbeat=60.0, lost=lambda: None)
    world.q(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'noetl-celery pulse' "
        "AND datname = current_database()"
    )
    before = lease(world)
    wait_for(lambda: lease(world) > before and locked(world), "the pulse is back, with its lock")


def test_an_old_session_that_the_server_still_keeps_does_not_stop_it(world: World, pulse: Pulse) -> None:
    """After a cut network the server may keep the dead session, and its lock, for hours: leases go on without."""
    with psycopg.connect(world.settings.libpq_url, autocommit=True) as ghost:
        ghost.execute("SELECT pg_advisory_lock(%s)", (WORKER,))
        pulse.start()
        add_run(world)
        before = lease(world)
        pulse.hold(RUN, lease=0.5, heartbeat=60.0, lost=lambda: None)
        wait_for(lambda: lease(world) > before + 0.2, "the lease is extended")
    wait_for(lambda: locked(world), "the lock is taken once it is free")


@pytest.mark.parametrize("how", ["silent", "refuses", "read-only"])
def test_a_server_that_is_away_is_told_once_and_the_lease_goes_on(
    how: str, world: World, postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(world.settings.libpq_url)["dbname"]
    lost: list[int] = []
    with proxied(world.settings.libpq_url) as proxy:
        far = Database(make_settings(proxy.url, heartbeat_seconds=0.1, dead_after_seconds=0.3))
        pulse = Pulse(far, WORKER, 0.1)
        pulse.start()
        add_run(world, 60.0)
        pulse.hold(RUN, lease=0.5, heartbeat=60.0, lost=lambda: lost.append(1))
        if how == "silent":
            proxy.silent = True
        elif how == "refuses":
            proxy.refuse()
        else:
            postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            proxy.cut()
        wait_for(lambda: "tries again until it is back" in caplog.text, "it notices")
        asked = proxy.asked
        if how == "refuses":
            proxy.listen()
        else:
            wait_for(lambda: proxy.asked > asked, "it has tried again")
            proxy.silent = False
            postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        before = lease(world)
        wait_for(lambda: lease(world) > before and locked(world), "the lease is extended")
        wait_for(lambda: "PostgreSQL is back" in caplog.text, "it says so")
        pulse.stop()
        far.close()
    assert (caplog.text.count("tries again until it is back"), lost) == (1, [])


def test_no_server_at_all_is_waited_for(world: World) -> None:
    away = Pulse(Database(make_settings("postgresql://u@127.0.0.1:1/d")), WORKER, 0.1)
    away._ready.set()  # nobody waits for its session here
    away.start()
    away.stop()


def test_nobody_is_dead_right_after_the_server_was_away(world: World) -> None:
    """All sessions are gone, all leases old: whoever is back first waits for the others before it judges them."""
    world.process.start()
    execution = world.begin(collection("{{ [1] }}"))
    frame = world.one_frame(execution)
    other = world.another_process()  # it has not come back yet
    lane = world.taken_lane(frame, 0, other)
    assert lane is not None
    wait_for(lambda: world.process.pulse.steady(1.0), "a quiet second")
    world.q(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database()"
    )
    world.q("UPDATE noetl.run SET lease_until = clock_timestamp() - interval '1 hour'")
    wait_for(lambda: not world.process.pulse.steady(1.0), "the break is noticed")
    world.sweep()
    assert world.rows(frame) == ["TAKEN"]
    wait_for(lambda: world.process.pulse.steady(1.0), "another quiet second")
    world.sweep()
    assert world.rows(frame) == ["READY"], "that one does not come back"
    lane.close()
    other.close()


# the sweep's clock


def test_one_sweep_at_a_time_whoever_finds_it_due(world: World) -> None:
    world.process.settings = make_settings(world.settings.libpq_url, sweep_seconds=60.0)
    turns: list[bool] = []
    with in_thread(lambda: turns.append(sweep(world.process, world.publisher))):  # type: ignore[arg-type]
        turns.append(sweep(world.process, world.publisher))  # type: ignore[arg-type]
    turns.append(sweep(world.process, world.publisher))  # type: ignore[arg-type]
    assert sorted(turns) == [False, False, True]


def test_a_sweep_of_one_bad_playbook_does_not_hold_up_the_others(world: World) -> None:
    """A parked row whose playbook this process cannot read waits for another process; other rows go on."""
    frames = []
    for number in range(2):
        execution = world.begin(collection("{{ [1] }}").replace("test/case", f"test/case{number}"))
        frame = world.one_frame(execution)
        frames.append(frame)
        world.q("UPDATE noetl.row SET status = 'PARKED' WHERE frame_id = %s", frame)
        world.q("INSERT INTO noetl.wakeup (frame_id, row_index, due_at) VALUES (%s, 0, clock_timestamp())", frame)
    world.publisher.sent.clear()
    world.q("UPDATE noetl.catalog SET content = replace(content, 'probe', 'unheard_of') WHERE path = 'test/case0'")
    fresh = world.another_process()
    world.sweep(fresh)
    fresh.close()
    assert (frames[1], 0) in world.publisher.lanes()
    assert world.rows(frames[1]) == ["READY"]


def test_the_sweeper_thread_sweeps_and_stops(world: World) -> None:
    execution = world.submit(single())
    world.q("UPDATE noetl.signal SET publish_at = clock_timestamp()")
    sweeper = Sweeper(world.process, world.publisher)  # type: ignore[arg-type]
    sweeper.start()
    wait_for(lambda: execution in world.publisher.sent, "the sweep")
    sweeper.stop()


def test_a_frozen_process_loses_its_row_only_when_its_lease_is_over(world: World) -> None:
    """Its session is there, so it lives: the lease decides, and the suspects are the rows it held."""
    world.process.start()
    execution = world.begin(collection("{{ [1, 2] }}", spec="mode: parallel, max_in_flight: 2"))
    frame = world.one_frame(execution)
    frozen = world.taken_lane(frame)
    assert frozen is not None
    world.process.pulse.drop(frozen.held.run_id)
    wait_for(lambda: world.process.pulse.steady(1.0), "its own connection is no news")
    world.sweep()
    assert world.rows(frame) == ["TAKEN", "TAKEN"]
    world.q("UPDATE noetl.run SET lease_until = clock_timestamp(), begun = '{0,1}'")
    world.sweep()
    assert world.rows(frame) == ["READY", "READY"]
    assert world.column("SELECT crashes FROM noetl.row") == [1, 1]
    assert frozen.held.give_up([], Told(), 0) == []
    frozen.close()
    assert world.run(execution) == "COMPLETED"
    assert world.events(execution).count("frame.abandoned") == 1
