"""Many signals, frames and transactions in each other's way: whatever is undone is done again, and counts once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest
from cases import collection, cursor, fill, single, states
from families import child, looping
from proxy import Proxy, proxied
from services import credential_of, make_settings
from world import World, in_thread, wait_for

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.settings import Settings
from noetl_celery.store import signals
from noetl_celery.store.db import Connection, Database, execute

pytestmark = pytest.mark.integration

Spoil = Callable[[Connection], None]


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with proxied(database) as made:
        yield made


@pytest.fixture
def settings(proxy: Proxy) -> Settings:
    return make_settings(proxy.url, short_wait_seconds=0.0, republish_seconds=0.5, pool_size=8)


# each transaction is undone once, or its COMMIT is not answered


def throttle(world: World) -> None:
    """The probe sends each item away once, so that its row is parked."""
    seen: set[int] = set()

    def act(given: Mapping[str, Any]) -> None:
        if given["item"] not in seen:
            seen.add(given["item"])
            raise ToolError(ErrorInfo("rate_limit", "slow down", status=429, retryable=True, retry_after=0.05))

    world.probe.act = act


def claims_here(world: World, database: str, elsewhere: str) -> str:
    fill(database, 7)
    world.credential("src", credential_of(world.settings.libpq_url))
    return cursor()


def claims_elsewhere(world: World, database: str, elsewhere: str) -> str:
    fill(elsewhere, 7)
    world.credential("src", credential_of(elsewhere))
    return cursor()


def parks(world: World, database: str, elsewhere: str) -> str:
    throttle(world)
    rule = {"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 5}}
    spec = json.dumps({"policy": {"rules": [rule]}})
    playbook = collection("{{ range(5) | list }}", spec="mode: parallel, max_in_flight: 2")
    return playbook.replace('"kind": "probe"', f'"kind": "probe", "spec": {spec}')


def calls_children(world: World, database: str, elsewhere: str) -> str:
    world.register(child())
    return looping("{{ [1, 2, 3] }}")


WORKLOADS = [claims_here, claims_elsewhere, parks, calls_children]


def undone(state: str) -> Spoil:
    """A deadlock or a serialization failure, raised by the server."""

    def spoil(connection: Connection) -> None:
        execute(connection, f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'bad luck'; END $$")

    return spoil


def disturb(monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> list[str]:
    """Every transaction is spoilt in its first attempt, when all its work is done. Returns where they came from."""
    real, spoilt = Database.run, []

    def run(self: Database, work: Callable[[Connection], Any], **limits: Any) -> Any:
        first = [True]

        def unlucky(connection: Connection) -> Any:
            result = work(connection)
            if first:
                first.clear()
                spoilt.append(getattr(work, "__qualname__", repr(work)))
                spoil(connection)
            return result

        return real(self, unlucky, **limits)

    monkeypatch.setattr(Database, "run", run)
    return spoilt


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("harm", ["40P01", "lost reply"])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_every_transaction_meets_bad_luck_once(
    workload: Callable[[World, str, str], str],
    harm: str,
    together: bool,
    world: World,
    proxy: Proxy,
    database: str,
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.together = together
    playbook = workload(world, database, empty_database)
    lucky = world.begin(playbook)
    assert world.settle(lucky) == "COMPLETED"
    told, calls = family_events(world, lucky), len(world.probe.calls)
    again(workload, world, database if workload is claims_here else empty_database)

    spoilt = disturb(
        monkeypatch, undone(harm) if harm != "lost reply" else lambda _: proxy.lose(b"COMMIT", answered=True)
    )
    unlucky = world.begin(playbook)
    assert world.settle(unlucky) == "COMPLETED"
    monkeypatch.undo()
    assert len(spoilt) > 5
    if harm == "lost reply":
        assert proxy.lost > 5
    assert len(world.probe.calls) == 2 * calls, "no row was run twice"
    assert family_events(world, unlucky) == told, "nothing was told twice, and nothing left out"
    for table in ("run", "outbox", "signal", "wakeup"):
        assert world.q(f"SELECT * FROM noetl.{table}") == []


def again(workload: Callable[..., str], world: World, source: str) -> None:
    """The same rows, and the same manners, for a second execution."""
    if workload is parks:
        throttle(world)
    elif workload is not calls_children:
        assert states(source) == {"claimed": 7}
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("UPDATE public.work SET state = 'open'")


def family_events(world: World, execution: int) -> Counter[str]:
    """How often each kind of event was told of an execution and its children. How many turns they took, and how many
    of a claim's attempts failed, is chance."""
    rows = world.column(
        "SELECT event_type FROM noetl.event WHERE execution_id IN "
        "(SELECT execution_id FROM noetl.execution WHERE execution_id = %s OR parent_execution_id = %s)",
        execution,
        execution,
    )
    return Counter(kind for kind in rows if kind not in ("playbook.decided", "frame.heartbeat"))


