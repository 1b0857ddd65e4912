"""What the sweep does when Redis was away, or has forgotten what it was sent."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from nodes import wait_for
from services import make_settings
from world import World

from noetl_celery.app import create
from noetl_celery.cli.embedded import EmbeddedServices
from noetl_celery.cli.supervisor import Child
from noetl_celery.runtime.publish import MARK, Publisher
from noetl_celery.runtime.sweep import sweep
from noetl_celery.store import executions, outbox
from noetl_celery.store.outbox import Dispatch

pytestmark = pytest.mark.integration

EXECUTION, STAGE, CLAIM, FRAME = 11, 12, 13, 14
LONG = 60.0


@pytest.fixture(scope="module")
def services() -> Iterator[EmbeddedServices]:
    with EmbeddedServices(fresh=True, postgres=False) as made:
        yield made


@pytest.fixture
def server(services: EmbeddedServices) -> Child:
    return services.children[0]


@pytest.fixture
def client(services: EmbeddedServices) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(services.broker_url or "") as made:
        wait_for(lambda: answers(made), "Redis answers")
        made.flushall()
        yield made


@pytest.fixture
def publisher(services: EmbeddedServices, client: redis.Redis) -> Publisher:
    return Publisher(create(make_settings("postgresql:///none", broker_url=services.broker_url)))


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


# -- the mark --------------------------------------------------------------------------------------------------------


def test_a_redis_that_keeps_what_it_has(publisher: Publisher) -> None:
    assert publisher.kept(LONG) is False, "nobody has left a mark yet"
    assert publisher.mark(LONG)
    assert publisher.kept(LONG) is True


def test_a_redis_that_was_emptied(publisher: Publisher, client: redis.Redis) -> None:
    publisher.mark(LONG)
    client.flushall()
    assert publisher.kept(LONG) is False


def test_a_redis_that_was_restarted_is_away_and_then_not_trusted(
    publisher: Publisher, client: redis.Redis, server: Child
) -> None:
    """Also with its mark: it may come back with older data than it had, and so may a replica that takes over."""
    publisher.mark(LONG)
    before = client.get(MARK)
    server.kill()
    assert publisher.kept(LONG) is None
    assert not publisher.mark(LONG)
    server.start()
    wait_for(lambda: answers(client), "Redis answers")
    client.set(MARK, before or b"")
    assert publisher.kept(LONG) is False
    publisher.mark(LONG)
    assert publisher.kept(LONG) is True


def test_a_redis_that_nobody_could_reach_for_a_while(publisher: Publisher, client: redis.Redis) -> None:
    publisher.mark(LONG)
    assert publisher.kept(0.05) is True, "whoever looks says for how long that holds"
    wait_for(lambda: client.get(MARK) is None, "the mark is over")
    assert publisher.kept(LONG) is False


def test_results_of_their_own_that_were_emptied(
    services: EmbeddedServices, client: redis.Redis, publisher: Publisher
) -> None:
    """A chord's counters are gone with them: the signal that its callback would have told is told again at once."""
    other = (services.broker_url or "").removesuffix("/0") + "/1"
    both = Publisher(
        create(make_settings("postgresql:///none", broker_url=services.broker_url, result_backend_url=other))
    )
    both.mark(LONG)
    with redis.Redis.from_url(other) as results:
        results.flushdb()
    assert publisher.kept(LONG) is True
    assert both.kept(LONG) is False


def test_a_lane_that_ends_while_redis_is_away_has_not_failed(services: EmbeddedServices, server: Child) -> None:
    app = create(make_settings("postgresql:///none", broker_url=services.broker_url))
    server.kill()
    try:
        app.backend.mark_as_done("a task", None)
    finally:
        server.start()


# -- what is sent again ----------------------------------------------------------------------------------------------


