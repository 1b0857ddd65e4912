"""PostgreSQL is away, refuses work or says nothing: transactions wait and go on, and what was committed stays once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from proxy import Proxy, proxied
from services import Server, make_settings
from world import in_thread, wait_for

from noetl_celery.errors import Unreachable
from noetl_celery.session import Session
from noetl_celery.store import workers
from noetl_celery.store.db import Connection, Database, every, execute, one

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.counts (n int NOT NULL)")
        connection.execute("INSERT INTO public.counts VALUES (0)")
    with proxied(database) as made:
        yield made


@pytest.fixture
def db(proxy: Proxy) -> Iterator[Database]:
    made = Database(make_settings(proxy.url, statement_seconds=0.5, dead_after_seconds=1.0))
    yield made
    made.close()


class Count:
    """Work that adds one, and knows how often it was tried."""

    def __init__(self) -> None:
        self.tries = 0

    def __call__(self, connection: Connection) -> int:
        self.tries += 1
        execute(connection, "UPDATE public.counts SET n = n + 1")
        return self.tries


def counted(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT n FROM public.counts").fetchone()
        assert row is not None
        return int(row[0])


# lost connections


def test_a_commit_whose_reply_is_lost_is_not_done_again(db: Database, proxy: Proxy, database: str) -> None:
    proxy.lose(b"COMMIT", answered=True)
    work = Count()
    assert db.run(work) == 1
    assert (proxy.lost, work.tries, counted(database)) == (1, 1, 1)


def test_a_commit_that_never_came_is_done_again(db: Database, proxy: Proxy, database: str) -> None:
    proxy.lose(b"COMMIT", answered=False)
    work = Count()
    assert db.run(work) == 2
    assert (proxy.lost, work.tries, counted(database)) == (1, 2, 1)


def test_asking_what_became_of_a_commit_may_be_lost_as_well(db: Database, proxy: Proxy, database: str) -> None:
    work = Count()

    def cut(connection: Connection) -> int:
        done = work(connection)
        proxy.lose(b"COMMIT", answered=True)
        return done

    real, asked = Database.connect, []

    def connect(self: Database) -> Any:
        asked.append(1)
        if len(asked) == 2:
            proxy.lose(b"pg_xact_status", answered=True)
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "connect", connect)
        assert db.run(cut) == 1
    assert (len(asked), work.tries, counted(database)) == (3, 1, 1)


def test_a_statement_cut_in_the_middle_is_run_again(db: Database, proxy: Proxy, database: str) -> None:
    work = Count()

    def slow(connection: Connection) -> int:
        tries = work(connection)
        every(connection, "SELECT pg_sleep(%(seconds)s)::text", seconds=0.4 if tries == 1 else 0)
        return tries

    with in_thread(lambda: (wait_for(lambda: work.tries == 1, "it runs"), proxy.cut())):
        assert db.run(slow) == 2
    assert counted(database) == 1


def attempts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moments at which somebody tried to connect."""
    moments: list[float] = []
    real = Session.connect

    def connect(*args: Any, **arguments: Any) -> Any:
        moments.append(time.monotonic())
        return real(*args, **arguments)

    monkeypatch.setattr(Session, "connect", connect)
    return moments


