"""The duckdb tool by itself: statements, values, errors, and one file in the hands of several threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from noetl_celery.errors import ToolError
from noetl_celery.outcome import Outcome
from noetl_celery.tools import duckdb_attach, duckdb_errors, duckdb_extensions, duckdb_files, duckdb_script
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.duckdb import DuckdbTool
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool

Run = Callable[..., Outcome]

#: another process that has a file open until its input ends
HOLDER = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    before = limits()
    set_limits(Limits(duckdb_dir=tmp_path / "own"))
    yield
    set_limits(before)


def run(query: Any = None, *, execution: str = "7", deadline: float | None = None, **config: Any) -> Outcome:
    whole = config if query is None else {"query": query, **config}
    names = {"execution_id": execution} if execution else {}
    return run_tool(DuckdbTool(), ToolCall(whole, {}, lambda name: {}, print, names, deadline))


def rows(*args: Any, **config: Any) -> Any:
    outcome = run(*args, **config)
    assert outcome.error is None, outcome.error
    return outcome.data


def failure(*args: Any, **config: Any) -> tuple[str, str, bool]:
    outcome = run(*args, **config)
    assert outcome.error is not None
    return outcome.error.kind, outcome.error.message, outcome.error.retryable


# -- statements --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["query", "command", "commands", "sql", "script"])
def test_every_spelling_of_the_key(key: str) -> None:
    assert rows(**{key: "SELECT 42 AS answer"}) == [{"answer": 42}]
    assert not DuckdbTool().check({key: "SELECT 1"})


def test_the_rows_of_the_last_statement_that_returned_any() -> None:
    script = """
        -- it's a comment; with an apostrophe
        CREATE TABLE users (name VARCHAR, age INTEGER); /* and; /* another */ */
        INSERT INTO users VALUES ('a;b', 30), ($$it's$$, 25);
        SELECT name FROM users ORDER BY age;
        DELETE FROM users WHERE age > 100;
    """
    assert rows(script) == [{"name": "it's"}, {"name": "a;b"}]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("CREATE TABLE t (i INT)", []),
        ("CREATE TABLE t (i INT); INSERT INTO t VALUES (1)", []),
        ("CREATE TABLE t (i INT); INSERT INTO t VALUES (1) RETURNING i", [{"i": 1}]),
        ("SELECT 1 AS a; SELECT 2 AS b WHERE false", []),
        ("FROM range(2) AS t(n)", [{"n": 0}, {"n": 1}]),
        ("SELECT 1 AS a; CHECKPOINT", [{"a": 1}]),
        (["SELECT 1 AS a", {"sql": "SELECT 2 AS b"}], [{"b": 2}]),
        ("BEGIN; SELECT 1 AS a; COMMIT", [{"a": 1}]),
    ],
)
def test_what_counts_as_rows(script: Any, expected: list[Any]) -> None:
    assert rows(script) == expected


def test_all_statements_are_one_transaction() -> None:
    assert failure("CREATE TABLE t (i INT); INSERT INTO t VALUES (1); SELECT nope")[0] == "sql"
    assert failure("SELECT * FROM t")[1].startswith("Table with name t does not exist!")


def test_a_script_that_attaches_has_transactions_of_its_own(tmp_path: Path) -> None:
    other = tmp_path / "other.duckdb"
    script = f"ATTACH '{other}' AS o; CREATE TABLE o.t AS SELECT 1 AS i; CREATE TABLE t AS SELECT 2 AS i"
    rows(f"{script}; DETACH o")
    assert rows("SELECT i FROM t", database=str(other)) == [{"i": 1}]
    assert rows("SELECT i FROM t") == [{"i": 2}]
    assert "without a COMMIT" in failure("CHECKPOINT; BEGIN; INSERT INTO t VALUES (3)")[1]
    rows("CHECKPOINT; BEGIN; INSERT INTO t VALUES (4); COMMIT")
    assert rows("SELECT i FROM t ORDER BY i") == [{"i": 2}, {"i": 4}]


def test_values_by_name_and_by_place() -> None:
    assert rows("SELECT $a AS a; SELECT $a || $b AS ab", params={"a": "x", "b": "y", "unused": 1}) == [{"ab": "xy"}]
    assert rows("SELECT ? AS a; SELECT ? AS b, ? AS c", params=[1, 2, 3]) == [{"b": 2, "c": 3}]
    assert failure("SELECT\n$a", params={"b": 1})[:2] == (
        "config",
        "line 1: `params` has no `a`, which the SQL names",
    )
    assert "only 1 values" in failure("SELECT ?, ?", params=[1])[1]
    assert failure("SELECT $a", params={"a": "\ud800"})[0] == "data"
    assert rows("SELECT $a AS a", params={"a": "'; DROP TABLE x; --"}) == [{"a": "'; DROP TABLE x; --"}]


# -- databases ---------------------------------------------------------------------------------------------------------


def test_tasks_of_an_execution_share_a_database() -> None:
    rows("CREATE TABLE t AS SELECT 1 AS i", execution="1")
    assert rows("SELECT i FROM t", execution="1") == [{"i": 1}]
    assert failure("SELECT i FROM t", execution="2")[0] == "sql"


def test_memory_is_of_one_task_only() -> None:
    rows("CREATE TABLE t AS SELECT 1 AS i", database=":memory:")
    assert failure("SELECT i FROM t", database=":memory:")[0] == "sql"


def test_a_file_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "down" / "x.duckdb"
    rows("CREATE TABLE t AS SELECT 1 AS i", database=str(file))
    assert rows("SELECT i FROM t", database=str(file.parent / ".." / "down" / "x.duckdb")) == [{"i": 1}]


def test_old_files_of_executions_go(tmp_path: Path) -> None:
    rows("SELECT 1", execution="1")
    rows("SELECT 1", execution="2")
    other = tmp_path / "own" / "kept.duckdb"
    other.touch()
    for name in ("1.duckdb", "kept.duckdb"):
        os.utime(tmp_path / "own" / name, (0, 0))
    rows("SELECT 1", execution="3")
    assert sorted(file.name for file in (tmp_path / "own").glob("*.duckdb")) == ["2.duckdb", "3.duckdb", "kept.duckdb"]


@pytest.mark.parametrize("database", [5, "md://x", "a\0b"])
def test_what_is_no_database(database: Any) -> None:
    assert failure("SELECT 1", database=database)[0] == "config"


def test_a_file_that_another_thread_is_just_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'Binder Error: Unique file handle conflict: Cannot attach "7" - the database file is in the process'
    refusals, really_connect = [duckdb.BinderException(text)], duckdb.connect

    def connect(path: str) -> duckdb.DuckDBPyConnection:
        if refusals:
            raise refusals.pop()
        return really_connect(path)

    monkeypatch.setattr(duckdb, "connect", connect)
    assert rows("SELECT 1 AS i") == [{"i": 1}]
    assert not refusals


def test_threads_of_a_process_share_a_file() -> None:
    rows("CREATE TABLE t (i INT)")

    def add(number: int) -> Any:
        return rows(f"INSERT INTO t VALUES ({number}); SELECT {number} AS n")

    with ThreadPoolExecutor(8) as pool:
        assert [found[0]["n"] for found in pool.map(add, range(40))] == list(range(40))
    assert rows("SELECT count(*) AS n, sum(i) AS s FROM t") == [{"n": 40, "s": 780}]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A file that another process has open."""
    file = tmp_path / "held.duckdb"
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield file, process
        process.kill()


def test_a_file_of_another_process_is_waited_for(held: tuple[Path, subprocess.Popen[str]]) -> None:
    file, process = held
    waits, really_sleep = threading.Event(), time.sleep

    def sleep(seconds: float) -> None:
        waits.set()
        really_sleep(seconds)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(time, "sleep", sleep)
        answer = pool.submit(rows, "SELECT 1 AS i", database=str(file))
        assert waits.wait(10)
        process.communicate()
        assert answer.result(20) == [{"i": 1}]


def test_a_file_that_stays_locked_may_be_tried_again(
    held: tuple[Path, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_files, "LOCK_SECONDS", 0.05)
    kind, message, retryable = failure("SELECT 1", database=str(held[0]))
    assert (kind, retryable) == ("locked", True)
    assert str(held[0]) in message


def test_the_file_is_free_again_after_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "x.duckdb"
    assert run("SELECT nope", database=str(file)).error is not None
    code = f"import duckdb; duckdb.connect({str(file)!r})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_are_json() -> None:
    query = """
        SELECT DATE '2026-01-02' AS day, TIMESTAMP '2026-01-02 03:04:05' AS at,
          TIMESTAMPTZ '2026-01-02 03:04:05+02' AS tz, TIME '10:00' AS t, 1.50::DECIMAL(10, 2) AS price,
          170141183460469231731687303715884105727::HUGEINT AS huge, 'NaN'::DOUBLE AS nan, 'x'::BLOB AS bytes,
          {'a': 1, 'b': [DATE '2026-01-02', NULL]} AS nested, MAP {1: 'one'} AS map, INTERVAL 90 MINUTE AS span,
          '7d444840-9dc0-11d1-b245-5ffdce74fad2'::UUID AS code, '{"k": 1}'::JSON AS note, NULL AS nothing,
          'a'::ENUM ('a', 'b') AS choice
    """
    assert rows(query) == [
        {
            "day": "2026-01-02",
            "at": "2026-01-02T03:04:05",
            "tz": "2026-01-02T01:04:05+00:00",
            "t": "10:00:00",
            "price": 1.5,
            "huge": 170141183460469231731687303715884105727,
            "nan": None,
            "bytes": "eA==",
            "nested": {"a": 1, "b": ["2026-01-02", None]},
            "map": {"1": "one"},
            "span": "PT1H30M",
            "code": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
            "note": '{"k": 1}',
            "nothing": None,
            "choice": "a",
        }
    ]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("SELECT 1;\nSELEC 2", "syntax", 'syntax error at or near "SELEC", line 2: "SELEC 2"'),
        ("SELECT 1;\n\nSELECT *\nFROM nowhere", "sql", 'line 4: "FROM nowhere"'),
        ("SELECT nope", "sql", 'line 1: "SELECT nope"'),
        ("SELECT 'x'::INT", "data", "Could not convert string 'x' to INT32"),
        (
            "CREATE TABLE t (i INT PRIMARY KEY);\nINSERT INTO t VALUES (1), (1)",
            "constraint",
            'duplicate key "1", in the statement of line 2',
        ),
        ("SELECT * FROM 'nofile.csv'", "io", "No files found"),
        ("SELECT error('mine')", "sql", "mine"),
        ("", "config", "needs one of `query`"),
        ("-- nothing", "config", "holds no statement"),
        ("SELECT 1; COMMIT", "config", "`COMMIT` cannot be used here"),
        ("SELECT '\ud800'", "data", "not valid Unicode"),
    ],
)
def test_errors_say_what_and_where(script: str, kind: str, words: str) -> None:
    found, message, retryable = failure(script)
    assert (found, retryable) == (kind, False)
    assert words in message


