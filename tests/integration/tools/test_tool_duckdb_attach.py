"""duckdb with PostgreSQL attached by credential, and transfers between the two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl_celery.outcome import Outcome
from noetl_celery.tools import duckdb_extensions, duckdb_files
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.duckdb import DuckdbTool
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.transfer import TransferTool

pytestmark = pytest.mark.skipif(
    duckdb_extensions.bundled("postgres") is None, reason="duckdb-extension-postgres-scanner is not installed"
)

Connection = psycopg.Connection[Any]
Run = Callable[..., Outcome]
AUTH = {"pg_db": {"source": "credential", "tool": "postgres", "key": "pg_local"}}


@pytest.fixture
def run(credential: dict[str, Any], tmp_path: Path) -> Iterator[Run]:
    """Runs a task of kind duckdb, or of kind transfer if it has a source."""
    before = limits()
    set_limits(Limits(duckdb_dir=tmp_path))

    def call(query: str | None = None, *, password: str | None = None, **config: Any) -> Outcome:
        fields = credential if password is None else {**credential, "db_password": password, "db_host": "127.0.0.1"}
        tool = TransferTool() if "source" in config else DuckdbTool()
        whole = {"query": query, **config} if query is not None else config
        assert not tool.check(whole)
        return run_tool(tool, ToolCall(whole, {}, {"pg_local": fields}.__getitem__, print, {"execution_id": "7"}))

    yield call
    set_limits(before)


@pytest.fixture
def work(admin: Connection) -> Iterator[Connection]:
    """A table ``public.work`` with three rows."""
    admin.execute("CREATE TABLE public.work (id int PRIMARY KEY, note jsonb, price numeric(8, 2), at timestamptz)")
    admin.execute(
        "INSERT INTO public.work SELECT n, jsonb_build_object('n', n), n / 4.0, now() FROM generate_series(1, 3) n"
    )
    yield admin
    admin.execute("DROP TABLE public.work")


def ok(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


@pytest.mark.parametrize("database", [None, ":memory:"])
@pytest.mark.parametrize(
    ("auth", "script"),
    [
        (AUTH, "SELECT id FROM pg_db.public.work ORDER BY id"),
        ("pg_local", 'SELECT id FROM "pg_local".public.work ORDER BY id'),
        (
            AUTH,
            "INSTALL postgres; LOAD postgres; ATTACH '' AS pg_db (TYPE postgres, SECRET pg_db); "
            "SELECT id FROM pg_db.public.work ORDER BY id; DETACH pg_db",
        ),
    ],
)
def test_a_database_is_attached_under_its_alias(
    run: Run, work: Connection, auth: Any, script: str, database: str | None
) -> None:
    config = {} if database is None else {"database": database}
    for _ in range(2):
        assert ok(run(script, auth=auth, **config)) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_nothing_stays_attached_and_no_secret_stays(run: Run, work: Connection) -> None:
    # another task that has the file open all the while keeps its database in this process alive
    with duckdb_files.connection(duckdb_files.path_of(None, "7")) as other:
        ok(run("SELECT id FROM pg_db.public.work", auth=AUTH))
        attached = other.execute("SELECT database_name FROM duckdb_databases() WHERE type = 'postgres'").fetchall()
        assert (attached, other.execute("SELECT name FROM duckdb_secrets()").fetchall()) == ([], [])


def test_writing_to_both(run: Run, work: Connection) -> None:
    script = """
        CREATE TABLE mine AS SELECT id, price FROM pg_db.public.work;
        INSERT INTO pg_db.public.work (id, price) SELECT id + 10, price FROM mine;
        SELECT count(*) AS n FROM mine
    """
    assert ok(run(script, auth=AUTH)) == [{"n": 3}]
    assert work.execute("SELECT count(*) FROM public.work").fetchone() == (6,)


def test_tasks_at_once_on_one_file(run: Run, work: Connection) -> None:
    ok(run("CREATE TABLE mine (i INT)"))
    barrier = threading.Barrier(6)

    def one(number: int) -> Any:
        barrier.wait(30)
        return ok(run(f"INSERT INTO mine SELECT count(*) FROM pg_db.public.work; SELECT {number} AS n", auth=AUTH))

    with ThreadPoolExecutor(6) as pool:
        assert sorted(found[0]["n"] for found in pool.map(one, range(6))) == list(range(6))
    assert ok(run("SELECT sum(i) AS s FROM mine")) == [{"s": 18}]


def test_a_database_that_cannot_be_reached_says_so_without_its_password(run: Run, work: Connection) -> None:
    auth = {"pg_db": {"credential": "pg_local", "db_port": "1"}}
    outcome = run("SELECT * FROM pg_db.public.work", auth=auth, password="it's geheim")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("connection", True)
    assert "geheim" not in outcome.error.message


# -- transfers ---------------------------------------------------------------------------------------------------------


def test_from_postgres_to_duckdb_and_back(run: Run, work: Connection) -> None:
    ok(run('CREATE TABLE goods (id INT PRIMARY KEY, note JSON, price DECIMAL(8, 2), "at" TIMESTAMPTZ)'))
    there = {"kind": "duckdb", "table": "goods"}
    here = {"kind": "postgres", "auth": "pg_local", "table": "public.work"}
    before = work.execute("SELECT * FROM public.work ORDER BY id").fetchall()
    ok(run(source={"kind": "postgres", "auth": "pg_local", "query": "SELECT * FROM public.work"}, target=there))
    result = ok(run(source={"kind": "duckdb", "query": "FROM goods"}, target=here, mode="replace", chunk_size=2))
    assert (result["rows"], result["chunks"]) == (3, 2)
    assert work.execute("SELECT * FROM public.work ORDER BY id").fetchall() == before


def test_from_a_script_that_reads_postgres(run: Run, work: Connection) -> None:
    source = {"kind": "duckdb", "auth": AUTH, "query": "SELECT id + 10 AS id FROM pg_db.public.work"}
    ok(run(source=source, target={"kind": "postgres", "auth": "pg_local", "table": "work"}))
    assert work.execute("SELECT max(id) FROM public.work").fetchone() == (13,)
