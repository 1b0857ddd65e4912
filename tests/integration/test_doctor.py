"""``doctor``: each fault is made, and named with what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
import redis
from cryptography.fernet import Fernet
from families import playbook
from services import make_settings
from world import World

from noetl_celery import __version__
from noetl_celery.cli.doctor import services, work, workers
from noetl_celery.cli.doctor.findings import Check, Finding, examine, ok
from noetl_celery.cli.doctor.place import Node, Place, visiting
from noetl_celery.errors import ServiceError
from noetl_celery.runtime.panel import key_mark
from noetl_celery.settings import Settings
from noetl_celery.store import health

pytestmark = pytest.mark.integration

CHECKS = [*services.HERE, *services.POSTGRES, *services.REDIS, *workers.WORKERS, *work.WORK]
NOWHERE = "redis://127.0.0.1:1/0"
ONE_STEP = playbook("test/doctor", "  - step: work\n    tool: {kind: probe}\n    next: []\n")
PARKING = playbook(
    "test/doctor",
    "  - step: work\n    tool: {kind: http, url: 'http://127.0.0.1:1/', spec: {policy: {rules: "
    "[{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: 600}}]}}}\n    next: []\n",
)


@pytest.fixture
def client(broker: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker) as made:
        yield made
        made.flushall()


@pytest.fixture
def place(world: World, client: redis.Redis) -> Iterator[Place]:
    """A healthy place with no worker: one database, one Redis."""
    with health.session(world.settings) as connection:
        yield Place(world.settings, connection, schema=True, redis=client)


def found(place: Place, check: str) -> list[Finding]:
    return list(examine(place, [one for one in CHECKS if one.name == check]))


def only(place: Place, check: str, level: str) -> Finding:
    findings = found(place, check)
    assert [finding.level for finding in findings] == [level], findings
    assert level == "ok" or findings[0].hint, "it says nothing about what to do"
    return findings[0]


def node(settings: Settings, *queues: str, **told: Any) -> Node:
    own = {"version": __version__, "key": key_mark(settings), "pools": []}
    sizes = {"pool_size": 4, "tool_pool_size": 16, "lease_seconds": 120.0}
    return Node(frozenset(queues or ("noetl.control", "noetl.body")), own | sizes | told)


def healthy(place: Place) -> Place:
    place.nodes = {"all@here": node(place.settings)}
    return place


def test_a_healthy_place(place: Place) -> None:
    findings = list(examine(healthy(place), CHECKS))
    assert {finding.level for finding in findings} == {"ok"}, findings
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}


# -- services that are away --------------------------------------------------------------------------------------------


def test_without_postgresql_the_rest_goes_on(broker: str) -> None:
    settings = make_settings("postgresql://u:geheim-1@127.0.0.1:1/d", broker_url=broker)
    with visiting(settings) as place:
        findings = list(examine(place, CHECKS))
    problems = [finding for finding in findings if finding.level == "problem"]
    assert [finding.check for finding in problems] == ["postgres"]
    assert "not reachable" in problems[0].message
    assert not any("geheim-1" in finding.message + finding.hint for finding in findings)
    assert [finding.level for finding in findings if finding.check in ("here", "redis", "redis memory")] == ["ok"] * 3
    skipped = [finding for finding in findings if finding.message.startswith("not checked")]
    assert {finding.check for finding in skipped} >= {"schema", "clock", "outbox", "playbooks"}


def test_without_redis_the_rest_goes_on(world: World) -> None:
    settings = world.settings.model_copy(update={"broker_url": "redis://:geheim-2@127.0.0.1:1/0"})
    with visiting(settings) as place:
        findings = list(examine(place, CHECKS))
    problems = [finding for finding in findings if finding.level == "problem"]
    assert [finding.check for finding in problems] == ["redis"]
    assert "nothing is lost" in problems[0].hint
    assert not any("geheim-2" in finding.message + finding.hint for finding in findings)
    assert [f.level for f in findings if f.check in ("postgres", "outbox", "books")] == ["ok"] * 3


def test_a_check_that_fails_holds_up_no_other(place: Place) -> None:
    def fails(place: Place) -> Iterator[Finding]:
        raise ServiceError("out of order")
        yield

    findings = list(examine(place, [Check("broken", (), fails), Check("next", (), lambda _: [ok("fine")])]))
    assert [(f.check, f.level) for f in findings] == [("broken", "problem"), ("next", "ok")]
    assert "out of order" in findings[0].message


@pytest.mark.parametrize("revision", [None, "0004", "9999"])
def test_another_revision_of_the_schema(world: World, client: redis.Redis, broker: str, revision: str | None) -> None:
    if revision is None:
        world.q("DROP SCHEMA noetl CASCADE")
    else:
        world.q("UPDATE noetl.alembic_version SET version_num = %s", revision)
    with visiting(world.settings.model_copy(update={"broker_url": broker})) as place:
        message = found(place, "schema")[0]
        assert message.level == "problem"
        assert (revision or "no schema") in message.message
        assert found(place, "outbox")[0].message == ("not checked: the schema is not at the revision of this version")
        assert found(place, "clock")[0].level == "ok"


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def test_a_database_that_takes_no_writes(world: World, client: redis.Redis) -> None:
    name = world.value("SELECT current_database()")
    world.q(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with health.session(world.settings) as connection:
        finding = only(Place(world.settings, connection, schema=True), "postgres", "problem")
    assert "takes no writes" in finding.message


@pytest.mark.parametrize(("ahead", "said"), [(3600.0, "behind"), (-3600.0, "ahead of")])
def test_clocks_that_differ(place: Place, monkeypatch: pytest.MonkeyPatch, ahead: float, said: str) -> None:
    now = time.time
    monkeypatch.setattr(services.time, "time", lambda: now() + ahead)
    message = only(place, "clock", "warning").message
    assert said in message
    assert "1 h 00 min" in message or "59 min" in message


def test_pools_that_are_too_large(world: World, place: Place) -> None:
    most = int(world.value("SHOW max_connections"))
    for number in range(3):
        world.q(
            "INSERT INTO noetl.worker (worker_id, name, host, pid) VALUES (%s, 'w', 'h', %s)", number + 1, number + 1
        )
    healthy(place)
    assert f"{3 * 9} " in only(place, "connections", "ok").message + " "
    place.nodes = {"big@here": node(place.settings, pool_size=most)}
    finding = only(place, "connections", "warning")
    assert f"up to {3 * (2 * most + 1)}" in finding.message
    assert "NOETL_POOL_SIZE" in finding.hint


def test_connections_that_are_all_in_use(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FULL", 0.0)
    assert "are in use" in only(place, "connections", "problem").message


def test_a_transaction_that_stays_open(world: World, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LONG_TRANSACTION_SECONDS", 0.0)
    with psycopg.connect(world.settings.libpq_url, application_name="sleeper") as session:
        session.execute("SELECT pg_current_xact_id()")
        pid = session.info.backend_pid
        findings = [finding for finding in found(place, "vacuum") if "sleeper" in finding.message]
    assert [finding.level for finding in findings] == ["warning"]
    assert f"pg_terminate_backend({pid})" in findings[0].hint


def test_tables_full_of_dead_rows(world: World, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "DEAD_ROWS", 10)
    world.q("ALTER TABLE noetl.signal SET (autovacuum_enabled = off)")
    world.q("INSERT INTO noetl.signal (execution_id, type, data) SELECT 1, 'x', '{}' FROM generate_series(1, 100)")
    world.q("DELETE FROM noetl.signal")
    world.q("SELECT pg_stat_force_next_flush()")
    finding = only(place, "bloat", "warning")
    assert "noetl.signal has 100 dead rows" in finding.message
    assert "VACUUM noetl.signal" in finding.hint


def test_credentials_of_another_key(world: World, place: Place) -> None:
    world.credential("readable", {"host": "h"})
    assert only(place, "credentials", "ok").message.startswith("1 ")
    other = world.settings.model_copy(
        update={
            "secret_key": make_settings(
                world.settings.database_url, secret_key=Fernet.generate_key().decode()
            ).secret_key
        }
    )
    place.settings = other
    assert "'readable'" in only(place, "credentials", "problem").message
    place.settings = world.settings.model_copy(update={"secret_key": None})
    assert "no NOETL_SECRET_KEY" in found(place, "credentials")[0].message


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "level"), [("0", "warning"), ("1gb", "problem")])
def test_a_redis_that_throws_messages_away(place: Place, client: redis.Redis, most: str, level: str) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", most)
    try:
        finding = only(place, "redis memory", level)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "0")
    assert "allkeys-lru" in finding.message
    assert "noeviction" in finding.hint


def test_a_redis_that_is_full(place: Place, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FULL", 0.0)
    client.config_set("maxmemory", "1gb")
    try:
        only(place, "redis memory", "problem")
    finally:
        client.config_set("maxmemory", "0")


def test_a_redis_that_is_a_replica(place: Place, client: redis.Redis) -> None:
    client.slaveof("127.0.0.1", 1)
    try:
        findings = found(place, "redis")
    finally:
        client.slaveof()
    assert [(f.level, "replica" in f.message) for f in findings] == [("ok", False), ("problem", True)]


def test_leases_longer_than_the_visibility_timeout(world: World, place: Place) -> None:
    place.nodes = {"long@here": node(place.settings, lease_seconds=72000.0)}
    finding = only(place, "visibility", "warning")
    assert "NOETL_LEASE_SECONDS of long@here is 72000 s" in finding.message
    place.nodes = {}
    world.q(
        "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lease_seconds, lease_until, "
        "heartbeat_seconds) VALUES (1, 1, 1, 1, 90000, now() + interval '1 h', 1)"
    )
    assert "frame under way is 90000 s" in only(place, "visibility", "warning").message


# -- workers and queues ------------------------------------------------------------------------------------------------


def test_nobody_works(world: World, place: Place) -> None:
    assert only(place, "workers", "warning").message == "no worker answers"
    world.submit(ONE_STEP)
    finding = only(place, "workers", "problem")
    assert "work waits" in finding.message
    assert "noetl-celery worker" in finding.hint


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({"version": "0.0.1"}, "warning", "is version 0.0.1"),
        ({"key": "another"}, "problem", "another NOETL_SECRET_KEY"),
        ({"key": None}, "problem", "another NOETL_SECRET_KEY"),
    ],
)
def test_a_node_that_does_not_fit(place: Place, change: dict[str, Any], level: str, said: str) -> None:
    place.nodes = {"odd@there": node(place.settings, **change)}
    findings = found(place, "workers")
    assert [finding.level for finding in findings] == ["ok", level]
    assert said in findings[1].message
    assert "odd@there" in findings[1].message


def test_a_node_with_another_clock_and_one_that_does_not_understand(place: Place) -> None:
    late = replace(node(place.settings), ahead=-3600.0)
    place.nodes = {"late@there": late, "old@there": Node(frozenset({"noetl.body"}))}
    said = {finding.message for finding in found(place, "workers") if finding.level == "warning"}
    assert said == {
        "the clock of late@there is 1 h 00 min behind ours",
        "old@there does not know this question: another version?",
    }


def test_a_queue_that_nobody_takes(world: World, place: Place, client: redis.Redis) -> None:
    place.settings = world.settings.model_copy(update={"pools": "gpu,cpu"})
    place.nodes = {"all@here": node(place.settings), "cpu@here": node(place.settings, "noetl.body.cpu")}
    finding = only(place, "queues", "warning")
    assert "noetl.body.gpu" in finding.message
    assert "-Q gpu" in finding.hint
    client.rpush("noetl.body.gpu", "message", "message")
    assert "2 messages wait for noetl.body.gpu" in only(place, "queues", "problem").message


def test_work_for_a_pool_that_no_setting_names_any_more(world: World, place: Place) -> None:
    dispatch(world, queue="noetl.body.gone")
    assert "work waits for noetl.body.gone" in only(healthy(place), "queues", "problem").message


def test_a_playbook_whose_pool_nobody_serves(world: World, place: Place) -> None:
    world.register(ONE_STEP.replace("workload:", "executor: {spec: {pool: gpu}}\nworkload:").replace("probe", "noop"))
    healthy(place).settings = world.settings.model_copy(update={"pools": "gpu"})
    assert "names the pool gpu" in found(place, "playbooks")[0].message


def test_a_dead_process_that_holds_work(world: World, place: Place) -> None:
    world.q(
        "INSERT INTO noetl.worker (worker_id, name, host, pid, seen_at) "
        "VALUES (7, 'w', 'far', 77, now() - interval '5 min')"
    )
    assert "1 have gone" in only(place, "processes", "ok").message
    world.q(
        "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lease_seconds, lease_until, "
        "heartbeat_seconds) VALUES (1, 7, 1, 1, 120, now() + interval '1 h', 1)"
    )
    findings = found(place, "processes")
    assert [finding.level for finding in findings] == ["problem", "ok"]
    assert "process 77 on far is dead" in findings[0].message
    assert findings[0].hint == "start a worker"


# -- work --------------------------------------------------------------------------------------------------------------


def dispatch(world: World, *, queue: str = "noetl.body", published: int = 0, late: int = 0) -> None:
    world.q(
        "INSERT INTO noetl.outbox (execution_id, stage_id, frame_id, queue, published, publish_at) "
        "VALUES (5, 1, 1, %s, %s, now() - %s * interval '1 second')",
        queue,
        published,
        late,
    )


def test_nobody_sweeps(world: World, place: Place) -> None:
    assert "0 executions" in only(place, "sweep", "ok").message
    world.submit(ONE_STEP)
    assert "has ever swept" in only(place, "sweep", "problem").message
    world.q("INSERT INTO noetl.sweep (name, due_at) VALUES ('sweep', now() - interval '10 min')")
    assert "has swept for 10 min" in only(place, "sweep", "problem").message
    world.sweep()
    assert "1 executions under way" in only(place, "sweep", "ok").message


@pytest.mark.parametrize("how", [{"published": 5}, {"late": 600}])
def test_dispatches_without_a_taker(world: World, place: Place, how: dict[str, int]) -> None:
    dispatch(world)
    only(place, "outbox", "ok")
    world.q("DELETE FROM noetl.outbox")
    dispatch(world, **how)
    assert "1 dispatches for noetl.body have no taker" in only(place, "outbox", "problem").message


def test_signals_that_nobody_reads(world: World, place: Place) -> None:
    execution = world.submit(ONE_STEP)
    only(place, "signals", "ok")
    world.q("UPDATE noetl.signal SET due_at = now() - interval '10 min'")
    assert f"1 signals to execution {execution} (PENDING)" in only(place, "signals", "problem").message


def test_signals_for_an_execution_that_is_not_there(world: World, place: Place) -> None:
    world.q("INSERT INTO noetl.signal (execution_id, type, data) VALUES (4711, 'cancel', '{}')")
    finding = only(place, "signals", "problem")
    assert "execution 4711, which does not exist" in finding.message
    world.q(finding.hint)
    only(place, "signals", "ok")


def test_a_lease_that_nobody_noticed(world: World, place: Place) -> None:
    world.q(
        "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lease_seconds, lease_until, "
        "heartbeat_seconds) VALUES (33, 7, 1, 1, 120, now() - interval '2 min', 1)"
    )
    assert "run 33 (execution 1) lost its lease 2 min 00 s ago" in only(place, "leases", "problem").message


def test_a_frame_of_an_execution_that_has_ended(world: World, place: Place) -> None:
    execution = world.begin(ONE_STEP)
    only(place, "books", "ok")
    world.q("UPDATE noetl.execution SET status = 'FAILED', finished_at = now() - interval '5 min'")
    messages = [finding.message for finding in found(place, "books")]
    assert {message.partition(":")[0] for message in messages} == {"noetl.frame", "noetl.stage", "noetl.outbox"}
    assert all(f"execution {execution}" in message for message in messages)


def test_a_parked_row_that_nothing_wakes(world: World, place: Place) -> None:
    execution = world.begin(PARKING)
    world.process.tools = type(world.process.tools)()
    assert world.run(execution) == "RUNNING"
    assert world.column("SELECT status FROM noetl.row") == ["PARKED"]
    only(place, "books", "ok")
    world.q("DELETE FROM noetl.wakeup")
    finding = only(place, "books", "problem")
    assert "is parked and has no wake-up" in finding.message
    world.q(finding.hint.removeprefix("wake it: "))
    only(place, "books", "ok")
    world.sweep()
    world.run(execution)
    assert world.column("SELECT retries FROM noetl.row") == [2]


def test_a_parked_row_whose_child_has_ended(world: World, place: Place) -> None:
    world.begin(PARKING)
    frame = world.value("SELECT frame_id FROM noetl.frame")
    world.q("UPDATE noetl.row SET status = 'PARKED', waits_for = 99 WHERE frame_id = %s", frame)
    assert "waits for execution 99, which has ended" in only(place, "books", "problem").message


def test_rows_and_counts_that_do_not_fit(world: World, place: Place) -> None:
    world.begin(ONE_STEP)
    world.q("UPDATE noetl.row SET status = 'TAKEN', taken_by = 12345")
    assert "1 rows at work for nobody" in only(place, "books", "problem").message
    world.q("UPDATE noetl.row SET status = 'READY', taken_by = NULL")
    only(place, "books", "ok")
    world.q("UPDATE noetl.frame SET open_rows = 5")
    assert "1 open rows, counted 5" in only(place, "books", "problem").message


def test_a_claim_that_waits_for_its_source(world: World, place: Place) -> None:
    world.begin(ONE_STEP)
    world.q("UPDATE noetl.frame SET status = 'TENTATIVE', created_at = now() - interval '1 hour'")
    assert "for its source to say" in only(place, "books", "warning").message


def test_a_playbook_that_cannot_be_compiled_here(world: World, place: Place) -> None:
    world.submit(ONE_STEP)  # its kind, probe, is known to the test's process only
    finding = only(place, "playbooks", "problem")
    assert "'test/doctor' version 1 cannot be compiled here, and an execution under way uses it" in finding.message
    world.q("UPDATE noetl.execution SET status = 'FAILED', finished_at = now()")
    assert "cannot be compiled here" in only(place, "playbooks", "warning").message