def test_the_time_limit_interrupts() -> None:
    started = time.monotonic()
    endless = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b"
    assert failure(endless, timeout=0.2)[0] == "timeout"
    assert failure(endless, deadline=time.monotonic() + 0.2)[0] == "timeout"
    assert time.monotonic() - started < 30
    assert rows("SELECT 1 AS i", timeout=30) == [{"i": 1}]


def test_limits_of_the_engine() -> None:
    settings = "SELECT current_setting('threads') AS t, current_setting('memory_limit') AS m"
    assert rows(settings, threads="2", memory_limit="256MB") == [{"t": 2, "m": "244.1 MiB"}]
    assert failure("SELECT 1", threads="many")[0] == "config"
    assert failure("SELECT 1", memory_limit="lots")[0] in {"sql", "syntax"}


def test_conflicting_writes_may_be_tried_again() -> None:
    error = duckdb.TransactionException("TransactionContext Error: Conflict on update!")
    assert duckdb_errors.tool_error(error).info.retryable


def test_a_script_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "it.sql").write_text("-- not rendered: {{ x }}\nSELECT $a AS a;\nSELEC")
    set_limits(Limits(duckdb_dir=tmp_path, script_folders=(tmp_path,)))
    script = {"uri": "it.sql", "source": {"type": "file"}}
    assert not DuckdbTool().check({"script": script})
    assert failure(script=script, params={"a": 1})[1].endswith('line 3: "SELEC"')
    assert rows(script={"source": {"type": "inline", "code": "SELECT 1 AS i"}}) == [{"i": 1}]