def test_a_server_that_refuses_is_waited_for_without_haste(
    db: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(Count())
    tries = attempts(monkeypatch)
    proxy.refuse()
    with in_thread(db.run, Count()):
        wait_for(lambda: len(tries) >= 6, "it keeps trying")
        proxy.listen()
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses[4] > 4 * pauses[1] > 0, "longer and longer"


def test_it_gives_up_after_its_patience_and_says_why(db: Database, proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(Unreachable, match=r"PostgreSQL is not reachable: .*refused"):
        db.run(Count(), patience_seconds=0.2)


# a server that says nothing


def test_a_connection_that_says_nothing_is_given_up(db: Database, proxy: Proxy, database: str) -> None:
    session = db.connect_raw()
    session.silence_seconds = 0.3
    assert session.execute("SELECT 1").fetchone() == (1,)
    proxy.silent = True
    with pytest.raises(psycopg.OperationalError, match=r"has said nothing for 0\.3 s"):
        session.execute("SELECT 1")
    assert session.closed


def test_work_goes_on_once_it_speaks_again(db: Database, proxy: Proxy, database: str) -> None:
    db.run(Count())
    for connection in held(db):
        connection.silence_seconds = 0.3
    work = Count()
    asked = proxy.asked
    proxy.silent = True
    with in_thread(db.run, work):
        wait_for(lambda: proxy.asked > asked, "it asks for another connection")
        proxy.silent = False
    assert counted(database) == 2


def held(db: Database) -> list[Any]:
    """The connections that wait in the pool."""
    with db.connect() as connection:
        return [connection]


def test_a_long_answer_is_no_silence(db: Database) -> None:
    session = db.connect_raw()
    session.execute("SET statement_timeout = 0")
    session.silence_seconds = 0.3
    begun = time.monotonic()
    with session.cursor() as cursor:
        rows = cursor.stream(
            "SELECT n, CASE WHEN n % 1000 = 0 THEN pg_sleep(0.1) END FROM generate_series(1, 8000) AS n"
        )
        assert sum(1 for _ in rows) == 8000
    assert time.monotonic() - begun > 0.5
    session.close()


# a server that refuses work


def settle(server: Server, database: str, name: str, value: str) -> Callable[[], None]:
    """Sets a default of the database for sessions to come; returns what takes it back."""
    target = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    server.execute(f"ALTER DATABASE {target} SET {name} = {value}")
    return lambda: server.execute(f"ALTER DATABASE {target} RESET {name}")


def test_a_server_that_takes_no_writes_is_waited_for(db: Database, postgres: Server, database: str) -> None:
    """As in a failover: a connection to the server that takes none is not kept."""
    reset = settle(postgres, database, "default_transaction_read_only", "on")
    work = Count()
    with in_thread(db.run, work):
        wait_for(lambda: work.tries >= 2, "it was refused, and tries again")
        reset()
    assert counted(database) == 1


def test_the_roles_own_statement_timeout_is_not_ours(db: Database, postgres: Server, database: str) -> None:
    settle(postgres, database, "statement_timeout", "1")
    assert db.run(lambda connection: one(connection, "SELECT pg_sleep(0.05), 1 AS n")) is not None


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_a_statement_that_waited_too_long_is_run_again(
    setting: str, db: Database, postgres: Server, database: str
) -> None:
    if setting == "lock_timeout":  # the statement's own limit is ours: half a second
        settle(postgres, database, setting, "50")
    work = Count()
    with psycopg.connect(database) as other:
        other.execute("UPDATE public.counts SET n = n + 10")
        with in_thread(db.run, work):
            wait_for(lambda: work.tries >= 2, "it has given up once")
            other.commit()
    assert counted(database) == 11


def test_a_session_that_was_idle_in_its_transaction_for_too_long(db: Database, database: str) -> None:
    work = Count()

    def slow(connection: Connection) -> int:
        tries = work(connection)
        if tries == 1:
            every(connection, "SELECT set_config('idle_in_transaction_session_timeout', '50', true)")
            time.sleep(0.3)
        return tries

    assert db.run(slow) == 2
    assert counted(database) == 1


def test_a_server_that_is_full_is_waited_for(postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    # Superusers are let in all the same.
    postgres.execute("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    postgres.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    guest = Database(make_settings(database.replace("//noetl@", "//guest@", 1)))
    tries = attempts(monkeypatch)
    with in_thread(guest.run, lambda connection: one(connection, "SELECT 1")):
        wait_for(lambda: len(tries) >= 3, "it was refused")
        postgres.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
    guest.close()


@pytest.mark.parametrize("state", ["40001", "40P01", "57P03", "53300", "57014"])
def test_what_undoes_a_transaction_and_passes(state: str, db: Database, database: str) -> None:
    work = Count()

    def unlucky(connection: Connection) -> int:
        tries = work(connection)
        if tries < 3:
            execute(connection, f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'bad luck'; END $$")
        return tries

    assert db.run(unlucky) == 3
    assert counted(database) == 1


@pytest.mark.parametrize("state", ["42P01", "23505", "22012", "57P04", "40002"])
def test_what_does_not_pass_is_raised_at_once(state: str, db: Database) -> None:
    work = Count()

    def wrong(connection: Connection) -> None:
        work(connection)
        execute(connection, f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'wrong'; END $$")

    with pytest.raises(psycopg.Error, match="wrong"):
        db.run(wrong)
    assert work.tries == 1


def test_a_deadlock_is_resolved(db: Database, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.pair (id int PRIMARY KEY, n int NOT NULL)")
        connection.execute("INSERT INTO public.pair VALUES (1, 0), (2, 0)")
    tries: list[int] = []

    def both(first: int, second: int) -> Callable[[Connection], None]:
        def work(connection: Connection) -> None:
            execute(connection, "SET LOCAL deadlock_timeout = '50ms'")
            execute(connection, "UPDATE public.pair SET n = n + 1 WHERE id = %(id)s", id=first)
            tries.append(first)
            wait_for(lambda: len(tries) >= 2, "both are under way")
            execute(connection, "UPDATE public.pair SET n = n + 1 WHERE id = %(id)s", id=second)

        return work

    with in_thread(partial(db.run, batched=False), both(1, 2)):  # each is done when the next is sent
        db.run(both(2, 1), batched=False)
    assert len(tries) >= 3, "one of them was undone"
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT n FROM public.pair").fetchall() == [(2,), (2,)]


def test_a_pool_that_is_used_up_says_so(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_celery.store.db.POOL_SECONDS", 0.05)
    small = Database(make_settings(database, pool_size=2))
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(small.connect())
        with pytest.raises(Unreachable, match=r"all database connections of this process \(4\) are in use"):
            small.run(lambda connection: None, patience_seconds=0.1)
    small.run(lambda connection: None)
    small.close()


@pytest.mark.parametrize("where", ["in a batch", "after a batch"])
def test_a_session_that_stands_still_is_ended(
    where: str, db: Database, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own limit to idle transactions does not always count there."""
    monkeypatch.setattr(workers, "STILL_SECONDS", 0.1)
    others, work = Database(make_settings(database)), Count()

    def stopped(connection: Connection) -> int:
        with connection.batch():
            tries = work(connection)
        if tries == 1:
            wait_for(lambda: others.read(workers.end_still_sessions) == 1, "it is ended")
        return tries

    assert db.run(stopped, batched=where == "in a batch") == 2
    assert counted(database) == 1
    assert others.read(workers.end_still_sessions) == 0
    others.close()
