"""PostgreSQL is away, refuses work, or says nothing; workers wait, and go on when it is back."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import psycopg
import pytest
from harness import SECONDS, Trial
from nodes import Cluster, Worker, wait_for
from proxy import Proxy, proxied

from noetl_celery.settings import load
from noetl_celery.store.credentials import Vault
from noetl_celery.store.db import Database

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

#: seconds that it is away
AWAY = 10.0
#: a minute of failover
READ_ONLY = 60.0
#: what a lane and a claim say when they give up waiting, and the processes when they cannot start
TOO_LONG = ("PostgreSQL is not reachable", "PostgreSQL does not go on")


#: a silent server is given up soon
SETTINGS = {"NOETL_STATEMENT_SECONDS": "2", "NOETL_LEASE_SECONDS": "30"}


@pytest.fixture(scope="module")
def proxy(system: Cluster) -> Iterator[Proxy]:
    """The only way for workers and their tasks to PostgreSQL; tests have their own."""
    settings = load(**{name.removeprefix("NOETL_").lower(): value for name, value in own(system).items()})
    with proxied(settings.database_url) as made:
        database, vault = Database(settings), Vault(settings)
        with database.begin() as connection:
            vault.store(connection, "here", "postgres", {"dsn": made.url})
            vault.store(connection, "elsewhere", "postgres", {"dsn": f"{made.url.rpartition('/')[0]}/source"})
        database.close()
        yield made


def own(system: Cluster) -> dict[str, str]:
    return {name: value for name, value in system.env.items() if name.startswith("NOETL_")}


@pytest.fixture(scope="module")
def workers(system: Cluster, proxy: Proxy) -> list[Worker]:
    return [system.worker(name, NOETL_DATABASE_URL=proxy.url) for name in ("a", "b")]


@contextlib.contextmanager
def configured(system: Cluster, name: str, value: str) -> Iterator[None]:
    """A setting of the server, for all sessions, also those that are open."""
    system.q(f"ALTER SYSTEM SET {name} = '{value}'")
    system.q("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        system.q(f"ALTER SYSTEM RESET {name}")
        system.q("SELECT pg_reload_conf()")


def restart(system: Cluster, how: signal.Signals, *flags: str) -> None:
    """Ends the server and starts it again, with other flags if there are any."""
    child = system.services.children[0]
    assert child.program.name == "PostgreSQL"
    child.send(how)
    wait_for(lambda: not child.running, "PostgreSQL ends")
    given = child.program
    child.program = replace(given, command=[*given.command, *flags])
    child.start()
    child.program = given

    def answers() -> bool:
        try:
            psycopg.connect(system.env["NOETL_DATABASE_URL"]).close()
        except psycopg.OperationalError as error:
            return "too many clients" in str(error)
        return True

    wait_for(answers, "PostgreSQL is back")


@pytest.mark.parametrize("seconds", [pytest.param(8, id="short", marks=pytest.mark.short), SECONDS])
def test_connections_are_lost(seconds: float, system: Cluster, proxy: Proxy, workers: list[Worker]) -> None:
    """Cut by the network or the server, in a statement, at a COMMIT before or after it was done, or silent for a
    moment."""
    trial = Trial(system, f"connections cut, ended or silent, every second for {seconds:g} s")

    def silent() -> None:
        proxy.silent = True
        time.sleep(trial.random.uniform(0.1, 1.0))
        proxy.silent = False

    harms = [
        proxy.cut,
        silent,
        lambda: proxy.lose(b"COMMIT", answered=True),
        lambda: proxy.lose(b"COMMIT", answered=False),
        lambda: system.q("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"),
    ]
    for _ in trial.harm(seconds, every=1):
        trial.random.choice(harms)()
    # A statement of a task that broke at its own COMMIT is run again: nobody can know what became of it.
    trial.check(again=3 * int(seconds), allowed=TOO_LONG)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_the_server_is_restarted(how: signal.Signals, system: Cluster, workers: list[Worker]) -> None:
    name = "fast" if how == signal.SIGINT else "immediate"
    trial = Trial(system, f"PostgreSQL restarted ({name}), three times")
    trial.submit(600)
    for _ in range(3):
        before = trial.done()
        wait_for(lambda at=before: trial.done() > at + 20, "work goes on")  # type: ignore[misc]
        restart(system, how)
    trial.check(again=100, allowed=TOO_LONG)


@pytest.mark.parametrize("how", ["refuses", "silent"])
@pytest.mark.parametrize("source", ["here", "elsewhere"])
def test_it_is_away_for_a_while(how: str, source: str, system: Cluster, proxy: Proxy, workers: list[Worker]) -> None:
    """Whoever waits does not waste the processor."""
    where = "" if source == "here" else ", rows from another database"
    trial = Trial(system, f"PostgreSQL {how} for {AWAY:g} s{where}")
    trial.submit(400, source=source)
    trial.under_way()
    before = processor_seconds(workers)
    if how == "refuses":
        proxy.refuse()
        time.sleep(AWAY)
        proxy.listen()
    else:
        proxy.silent = True
        time.sleep(AWAY)
        proxy.silent = False
    used = processor_seconds(workers) - before
    assert used < AWAY / 2, f"{used:.1f} s of processor time while there was nothing to do"
    trial.check(again=40, allowed=TOO_LONG)


def processor_seconds(workers: list[Worker]) -> float:
    """What all processes of the workers have used so far."""
    used = 0.0
    for worker in workers:
        whole = psutil.Process(worker.process.pid)
        for process in (whole, *whole.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used += sum(process.cpu_times()[:2])
    return used


@pytest.mark.parametrize("source", ["here", "elsewhere"])
def test_a_minute_without_writes(source: str, system: Cluster, workers: list[Worker]) -> None:
    where = "" if source == "here" else ", rows from another database"
    trial = Trial(system, f"PostgreSQL read-only for {READ_ONLY:g} s{where}")
    trial.submit(400, source=source)
    trial.under_way()
    with configured(system, "default_transaction_read_only", "on"):
        time.sleep(READ_ONLY)
    trial.check(allowed=TOO_LONG)


def test_a_server_that_cancels_what_takes_long(system: Cluster, workers: list[Worker]) -> None:
    """Our own statements have limits of their own; those of tasks fail, and their policy has them tried again."""
    trial = Trial(system, "statement_timeout of 15 ms, lock_timeout of 1 ms")
    with configured(system, "statement_timeout", "15ms"), configured(system, "lock_timeout", "1ms"):
        for _ in trial.harm(15, every=5, path="chaos/stubborn", pause=0.01, rows=200):
            pass
    trial.check()


def test_a_server_with_too_few_connections(system: Cluster, workers: list[Worker]) -> None:
    trial = Trial(system, "max_connections of 9")
    trial.submit(400)
    trial.under_way()
    log = system.services.children[0].program.log
    assert log is not None
    restart(system, signal.SIGINT, "-c", "max_connections=9", "-c", "max_wal_senders=0")
    wait_for(lambda: log.read_text().count("too many clients") > 20, "there are too many")
    restart(system, signal.SIGINT)
    trial.check(again=100, allowed=TOO_LONG)