def test_keys_are_checked() -> None:
    check = DuckdbTool().check
    assert check({"script": {"source": {"type": "ftp"}}})[0][0] == "script"
    assert check({"script": {"source": {"type": "inline", "code": "SELECT 1; COMMIT"}}})[0][0] == "script"
    assert check({"quer": "SELECT 1"})[0][1].startswith("unknown key `quer`: did you mean `query`?")
    assert check({"query": "SELECT 1", "sql": "SELECT 2"})[0] == ("sql", check({"query": "a", "sql": "b"})[0][1])
    assert check({"query": "SELECT 1", "threads": 0})[0][0] == "threads"
    assert not check({"query": "{{ q }}", "threads": "{{ n }}", "database": "{{ d }}", "auth": {"a": {"key": "b"}}})


# -- extensions and credentials ----------------------------------------------------------------------------------------


def test_an_extension_that_is_not_here_is_named() -> None:
    error = duckdb.IOException(
        'IO Error: Failed to download extension "httpfs" at URL "http://x/httpfs.duckdb_extension.gz"\n'
        'Extension "httpfs" is an existing extension.\n\nFor more info, visit https://duckdb.org'
    )
    info = duckdb_errors.tool_error(error).info
    assert (info.kind, info.retryable) == ("extension", False)
    assert f"pip install duckdb-extension-httpfs=={duckdb.__version__}" in info.message
    assert "For more info" not in info.message