# many at once


def test_ten_thousand_signals_are_taken_in_batches_and_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = world.begin(single())
    world.q(
        "INSERT INTO noetl.signal (execution_id, type, data, due_at, publish_at) "
        "SELECT %s, CASE n %% 2 WHEN 1 THEN 'pause' ELSE 'resume' END, '{}', clock_timestamp(), clock_timestamp() "
        "FROM generate_series(1, 10000) AS n ORDER BY n",
        execution,
    )
    sizes: list[int] = []
    real = signals.read

    def read(connection: Connection, execution_id: int, limit: int) -> Any:
        inbox = real(connection, execution_id, limit)()
        sizes.append(len(inbox.ids))
        return lambda: inbox

    monkeypatch.setattr(signals, "read", read)
    while world.value("SELECT count(*) FROM noetl.signal WHERE type IN ('pause', 'resume')"):
        world.orchestrate(execution)
    assert max(sizes) == world.settings.signal_batch
    assert sum(sizes) >= 10_000
    assert world.status(execution) == "RUNNING"
    assert world.settle(execution) == "COMPLETED"


def test_sixty_four_frames_in_flight(world: World, database: str) -> None:
    fill(database, 640)
    world.credential("src", credential_of(database))
    execution = world.begin(cursor(spec="max_in_flight: 64", frame="max_rows: 5, row_concurrency: 2"))
    lanes: list[Any] = []
    while world.publisher.sent:  # all but the lanes
        if getattr(world.publisher.sent[0], "kind", "") == "lanes":
            lanes.append(world.publisher.sent.popleft())
        else:
            world.deliver()
    assert world.value("SELECT count(*) FROM noetl.frame WHERE status = 'RUNNING'") == 64
    world.publisher.sent.extend(lanes)
    threads = [threading.Thread(target=drain, args=(world,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert world.settle(execution) == "COMPLETED"
    assert Counter(call["item"]["id"] for call in world.probe.calls) == dict.fromkeys(range(1, 641), 1)
    result = world.steps(execution)["start"]["result"]
    assert (result["processed"], result["ok"], result["frames"]) == (640, 640, 128)


def drain(world: World) -> None:
    """Delivers messages beside others that do."""
    while True:
        try:
            if not world.deliver():
                return
        except IndexError:  # another was quicker
            return


# no lock while we wait for somebody else


def in_transaction(world: World) -> list[str]:
    """What our sessions hold on to at this moment."""
    return world.column(
        "SELECT state || ': ' || query FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'noetl-celery%%' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    )


def quiet_for_a_while(world: World) -> None:
    """At some moment none of our sessions is in a transaction, and from then on none stays in one."""
    wait_for(lambda: not in_transaction(world), "no transaction is open")
    found = [set(in_transaction(world)) for _ in range(20)]
    assert not set.intersection(*found)


def test_no_transaction_is_open_while_a_body_runs(world: World) -> None:
    go, at_work = threading.Event(), threading.Event()

    def act(given: Any) -> None:
        at_work.set()
        go.wait(30)

    world.probe.act = act
    execution = world.begin(collection("{{ [1, 2] }}"))
    with in_thread(world.settle, execution):
        assert at_work.wait(10)
        quiet_for_a_while(world)
        go.set()
    assert world.status(execution) == "COMPLETED"


def test_no_transaction_is_open_while_another_database_claims(world: World, empty_database: str) -> None:
    fill(empty_database, 3)
    world.credential("src", credential_of(empty_database))
    execution = world.begin(cursor(claim="UPDATE public.work SET state = 'claimed' WHERE state = 'open' RETURNING id"))
    with psycopg.connect(empty_database) as other:
        other.execute("LOCK TABLE public.work")
        with in_thread(world.settle, execution):
            wait_for(lambda: blocked(empty_database), "the claim waits")
            quiet_for_a_while(world)
            other.rollback()
    assert world.status(execution) == "COMPLETED"


def blocked(url: str) -> bool:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        return row is not None and row[0] > 0


def test_no_transaction_is_open_while_a_message_is_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    go, sending = threading.Event(), threading.Event()
    real = world.publisher.dispatch

    def dispatch(dispatches: Any) -> bool:
        sending.set()
        go.wait(30)
        return real(dispatches)

    monkeypatch.setattr(world.publisher, "dispatch", dispatch)
    execution = world.submit(single())
    with in_thread(world.settle, execution):
        world.publisher.orchestrate(execution)
        assert sending.wait(10)
        quiet_for_a_while(world)
        go.set()
    assert world.status(execution) == "COMPLETED"