def late(world: World) -> None:
    """A claim and a lane that were sent for the sixth time, and an unread signal: the next time is minutes away."""
    world.do(outbox.add_claim, EXECUTION, STAGE, CLAIM, "c", delay_seconds=300.0)
    world.q(
        "INSERT INTO noetl.frame (frame_id, stage_id, execution_id, status, frame_index) "
        "VALUES (%s, %s, %s, 'RUNNING', 0)",
        FRAME,
        STAGE,
        EXECUTION,
    )
    world.do(outbox.add_lanes, EXECUTION, STAGE, FRAME, [0], "b", delay_seconds=300.0)
    world.do(executions.submit, EXECUTION, 1, "p", {}, republish_seconds=300.0)
    for table in ("outbox", "signal"):
        world.q(f"UPDATE noetl.{table} SET published = 6")


def sent(world: World) -> list[Dispatch | int]:
    """What one sweep sends."""
    world.publisher.sent.clear()
    world.q("UPDATE noetl.sweep SET due_at = clock_timestamp()")
    assert sweep(world.process, world.publisher)
    return list(world.publisher.sent)


EVERYTHING = [
    Dispatch("claim", EXECUTION, STAGE, CLAIM, queue="c"),
    Dispatch("lanes", EXECUTION, STAGE, FRAME, (0,), "b"),
]


def test_all_that_waits_is_sent_once_more_if_redis_has_lost_it(world: World) -> None:
    late(world)
    assert sent(world) == []
    world.publisher.keeps = False
    assert sorted(sent(world), key=str) == sorted([*EVERYTHING, EXECUTION], key=str)
    world.publisher.keeps = True
    assert sent(world) == []
    waits = world.column(
        "SELECT extract(epoch FROM publish_at - clock_timestamp()) / %s FROM noetl.outbox",
        world.settings.republish_seconds,
    )
    assert all(0.5 < wait <= 1 for wait in waits), "the distances begin anew"


def test_while_redis_is_away_nothing_counts_as_sent(world: World) -> None:
    late(world)
    world.q("UPDATE noetl.outbox SET publish_at = clock_timestamp(), published = 0")
    world.publisher.keeps = None
    assert sent(world) == []
    assert world.column("SELECT DISTINCT published FROM noetl.outbox") == [0]


def test_what_could_not_be_sent_is_due_again_at_once(world: World) -> None:
    """Redis went away in the middle of it."""
    late(world)
    world.q("UPDATE noetl.outbox SET publish_at = clock_timestamp()")
    world.publisher.away = True
    assert sent(world) == []
    world.publisher.away = False
    assert sorted(sent(world), key=str) == sorted([*EVERYTHING, EXECUTION], key=str)


def test_what_waits_on_purpose_goes_on_waiting(world: World) -> None:
    """A timer, and a claim that pauses before another attempt."""
    world.do(outbox.add_claim, EXECUTION, STAGE, CLAIM, "c", delay_seconds=300.0)
    world.q(
        "INSERT INTO noetl.claim (claim_id, stage_id, execution_id, status, frame_index, sole, more, attempts) "
        "VALUES (%s, %s, %s, 'OPEN', 0, true, false, 1)",
        CLAIM,
        STAGE,
        EXECUTION,
    )
    world.do(executions.submit, EXECUTION, 1, "p", {}, republish_seconds=0.0)
    world.q(
        "UPDATE noetl.signal SET due_at = due_at + interval '5 minutes', publish_at = publish_at + interval '5 minutes'"
    )
    world.publisher.keeps = False
    assert sent(world) == []
    assert world.column("SELECT published FROM noetl.signal UNION ALL SELECT published FROM noetl.outbox") == [0, 0]


def test_a_row_that_is_being_taken_holds_up_nobody(world: World) -> None:
    late(world)
    with world.process.db.begin() as connection:
        outbox.take_claim(connection, CLAIM)
        begun = time.monotonic()
        assert world.do(outbox.all_due) == 1
        assert time.monotonic() - begun < 5
