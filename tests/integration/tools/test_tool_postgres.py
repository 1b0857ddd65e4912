"""The postgres tool against a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from noetl_celery.errors import ToolError
from noetl_celery.outcome import Outcome
from noetl_celery.tools import pg
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.postgres import PostgresTool

pytestmark = pytest.mark.integration

Run = Callable[..., Outcome]


@pytest.fixture
def table(admin: psycopg.Connection[Any]) -> Iterator[str]:
    admin.execute(
        "DROP TABLE IF EXISTS public.things; CREATE TABLE public.things (id int PRIMARY KEY, data jsonb, note text)"
    )
    yield "public.things"
    admin.execute("DROP TABLE public.things")


def test_rows_are_those_of_the_last_statement_that_returned_any(run: Run, table: str) -> None:
    outcome = run(
        f"""
        -- it's a comment; with everything
        INSERT INTO {table} (id, note) VALUES (1, 'a;b'), (2, '100%');
        SELECT id, note FROM {table} ORDER BY id;
        UPDATE {table} SET note = 'x' WHERE id = 1;
        """
    )
    assert outcome.error is None
    rows = [{"id": 1, "note": "a;b"}, {"id": 2, "note": "100%"}]
    assert outcome.data == {
        "rows": rows,
        "row_count": 2,
        "columns": ["id", "note"],
        "command_0": {"rows": [], "row_count": 2},
        "command_1": {"rows": rows, "row_count": 2},
        "command_2": {"rows": [], "row_count": 1},
    }


def test_a_command_without_rows_counts_those_of_its_last_statement(run: Run, table: str) -> None:
    outcome = run([f"INSERT INTO {table} (id) VALUES (1)", f"INSERT INTO {table} (id) VALUES (2), (3)"])
    assert (outcome.data["rows"], outcome.data["row_count"], outcome.data["columns"]) == ([], 2, [])


def test_all_statements_are_one_transaction(run: Run, table: str, admin: psycopg.Connection[Any]) -> None:
    outcome = run(f"INSERT INTO {table} (id) VALUES (1); INSERT INTO {table} (id) VALUES (1)")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.code, outcome.error.retryable) == ("constraint", "23505", False)
    assert outcome.pg == {"code": "23505", "sqlstate": "23505"}
    assert "things_pkey" in outcome.error.message
    assert "detail: Key (id)=(1) already exists." in outcome.error.message
    assert admin.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_an_error_names_the_line(run: Run) -> None:
    outcome = run("SELECT 1;\n\nSELECT\n  COUNT(*) as row_count,\nFROM patient_info;\n")
    assert outcome.error is not None
    assert outcome.error.kind == "syntax"
    assert outcome.error.message == 'syntax error at or near "FROM", line 5: "FROM patient_info"'


def test_an_error_after_bindings_names_the_line_as_written(run: Run) -> None:
    outcome = run("SELECT %(first)s,\n %(second)s, 'a%'\n FROM nowhere", params={"first": "x" * 30, "second": 1})
    assert outcome.error is not None
    assert outcome.error.message == 'relation "nowhere" does not exist, line 3: " FROM nowhere"'


def test_percent_signs_and_bindings(run: Run) -> None:
    assert run("SELECT 'a%' LIKE '%%' AS x, 7 % 4 AS y, '%(no)s' AS z").data["rows"] == [
        {"x": True, "y": 3, "z": "%(no)s"}
    ]
    bound = run("SELECT 7 % 4 AS y, %(a)s::int AS a, '%(a)s' AS text", params={"a": 5})
    assert bound.data["rows"] == [{"y": 3, "a": 5, "text": "%(a)s"}]
    listed = run("SELECT %s::int AS a; SELECT 'it''s %s' AS b, %s::text AS c", params=[1, "two"])
    assert listed.data["command_0"]["rows"] == [{"a": 1}]
    assert listed.data["rows"] == [{"b": "it's %s", "c": "two"}]
    missing = run("SELECT %s, %s", params=[1])
    assert missing.error is not None
    assert missing.error.kind == "config"


def test_mappings_and_lists_become_json(run: Run, table: str) -> None:
    value = {"a": [1, {"b": "it's"}], "c": None}
    outcome = run(
        f"INSERT INTO {table} (id, data, note) VALUES (1, %(v)s, %(w)s) RETURNING data, note; ",
        params={"v": value, "w": [1], "unused": object()},
    )
    assert outcome.error is None
    assert outcome.data["rows"] == [{"data": value, "note": "[1]"}]
    assert run("SELECT %(v)s::jsonb AS v", params={"v": [1, 2]}).data["rows"] == [{"v": [1, 2]}]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1.5::numeric", 1.5),
        ("12345678901234567890.123::numeric", "12345678901234567890.123"),
        ("'NaN'::float8", None),
        ("'2024-02-03'::date", "2024-02-03"),
        ("'2024-02-03 04:05:06'::timestamp", "2024-02-03T04:05:06"),
        ("'infinity'::timestamptz", "infinity"),
        ("'infinity'::date", "infinity"),
        ("'-infinity'::timestamp", "-infinity"),
        ("'0044-03-15 BC'::date", "0044-03-15 BC"),
        ("'\\x0001'::bytea", "AAE="),
        ("'6f1c8a1e-0000-4000-8000-000000000000'::uuid", "6f1c8a1e-0000-4000-8000-000000000000"),
        ("int4range(1, 5)", "[1,5)"),
        ("ARRAY[1, NULL, 3]", [1, None, 3]),
        ("'{\"a\": [1]}'::jsonb", {"a": [1]}),
        ("'10.0.0.1'::inet", "10.0.0.1"),
        ("ROW(1, 'a')", ["1", "a"]),
        ("interval '1 day 2 hours'", "P1DT2H"),
        ("9007199254740993::bigint", 9007199254740993),
        ("NULL", None),
    ],
)
def test_values_are_json(run: Run, expression: str, expected: Any) -> None:
    outcome = run(f"SELECT {expression} AS v")
    assert outcome.error is None
    assert outcome.data["rows"] == [{"v": expected}]


def test_statements_that_need_no_transaction(run: Run, table: str, admin: psycopg.Connection[Any]) -> None:
    assert run(f"VACUUM {table}").error is None
    assert run(f"VACUUM {table}", timeout=20).error is None
    assert run(f"CREATE INDEX CONCURRENTLY ON {table} (note);").error is None
    both = run(f"VACUUM {table}; SELECT 1")
    assert both.error is not None
    assert "transaction block" in both.error.message


def test_transaction_commands(run: Run, table: str, admin: psycopg.Connection[Any]) -> None:
    assert run(f"BEGIN; INSERT INTO {table} (id) VALUES (1); COMMIT;").error is None
    assert admin.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
    sub = run(f"SAVEPOINT a; INSERT INTO {table} (id) VALUES (2); ROLLBACK TO a; SELECT count(*) AS n FROM {table}")
    assert sub.data["rows"] == [{"n": 1}]
    refused = run("SELECT 1;\nCOMMIT;\nSELECT 2")
    assert refused.error is not None
    assert refused.error.kind == "config"
    assert refused.error.message.startswith("line 2: `COMMIT` cannot be used here")


def test_timeout_and_deadline(run: Run) -> None:
    for command in ("SELECT 1; SELECT pg_sleep(20)", "SELECT pg_sleep(20)", "CALL slow()"):
        run("CREATE OR REPLACE PROCEDURE slow() BEGIN ATOMIC SELECT pg_sleep(20); END")
        for by_deadline in (True, False):
            limit = {"deadline": time.monotonic() + 0.2} if by_deadline else {"timeout": 0.2}
            outcome = run(command, **limit)
            assert outcome.error is not None
            assert outcome.error.kind == "timeout"
            assert outcome.meta["duration"] < 5
    for late in (0.0, -5.0):
        outcome = run("SELECT 1", deadline=time.monotonic() + late)
        assert outcome.error is not None
        assert outcome.error.kind == "timeout"
        assert outcome.meta["duration"] < 5
    # the limit does not stay with the pooled connection
    assert run("SELECT current_setting('statement_timeout') AS t").data["rows"] == [{"t": "0"}]


def test_the_session_is_as_promised_and_does_not_leak(run: Run) -> None:
    shown = run("SELECT current_setting('search_path') AS s, current_setting('application_name') AS a")
    assert shown.data["rows"] == [{"s": "public", "a": "noetl-celery"}]
    assert run("SET search_path TO pg_catalog; CREATE TEMP TABLE leak (x int); SELECT 1").error is None
    after = run("SELECT current_setting('search_path') AS s, to_regclass('leak') AS leak")
    assert after.data["rows"] == [{"s": "public", "leak": None}]


def test_deferred_constraints_fail_at_commit(run: Run, table: str) -> None:
    run(f"ALTER TABLE {table} ADD UNIQUE (note) DEFERRABLE INITIALLY DEFERRED")
    outcome = run(f"INSERT INTO {table} VALUES (1, NULL, 'x'), (2, NULL, 'x'); SELECT 1")
    assert outcome.error is not None
    assert outcome.error.kind == "constraint"


def test_a_killed_connection_is_replaced_before_it_is_used(run: Run, admin: psycopg.Connection[Any]) -> None:
    pid = run("SELECT pg_backend_pid() AS pid").data["rows"][0]["pid"]
    admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    again = run("SELECT pg_backend_pid() AS pid")
    assert again.error is None
    assert again.data["rows"][0]["pid"] != pid


def test_a_connection_lost_in_the_middle_is_a_retryable_error(run: Run, admin: psycopg.Connection[Any]) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run("SELECT /* victim */ pg_sleep(30)")))
    thread.start()
    victim = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT /* victim */%' AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 20
    while not (found := admin.execute(victim).fetchone()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found
    admin.execute("SELECT pg_terminate_backend(%s)", (found[0],))
    thread.join(20)
    error = outcomes[0].error
    assert error is not None
    assert (error.kind, error.code, error.retryable) == ("connection", "57P01", True)
    assert run("SELECT 1 AS x").data["rows"] == [{"x": 1}]


def test_serialization_and_deadlock_kinds(run: Run) -> None:
    for state, kind in (
        ("40001", "serialization"),
        ("40P01", "deadlock"),
        ("42501", "permission"),
        ("53300", "postgres"),
    ):
        outcome = run(f"DO $$ BEGIN RAISE EXCEPTION 'no; way' USING ERRCODE = '{state}', HINT = 'try again'; END $$")
        assert outcome.error is not None
        assert (outcome.error.kind, outcome.error.code) == (kind, state)
        assert outcome.error.retryable is (state != "42501")
        assert outcome.error.message.startswith("no; way, in PL/pgSQL function inline_code_block line 1")
        assert outcome.error.message.endswith("hint: try again")


def test_copy_is_refused_and_the_connection_survives(run: Run, table: str) -> None:
    outcome = run(f"COPY {table} FROM STDIN")
    assert outcome.error is not None
    assert "COPY" in outcome.error.message
    assert run("SELECT 1 AS x").data["rows"] == [{"x": 1}]


@pytest.mark.parametrize(
    ("change", "kind", "code", "retryable"),
    [
        ({"db_name": "nope"}, "connection", "3D000", False),
        ({"db_user": "nobody"}, "auth", "28000", False),
        ({"db_user": "joe", "db_password": "WRONG-SECRET"}, "auth", "28P01", False),
        ({"db_host": "127.0.0.1", "db_port": 1}, "connection", None, True),
        ({"db_host": "/nowhere"}, "connection", None, True),
    ],
)
def test_a_server_that_says_no(
    tool: PostgresTool,
    credential: dict[str, Any],
    scram_user: None,
    change: dict[str, Any],
    kind: str,
    code: str | None,
    retryable: bool,
) -> None:
    call = ToolCall({"auth": {**credential, **change}, "query": "SELECT 1"}, {}, lambda name: {}, print, {})
    error = run_tool(tool, call).error
    assert error is not None
    assert (error.kind, error.code, error.retryable) == (kind, code, retryable)
    assert "WRONG-SECRET" not in error.message


@pytest.fixture
def scram_user(admin: psycopg.Connection[Any]) -> Iterator[None]:
    """Makes the server ask the user ``joe`` for a password, and have no user ``nobody``."""
    row = admin.execute("SELECT current_setting('hba_file'), current_setting('is_superuser')").fetchone()
    assert row
    with open(row[0], encoding="utf-8") as file:
        before = file.read()
    admin.execute("DROP ROLE IF EXISTS joe; CREATE ROLE joe LOGIN PASSWORD 'right'")
    _rewrite(admin, row[0], "local all joe scram-sha-256\nhost all joe all scram-sha-256\n" + before)
    yield
    _rewrite(admin, row[0], before)
    admin.execute("DROP ROLE joe")


def _rewrite(admin: psycopg.Connection[Any], path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    rules = len([line for line in text.splitlines() if line.strip() and not line.startswith("#")])
    admin.execute("SELECT pg_reload_conf()")
    row = admin.execute("SELECT count(*) FROM pg_hba_file_rules").fetchone()
    assert row == (rules,)


def test_a_full_pool_says_so(credential: dict[str, Any]) -> None:
    settings = pg.PoolSettings(max_size=1, timeout=0.1, name="tiny")
    with pg.connection(credential, settings), pytest.raises(ToolError) as raised, pg.connection(credential, settings):
        pass
    assert raised.value.info.retryable
    assert "pool of 1" in raised.value.message
    pg.close_all()


def test_threads_share_a_pool(run: Run) -> None:
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(run("SELECT pg_sleep(0.01)"))) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [outcome.error for outcome in outcomes] == [None] * 30


def test_its_rows_go_into_a_table_in_the_same_transaction(run: Run, table: str, admin: psycopg.Connection[Any]) -> None:
    statement = f"""
    INSERT INTO {table} (id, data) VALUES (1, '{{"a": 1}}'), (2, NULL);
    UPDATE {table} SET note = now()::date::text RETURNING id, data, 1.5::numeric AS n, now()::date AS note;
    """
    admin.execute("CREATE TABLE public.copies (id int PRIMARY KEY, data jsonb, n numeric CHECK (n < 2), note date)")
    try:
        outcome = run(statement, into={"table": "public.copies"})
        assert outcome.error is None
        assert outcome.data["row_count"] == 2
        found = admin.execute("SELECT id, data, n::text, note = now()::date FROM copies ORDER BY id").fetchall()
        assert found == [(1, {"a": 1}, "1.5", True), (2, None, "1.5", True)]
        again = f"UPDATE {table} SET note = 'again' RETURNING id, 3 AS n"
        outcome = run(again, into={"table": "copies", "mode": "upsert", "mapping": {"id": "id", "n": "n"}})
        assert outcome.error is not None
        assert admin.execute(f"SELECT DISTINCT note = 'again' FROM {table}").fetchall() == [(False,)]
    finally:
        admin.execute("DROP TABLE public.copies")


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ("t", "`into` has to be a mapping"),
        ({"table": "t", "auth": "x"}, "leave out `auth`"),
        ({"tabel": "t"}, "unknown key `tabel` in `into`"),
        ({"table": "t", "mode": "merge"}, "merge"),
    ],
)
def test_what_into_cannot_be(into: Any, said: str) -> None:
    complaints = PostgresTool().check({"auth": "a", "command": "SELECT 1", "into": into})
    assert complaints
    assert {key for key, _ in complaints} == {"into"}
    assert said in complaints[0][1]


def test_more_rows_than_a_result_may_have(run: Run, table: str, admin: psycopg.Connection[Any]) -> None:
    before = limits()
    try:
        set_limits(Limits(output_bytes=1_000_000))
        many = "SELECT n, 'row ' || n AS t FROM generate_series(1, 1000000) n"
        outcome = run(f"INSERT INTO {table} (id) VALUES (99); {many}")
        one = run("SELECT repeat('x', 2000000)")
    finally:
        set_limits(before)
    assert outcome.error is not None
    assert one.error is not None
    assert (outcome.error.kind, one.error.kind) == ("result_too_large", "result_too_large")
    assert "more than 1,000,000 bytes as JSON" in outcome.error.message
    assert "the first 1,000,000 rows" not in outcome.error.message, "it went on to the end"
    assert admin.execute(f"SELECT count(*) FROM {table} WHERE id = 99").fetchone() == (0,)
    assert run("SELECT 1 AS one").data["rows"] == [{"one": 1}]
