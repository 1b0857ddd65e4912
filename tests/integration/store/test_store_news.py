"""News of executions: told once the end is committed, to those who wait for it, and to nobody for a child."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from proxy import proxied
from services import make_settings
from world import World, in_thread, wait_for

from noetl_celery.store.db import Database
from noetl_celery.store.news import News, tell_end

pytestmark = pytest.mark.integration

#: longer than any test: whoever waits so long was not told
LONG = 60.0


@pytest.fixture
def news(world: World) -> Iterator[News]:
    made = News(world.process.db)
    yield made
    made.close()
    wait_for(lambda: not listening(world), "the session is closed")


def listening(world: World) -> int:
    return int(world.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'noetl-celery news'"))


def test_who_waits_is_told_at_the_commit(world: World, news: News) -> None:
    execution = world.add_execution()
    begun = time.monotonic()
    with news.of(execution) as wait, news.of(2) as other:
        wait_for(lambda: listening(world) == 1, "it listens")
        with in_thread(wait, LONG):
            world.do(tell_end, execution)
        assert time.monotonic() - begun < LONG / 2
        other(0.0)  # nothing was told to it, and it raises nothing


def test_nobody_is_told_of_a_child(world: World, news: News) -> None:
    parent = world.add_execution()
    child = world.add_execution(parent_execution_id=parent)
    with psycopg.connect(world.settings.libpq_url, autocommit=True) as session:
        session.execute("LISTEN noetl_end")
        world.do(tell_end, child)
        world.do(tell_end, parent)
        assert [notify.payload for notify in session.notifies(timeout=LONG, stop_after=1)] == [str(parent)]


def test_one_session_listens_for_all_and_none_when_nobody_waits(world: World, news: News) -> None:
    with news.of(1), news.of(2):
        wait_for(lambda: listening(world) == 1, "one listens")
    wait_for(lambda: not listening(world), "nobody waits any more")
    with news.of(1):
        wait_for(lambda: listening(world) == 1, "it listens again")


def test_a_lost_session_is_opened_again(world: World, database: str) -> None:
    execution = world.add_execution()
    with proxied(database) as proxy:
        news = News(Database(make_settings(proxy.url)))
        with news.of(execution) as wait:
            wait_for(lambda: listening(world) == 1, "it listens")
            proxy.cut()
            wait_for(lambda: not listening(world), "it is cut")
            wait_for(lambda: listening(world) == 1, "it listens again")
            with in_thread(wait, LONG):
                world.do(tell_end, execution)
        news.close()
        wait_for(lambda: not listening(world), "it has stopped")