def test_a_password_in_a_message_is_taken_out() -> None:
    error = duckdb.IOException('IO Error: Unable to connect to Postgres at "host=h password=geheim"')
    info = duckdb_errors.tool_error(error).info
    assert (info.kind, info.retryable) == ("connection", True)
    assert "geheim" not in info.message


def grants(auth: Any, query: str, **credentials: dict[str, Any]) -> list[duckdb_attach.Grant]:
    return duckdb_attach.grants({"auth": auth}, credentials.__getitem__, duckdb_script.read({"query": query}))


PG = {"db_host": "h", "db_user": "u", "db_name": "d", "db_password": "p", "db_port": "6000", "sslmode": "require"}


def test_only_credentials_that_the_script_uses() -> None:
    auth = {
        "pg_db": {"source": "credential", "tool": "postgres", "key": "pg"},
        "gcs_secret": {"source": "credential", "tool": "hmac", "key": "hmac", "scope": "gs://bucket"},
    }
    hmac = {"key_id": "k", "secret_key": "s"}
    fields = {"HOST": "h", "PORT": "6000", "USER": "u", "PASSWORD": "p", "DATABASE": "d"}
    assert grants(auth, "SELECT 1 -- pg_db") == []
    assert grants(auth, "SELECT * FROM PG_DB.t", pg=PG) == [
        duckdb_attach.Grant("pg_db", "postgres", fields, "sslmode=require")
    ]
    assert grants(auth, "COPY t TO 'gs://bucket/x'", hmac=hmac) == [
        duckdb_attach.Grant("gcs_secret", "gcs", {"KEY_ID": "k", "SECRET": "s", "SCOPE": "gs://bucket"})
    ]
    assert [grant.alias for grant in grants("pg", "FROM pg.t", pg=PG)] == ["pg"]


@pytest.mark.parametrize(
    ("auth", "kind"),
    [({"a": {"type": "oracle"}}, "config"), (["a"], "config"), ({"a": {"type": "s3", "key_id": "x"}}, "credential")],
)
def test_credentials_that_cannot_be_used(auth: Any, kind: str) -> None:
    with pytest.raises(ToolError) as caught:
        grants(auth, "FROM a")
    assert caught.value.info.kind == kind


def test_extensions_of_packages() -> None:
    assert duckdb_extensions.bundled("no such; thing") is None
    assert duckdb_extensions.bundled("nowhere") is None


def test_more_rows_than_a_result_may_have() -> None:
    set_limits(replace(limits(), output_bytes=100_000))
    kind, message, retryable = failure("SELECT n, 'row ' || n AS t FROM range(100000000) r(n)")
    assert (kind, retryable) == ("result_too_large", False)
    assert "more than 100,000 bytes as JSON" in message
