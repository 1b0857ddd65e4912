"""Databases of playbooks that go away, say nothing or take no writes: callers learn it soon, the next is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from proxy import Proxy, proxied
from world import in_thread, wait_for

from noetl_celery import session
from noetl_celery.errors import ToolError
from noetl_celery.outcome import Outcome
from noetl_celery.tools import pg
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.postgres import PostgresTool

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(pg, "RECONNECT_SECONDS", 0.2)


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with proxied(database) as made:
        yield made
        pg.close_all()


def run(proxy: Proxy, command: str, **config: Any) -> Outcome:
    call = ToolCall({"auth": "x", "command": command, **config}, {}, lambda name: {"dsn": proxy.url}, print, {})
    return run_tool(PostgresTool(), call)


def test_a_server_that_is_gone_is_told_although_the_pool_is_not_empty(proxy: Proxy) -> None:
    """The pool would try again behind our back, with longer and longer pauses."""
    patient = pg.PoolSettings(timeout=600)
    with pg.connection({"dsn": proxy.url}, patient):
        proxy.refuse()
        with pytest.raises(ToolError, match="refused") as raised, pg.connection({"dsn": proxy.url}, patient):
            pass
        assert raised.value.info.retryable
        with in_thread(wait_and_borrow, proxy, patient):
            proxy.listen()


def wait_and_borrow(proxy: Proxy, patient: pg.PoolSettings) -> None:
    def served() -> bool:
        try:
            with pg.connection({"dsn": proxy.url}, patient) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except ToolError:
            return False

    wait_for(served, "the pool has a connection again")


def test_a_task_ends_with_its_time_although_the_server_says_nothing(proxy: Proxy) -> None:
    assert run(proxy, "SELECT 1").ok
    proxy.silent = True
    outcome = run(proxy, "SELECT 2", timeout=0.3)
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("connection", True)
    assert "has said nothing" in outcome.error.message
    proxy.silent = False
    assert run(proxy, "SELECT 3", timeout=10).ok


def test_a_connection_to_a_server_without_writes_is_not_kept(proxy: Proxy, database: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        outcome = run(proxy, "CREATE TABLE public.t ()")
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retryable) == ("25006", True)
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert run(proxy, "CREATE TABLE public.t ()").ok, "the next one has another session"
