"""Events by week: there is always a place for the next one, old ones move over, and nobody looks at weeks in vain."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from services import make_settings
from world import World

from noetl_celery.engine.decision import Event
from noetl_celery.store import events, migrate, partitions
from noetl_celery.store.db import Database

pytestmark = pytest.mark.integration

WEEK = timedelta(weeks=1)


def monday(time: datetime) -> datetime:
    day = time.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def weeks(world: World) -> list[str]:
    """The partitions for what is still to come, in order."""
    return world.column(
        "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r' "
        r"AND relname ~ '^event_\d+w\d+$' ORDER BY relname"
    )


def now(world: World) -> datetime:
    time = world.value("SELECT clock_timestamp()")
    assert isinstance(time, datetime)
    return time


def names(first: datetime, number: int) -> list[str]:
    return [f"event_{first + index * WEEK:%Gw%V}" for index in range(number)]


def test_the_schema_comes_with_eight_weeks(world: World) -> None:
    assert weeks(world) == names(monday(now(world)) + WEEK, 8)
    assert world.do(partitions.make) == 0


def test_missing_weeks_are_made_once_however_many_try(world: World) -> None:
    expected = weeks(world)
    for name in expected[3:]:
        world.q(f"DROP TABLE noetl.{name}")
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(world.do(partitions.make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [0, 0, 0, 5]
    assert weeks(world) == expected
    assert world.do(partitions.make) == 0


def test_making_weeks_waits_for_no_writer(world: World) -> None:
    world.q(f"DROP TABLE noetl.{weeks(world)[-1]}")
    with psycopg.connect(world.settings.libpq_url) as writer:
        writer.execute("INSERT INTO noetl.event (execution_id, event_type) VALUES (1, 'test')")
        assert world.do(partitions.make) == 1


def test_an_event_without_a_place_gets_one(world: World) -> None:
    """Nobody has made weeks for long: the transaction is run again after it."""
    for name in world.column("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"):
        world.q(f"DROP TABLE noetl.{name}")
    execution = world.add_execution()
    with pytest.raises(psycopg.errors.CheckViolation) as caught, world.process.db.begin() as connection:
        events.append(connection, execution, [Event("test", "OK")])
    assert partitions.lacking(caught.value)
    world.process.db.run(lambda connection: events.append(connection, execution, [Event("test", "OK")]))
    assert world.events(execution) == ["test"]
    assert weeks(world)[0] == names(monday(now(world)), 1)[0]


def test_a_violated_check_is_no_missing_week(world: World) -> None:
    execution = world.add_execution()
    with pytest.raises(psycopg.errors.CheckViolation) as caught, world.process.db.begin() as connection:
        connection.execute("UPDATE noetl.execution SET status = 'LOST' WHERE execution_id = %s", (execution,))
    assert not partitions.lacking(caught.value)


def test_the_sweep_makes_them(world: World) -> None:
    world.q(f"DROP TABLE noetl.{weeks(world)[-1]}")
    world.sweep()
    assert len(weeks(world)) == 8


def test_events_move_over_and_back(empty_database: str) -> None:
    """Those of the plain table are there after the change and after its undoing, and no id comes twice."""
    settings = make_settings(empty_database)
    migrate.upgrade(settings, "0005")
    with psycopg.connect(settings.libpq_url, autocommit=True) as session:

        def write(count: int) -> None:
            session.execute(
                "INSERT INTO noetl.event (execution_id, event_type, result) SELECT 7, 'test', '{\"n\": 1}' "
                "FROM generate_series(1, %s)",
                (count,),
            )

        def content() -> list[Any]:
            return session.execute("SELECT * FROM noetl.event ORDER BY event_id").fetchall()

        session.execute(
            "INSERT INTO noetl.execution (execution_id, catalog_id, path, status, workload, ctx, state) "
            "VALUES (7, 1, 'p', 'RUNNING', '{}', '{}', '{}')"
        )
        write(100)
        session.execute("UPDATE noetl.event SET created_at = created_at - interval '40 days' WHERE event_id <= 50")
        before = content()
        assert migrate.upgrade(settings) == migrate.head()
        assert content() == before
        write(10)
        with session.transaction():  # ids that nobody will ever see are used as well
            write(5)
            raise psycopg.Rollback
        between = content()
        assert [row[0] for row in between] == list(range(1, 111))
        database = Database(settings)
        try:
            found = database.run(lambda connection: events.read(connection, 7))
        finally:
            database.close()
        assert [event["event_id"] for event in found] == list(range(51, 111)), "only since the execution was submitted"
        assert migrate.downgrade(settings, "0005") == "0005"
        assert content() == between
        write(1)
        assert content()[-1][0] == 116
        assert session.execute("SELECT relkind FROM pg_class WHERE oid = 'noetl.event'::regclass").fetchone() == ("r",)
        assert migrate.upgrade(settings) == migrate.head()
        assert len(content()) == 111


def plan(connection: Any, statement: str, **values: Any) -> str:
    return "\n".join(line for (line,) in connection.execute(f"EXPLAIN (ANALYZE, TIMING off) {statement}", values))


@pytest.fixture
def many_weeks(world: World) -> World:
    """A year of events that nobody pruned."""
    (old,) = world.column("SELECT relname FROM pg_class WHERE relname ~ '^event_before.*[0-9]$' AND relkind = 'r'")
    world.q(f"DROP TABLE noetl.{old}")
    first = monday(now(world))
    for index in range(52):
        world.q(
            f"CREATE TABLE noetl.event_{first - index * WEEK:%Gw%V} PARTITION OF noetl.event "
            f"FOR VALUES FROM ('{first - index * WEEK}') TO ('{first - (index - 1) * WEEK}')"
        )
    return world


def test_reading_touches_no_week_before_the_execution(many_weeks: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = many_weeks
    execution = world.add_execution()
    world.do(events.append, execution, [Event("step.enter", "OK", "s", 5)])
    plans: list[str] = []

    def explained(connection: Any, statement: str, **values: Any) -> Any:
        plans.append(plan(connection, statement, **values))
        return connection.execute(statement, values)

    monkeypatch.setattr(events, "every", explained)
    monkeypatch.setattr(events, "execute", lambda c, statement, **v: plans.append(plan(c, statement, **v)))
    world.do(events.read, execution)
    world.do(events.append, execution, [Event("step.exit", "OK", "s", 5, parent="step.enter")])
    world.do(events.append, execution, [Event("frame.done", "OK", "s", 5)])
    for looked in plans[:2]:
        assert looked.count("never executed") >= 51, looked
    assert "event_20" not in plans[2], "an event without a parent concerns no other week"


def test_a_parent_of_weeks_ago_is_found(many_weeks: World) -> None:
    """An execution that was submitted three weeks ago: what it did then is still its story."""
    world = many_weeks
    execution = world.add_execution(created_at=now(world) - 3 * WEEK)
    world.do(events.append, execution, [Event("step.enter", "OK", "s", 5)])
    world.q("UPDATE noetl.event SET created_at = created_at - interval '2 weeks' WHERE execution_id = %s", execution)
    world.do(events.append, execution, [Event("step.exit", "OK", "s", 5, parent="step.enter")])
    entered, left = world.q("SELECT * FROM noetl.event WHERE execution_id = %s ORDER BY event_id", execution)
    assert left["parent_event_id"] == entered["event_id"]
    assert [event["event_type"] for event in world.do(events.read, execution)] == ["step.enter", "step.exit"]


def test_settings_of_another_time_zone_make_the_same_weeks(world: World) -> None:
    expected = weeks(world)
    world.q(f"DROP TABLE noetl.{expected[-1]}")
    with world.process.db.begin() as connection:
        connection.execute("SET LOCAL TimeZone = 'Pacific/Auckland'")
        connection.execute("SET LOCAL DateStyle = 'German'")
        assert partitions.make(connection) == 1
    assert weeks(world) == expected
    assert world.do(partitions.make) == 0
