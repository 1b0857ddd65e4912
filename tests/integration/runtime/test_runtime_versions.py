"""Workers of two versions on one database: each does what it understands, and leaves the rest to the other."""

from __future__ import annotations

import logging

import psycopg
import pytest
from cases import collection, cursor, fill, single
from services import credential_of
from world import World

from noetl_celery.engine.state import STATE_VERSION
from noetl_celery.ids import new_id
from noetl_celery.store import runs

pytestmark = pytest.mark.integration


def rewrite(world: World, table: str, column: str, change: str) -> None:
    world.q(f"UPDATE noetl.{table} SET {column} = (({column}::jsonb) || '{change}')::json WHERE {column} IS NOT NULL")


def test_an_execution_of_a_later_version_is_left_for_who_knows_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    execution = world.begin(single())
    world.run(execution, messages=1)
    rewrite(world, "execution", "state", f'{{"version": {STATE_VERSION + 1}}}')
    before = world.everything()
    with caplog.at_level(logging.ERROR):
        world.run(execution)
    assert world.everything() == before
    assert f"execution {execution} cannot be decided here: its state has version {STATE_VERSION + 1}" in caplog.text
    rewrite(world, "execution", "state", f'{{"version": {STATE_VERSION}}}')
    world.q("UPDATE noetl.signal SET publish_at = clock_timestamp()")
    assert world.settle(execution) == "COMPLETED"


def test_keys_that_a_later_version_adds_do_no_harm(world: World) -> None:
    """In states, settings of loops and positions of parked rows."""
    execution = world.begin(collection("{{ range(3) | list }}", spec="mode: sequential"))
    rewrite(world, "execution", "state", '{"unheard_of": 1}')
    rewrite(world, "stage", "settings", '{"unheard_of": 1}')
    world.q("UPDATE noetl.row SET position = %s::json", '{"task": 0, "unheard_of": 1}')
    assert world.settle(execution) == "COMPLETED"
    assert len(world.probe.calls) == 3


@pytest.mark.parametrize(("begun", "again"), [("{}", 0), ("{1}", 1), (None, 2)], ids=["none", "one", "unknown"])
def test_rows_of_a_worker_that_does_not_say_what_has_begun_are_suspects(
    begun: str | None, again: int, world: World
) -> None:
    """It was of the version before: what it held may have begun, and counts as run again."""
    execution = world.begin(collection("{{ range(2) | list }}"))
    frame, run = world.one_frame(execution), new_id()
    assert world.do(runs.start_lane, run, 1, frame, 0, lease=60.0, heartbeat=5.0)
    world.q("UPDATE noetl.row SET status = 'TAKEN', taken_by = %s, lane = 0", run)
    world.q("UPDATE noetl.run SET begun = %s, lease_until = clock_timestamp()", begun)
    world.sweep()
    assert world.value("SELECT reruns FROM noetl.frame") == again
    assert world.value("SELECT sum(crashes) FROM noetl.row") == again
    assert world.settle(execution) == "COMPLETED"
    assert len(world.probe.calls) == 2


def test_the_schema_may_move_on_under_a_worker(world: World) -> None:
    """What a later revision may add (columns that are nullable or have a default, tables, indexes) stops no worker."""
    url = world.settings.database_url
    world.credential("src", credential_of(url))
    fill(url, 30)
    execution = world.begin(cursor())
    for _ in range(6):  # until PostgreSQL keeps plans of its statements
        world.deliver()
    with psycopg.connect(world.settings.libpq_url, autocommit=True) as session:
        tables = world.column(
            "SELECT relname FROM pg_class WHERE relnamespace = 'noetl'::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition"
        )
        for table in tables:
            later = "ADD COLUMN later_a int, ADD COLUMN later_b text DEFAULT 'b' NOT NULL"
            session.execute(f"ALTER TABLE noetl.{table} {later}")
        session.execute("CREATE TABLE noetl.later (id int)")
        session.execute("CREATE INDEX later_idx ON noetl.row (later_a)")
    assert world.settle(execution) == "COMPLETED"
    assert world.value("SELECT count(*) FROM noetl.row WHERE status = 'OK'") == 30
    assert len(world.probe.calls) == 30
