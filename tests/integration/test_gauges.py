"""What PostgreSQL and Redis say when Prometheus asks."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
import redis
from cases import collection, cursor, fill, single
from prometheus_client.parser import text_string_to_metric_families
from services import make_settings
from world import World

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.settings import Settings
from noetl_celery.store import gauges, health
from noetl_celery.store.db import Connection, every
from noetl_celery.telemetry import CONTENT_TYPE, declared, exposition
from noetl_celery.web.app import create

pytestmark = pytest.mark.integration

NOWHERE = "redis://127.0.0.1:1/0"
WAITS = {"policy": {"rules": [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "delay": 600}}]}}


@pytest.fixture
def settings(database: str, broker: str) -> Settings:
    return make_settings(database, broker_url=broker, republish_seconds=10.0)


@pytest.fixture
def client(broker: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker) as made:
        yield made
        made.flushall()


def said(settings: Settings) -> dict[str, Any]:
    """By name: the value, or the values by label."""
    found: dict[str, Any] = {}
    text = exposition(settings).decode()
    for family in text_string_to_metric_families(text):
        metric = next(metric for metric in declared.ASKED if metric.name == family.name)
        assert (family.type, family.documentation) == ("gauge", metric.help)
        for sample in family.samples:
            assert tuple(sample.labels) == metric.labels
            if metric.labels:
                found.setdefault(family.name, {})[next(iter(sample.labels.values()))] = sample.value
            else:
                found[family.name] = sample.value
        assert text.index(f"# HELP {family.name} ") < text.index(f"# TYPE {family.name} ")
    return found


def test_an_idle_place(world: World, client: redis.Redis) -> None:
    found = said(world.settings)
    assert found.keys() == {metric.name for metric in declared.ASKED} - {"noetl_sweep_age_seconds"}
    assert found.pop("noetl_up") == {"postgresql": 1, "redis": 1}
    assert found["noetl_open_executions"].keys() == {"pending", "running", "paused", "cancelling"}
    assert found["noetl_queue_messages"].keys() == {"noetl.control", "noetl.body"}
    numbers = [
        value for values in found.values() for value in (values.values() if isinstance(values, dict) else [values])
    ]
    assert set(numbers) == {0}
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_what_is_open_is_said(world: World, client: redis.Redis) -> None:
    fill(world.settings.libpq_url, 3)
    world.credential("src", {"dsn": world.settings.libpq_url})
    world.begin(cursor())
    world.submit(single())
    lane = world.begin(collection("{{ range(5) | list }}", spec="mode: parallel, max_in_flight: 2"))
    frame = world.one_frame(lane)
    world.add_execution(status="COMPLETED", finished_at="now")
    world.add_execution(status="PAUSED")
    world.q("UPDATE noetl.signal SET due_at = now() - interval '7 s'")
    world.q(
        "INSERT INTO noetl.worker (worker_id, name, host, pid, seen_at) VALUES (1, 'w', 'h', 1, now() - interval '1 h')"
    )
    client.lpush("noetl.body", "1", "2")
    begun, go = threading.Event(), threading.Event()
    world.probe.act = lambda given: begun.set() or go.wait(20)
    thread = threading.Thread(target=world.lane, args=(frame,))
    thread.start()
    try:
        assert begun.wait(20)
        found = said(world.settings)
    finally:
        go.set()
        thread.join()
    assert found["noetl_open_executions"] == {"pending": 1, "running": 2, "paused": 1, "cancelling": 0}
    assert (found["noetl_open_frames"], found["noetl_open_rows"]) == (1, 5)
    assert found["noetl_rows_at_work"] == 2
    assert found["noetl_outbox_dispatches"] == {"noetl.control": 1, "noetl.body": 0}
    assert found["noetl_signals"] == 1
    assert 7 <= found["noetl_signals_oldest_seconds"] < 60
    assert found["noetl_worker_processes"] == {"alive": 0, "dead": 1}
    assert found["noetl_queue_messages"] == {"noetl.control": 0, "noetl.body": 2}
    assert found["noetl_leases_overdue"] == 0


def test_rows_that_wait_elsewhere_are_said(world: World) -> None:
    def act(given: Any) -> None:
        raise ToolError(ErrorInfo("busy", "not now"))

    world.probe.act = act
    execution = world.begin(single(spec=WAITS))
    world.lane(world.one_frame(execution))
    world.add_execution(parent_execution_id=execution, parent_frame_id=1, parent_row_index=0)
    assert said(world.settings)["noetl_parked_rows"] == {"time": 1, "child": 1}


@pytest.mark.parametrize("published", [0, 1, 2, 7, 8, 11])
def test_the_age_of_a_dispatch_follows_from_its_publications(world: World, published: int) -> None:
    """Each is later than the one before by twice as much, up to 64 times."""
    world.begin(single())
    asked = (
        "INSERT INTO noetl.outbox (execution_id, stage_id, claim_id, queue, publish_at) VALUES (1, 1, 1, 'q', now())"
    )
    world.q(f"DELETE FROM noetl.outbox; {asked}")
    pauses = [10, *(10 * 2 ** min(n, 6) for n in range(published))]
    since_last = 4
    world.q(
        "UPDATE noetl.outbox SET published = %s, publish_at = now() + %s * interval '1 s'",
        published,
        pauses[-1] - since_last,
    )
    found = said(world.settings)["noetl_outbox_oldest_seconds"]
    assert found["q"] == pytest.approx(sum(pauses[:-1]) + since_last, abs=3)


def test_the_last_sweep_is_said(world: World) -> None:
    world.sweep()
    world.q("UPDATE noetl.sweep SET due_at = now() - interval '30 s' WHERE name = 'sweep'")
    assert 30 <= said(world.settings)["noetl_sweep_age_seconds"] < 60


def test_who_waits_for_a_lock_is_said(world: World) -> None:
    execution = world.begin(single())
    with psycopg.connect(world.settings.libpq_url) as holder:
        holder.execute("SELECT FROM noetl.execution FOR UPDATE")
        waiter = threading.Thread(
            target=world.do,
            args=(lambda c: c.execute("SELECT FROM noetl.execution WHERE execution_id = %s FOR UPDATE", (execution,)),),
        )
        waiter.start()
        deadline = time.monotonic() + 20
        while said(world.settings)["noetl_lock_waits"] != 1:
            assert time.monotonic() < deadline
    waiter.join()
    assert said(world.settings)["noetl_lock_waits"] == 0


@pytest.mark.parametrize(
    ("url", "broker_url", "up"),
    [
        ("postgresql://nobody@127.0.0.1:1/none", None, {"postgresql": 0, "redis": 1}),
        (None, NOWHERE, {"postgresql": 1, "redis": 0}),
        ("postgresql://nobody@127.0.0.1:1/none", NOWHERE, {"postgresql": 0, "redis": 0}),
    ],
)
def test_what_is_away_is_said(settings: Settings, url: str | None, broker_url: str | None, up: dict[str, int]) -> None:
    found = said(make_settings(url or settings.database_url, broker_url=broker_url or settings.broker_url))
    assert found["noetl_up"] == up
    assert ("noetl_open_frames" in found) == bool(up["postgresql"])
    assert ("noetl_queue_messages" in found) == bool(up["redis"])


def test_a_place_without_the_schema_is_away(empty_database: str, broker: str) -> None:
    assert said(make_settings(empty_database, broker_url=broker))["noetl_up"] == {"postgresql": 0, "redis": 1}


def test_the_console_serves_it_to_whoever_has_the_token(world: World) -> None:
    app = create(world.settings, token="open-sesame")

    async def asked(**headers: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.get("/metrics", headers=headers)

    try:
        assert asyncio.run(asked()).status_code == 401
        reply = asyncio.run(asked(Authorization="Bearer open-sesame"))
    finally:
        app.state.client.close()
    assert (reply.status_code, reply.headers["content-type"]) == (200, CONTENT_TYPE)
    assert "noetl_up" in {family.name for family in text_string_to_metric_families(reply.text)}


def test_the_past_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of executions and frames that have ended there may be millions."""
    plans: list[str] = []

    def explained(connection: Connection, sql: str, **values: Any) -> list[dict[str, Any]]:
        plans.extend(line for (line,) in connection.execute(f"EXPLAIN {sql}", values))
        return every(connection, sql, **values)

    monkeypatch.setattr(gauges, "every", explained)
    monkeypatch.setattr(gauges, "one", lambda connection, sql, **values: explained(connection, sql, **values)[0])
    with health.session(world.settings) as connection:
        connection.execute("SET enable_seqscan = off")  # the tables are empty
        gauges.executions(connection)
        gauges.work(connection, sweep_seconds=1)
    text = "\n".join(plans)
    for index in ("frame_open_idx", "execution_status_idx"):
        assert index in text
    assert not re.search(r"Seq Scan on (frame|execution)", text)
