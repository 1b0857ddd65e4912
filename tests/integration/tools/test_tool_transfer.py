"""The transfer tool against PostgreSQL: what arrives, what does not, and that a failure leaves nothing behind."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import psycopg
import pytest

from noetl_celery.outcome import Outcome
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.transfer import TransferTool

Transfer = Callable[..., Outcome]
Connection = psycopg.Connection[Any]


@pytest.fixture
def transfer(credential: dict[str, Any]) -> Iterator[Transfer]:
    """Runs a transfer into ``public.goods``: ``transfer({kind: data, …}, mode="upsert")``."""
    tool = TransferTool()

    def run(source: dict[str, Any], *, target: dict[str, Any] | None = None, **config: Any) -> Outcome:
        whole = {"kind": "postgres", "auth": "pg_local", "table": "public.goods", **(target or {})}
        call = ToolCall(
            config={"source": source, "target": whole, **config},
            input={},
            # every other name is the same database with another setting: a connection of its own
            credential=lambda name: (
                credential if name == "pg_local" else {**credential, "search_path": "public,pg_temp"}
            ),
            print=print,
            names={},
        )
        complaints = tool.check(call.config)
        return run_tool(tool, call) if not complaints else pytest.fail(str(complaints))

    yield run
    tool.close()


@pytest.fixture
def goods(admin: Connection) -> Iterator[Connection]:
    """An empty table ``public.goods``."""
    admin.execute("""
        CREATE TABLE public.goods (
          id int PRIMARY KEY, name text DEFAULT 'nameless', price numeric(10, 2), sold boolean, at timestamptz,
          code uuid, note jsonb, raw json, picture bytea, tags text[], day date, weight double precision,
          "Mixed Case" text)""")
    yield admin
    admin.execute("DROP TABLE public.goods")


def data(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "data", "data": list(rows)}


def stored(goods: Connection, columns: str = "id, name") -> list[tuple[Any, ...]]:
    return goods.execute(f"SELECT {columns} FROM public.goods ORDER BY id").fetchall()


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.error is None, outcome.error
    result: dict[str, Any] = outcome.data
    return result


# -- rows that are given -----------------------------------------------------------------------------------------------


def test_the_result_says_what_went_where(transfer: Transfer, goods: Connection) -> None:
    result = ok(transfer(data({"id": 1}, {"id": 2}, {"id": 3}), chunk_size=2))
    assert result.pop("duration") >= 0
    assert result == {
        "status": "success",
        **dict.fromkeys(("rows", "row_count", "transferred"), 3),
        "chunks": 2,
        "mode": "append",
        "source": {"kind": "data"},
        "target": {"kind": "postgres", "table": "public.goods"},
    }


@pytest.mark.parametrize("given", [{"id": 1}, [{"id": 1}], '{"id": 1}', '[{"id": 1}]'])
def test_one_mapping_is_one_row(transfer: Transfer, goods: Connection, given: Any) -> None:
    assert ok(transfer({"kind": "data", "data": given}))["rows"] == 1
    assert stored(goods) == [(1, "nameless")]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"data": [{"id": 2}]}, "data"),
        ({"data": [{"id": 2}]}, "data.data"),
        ({"page": {"items": [{"id": 2}]}}, "data.page.items"),
        ([{"id": 2}], "data"),
        ([{"id": 2}], "body"),
    ],
)
def test_a_path_leads_into_the_body_first(transfer: Transfer, goods: Connection, body: Any, path: str) -> None:
    reply = {"status_code": 200, "headers": {}, "url": "", "body": body, "data": body}
    ok(transfer({"kind": "data", "data": reply, "path": path}))
    assert [row[0] for row in stored(goods)] == [2]


@pytest.mark.parametrize("given", [[], None, ""])
def test_nothing_is_no_rows(transfer: Transfer, goods: Connection, given: Any) -> None:
    assert ok(transfer({"kind": "data", "data": given}))["rows"] == 0


def test_results_of_other_tasks_are_their_rows(transfer: Transfer, goods: Connection) -> None:
    of_postgres = {"rows": [{"id": 1}], "row_count": 1, "columns": ["id"], "command_0": {}}
    of_http = {"status_code": 200, "headers": {}, "url": "", "body": {"items": [{"id": 2}]}, "data": {}}
    ok(transfer({"kind": "data", "data": of_postgres}))
    ok(transfer({"kind": "data", "data": of_http}))
    assert [row[0] for row in stored(goods)] == [1, 2]


def test_values_become_what_the_column_is(transfer: Transfer, goods: Connection) -> None:
    row = {
        "id": "42",
        "name": {"a": [1]},
        "price": "12.30",
        "sold": 1,
        "at": "2026-01-02T03:04:05+02:00",
        "code": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
        "note": [1, {"b": None}],
        "raw": '{"kept":  "as it is"}',
        "picture": "aGVsbG8=",
        "tags": ["a", 'with "quotes"', None, "back\\slash", "comma, brace}"],
        "day": "",
        "weight": 2,
        "Mixed Case": True,
    }
    ok(transfer(data(row)))
    (found,) = stored(
        goods,
        "id, name, price::text, sold, at AT TIME ZONE 'UTC', code::text, note, raw::text, picture, tags, day, weight,"
        ' "Mixed Case"',
    )
    assert found[:4] == (42, '{"a": [1]}', "12.30", True)
    assert found[4].isoformat() == "2026-01-02T01:04:05"
    assert found[5:9] == (row["code"], row["note"], row["raw"], b"hello")
    assert found[9:] == (row["tags"], None, 2.0, "true")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", '"plain"'),
        ("42", '"42"'),
        ('{"a": 1}', '{"a": 1}'),
        ("{no json", '"{no json"'),
        (7, "7"),
        (None, None),
    ],
)
def test_text_for_json_columns(transfer: Transfer, goods: Connection, value: Any, expected: str | None) -> None:
    ok(transfer(data({"id": 1, "note": value})))
    assert stored(goods, "note::text") == [(expected,)]


def test_characters_that_mean_something_to_copy(transfer: Transfer, goods: Connection) -> None:
    names = ["tab\there", "line\nbreak", "\\N", "\\.", "back\\slash", 'quo"te', "''", "€ 𝄞", "", "  "]
    ok(transfer(data(*({"id": number, "name": name} for number, name in enumerate(names)))))
    assert [name for _, name in stored(goods)] == names


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([[1, 2], [3, None]], [[1, 2], [3, None]]),
        ("[1, 2]", [1, 2]),
        ("{3,4}", [3, 4]),
        ([], []),
        ("", None),
        ((5,), [5]),
    ],
)
def test_arrays(transfer: Transfer, admin: Connection, given: Any, expected: Any) -> None:
    admin.execute("CREATE TABLE public.lists (numbers int[])")
    try:
        ok(transfer(data({"numbers": given}), target={"table": "lists"}))
        assert admin.execute("SELECT numbers FROM lists").fetchall() == [(expected,)]
        assert 'column "numbers"' in str(transfer(data({"numbers": ["x"]}), target={"table": "lists"}).error)
    finally:
        admin.execute("DROP TABLE public.lists")


def test_a_key_that_is_missing_keeps_the_default(transfer: Transfer, goods: Connection) -> None:
    ok(transfer(data({"id": 1, "name": None}, {"id": 2}, {"id": 3, "name": "x"}, {"name": "y", "id": 4})))
    assert stored(goods) == [(1, None), (2, "nameless"), (3, "x"), (4, "y")]


def test_names_of_columns_may_differ_in_case(transfer: Transfer, goods: Connection) -> None:
    ok(transfer(data({"ID": 1, "Name": "a", "mixed case": "b"})))
    assert stored(goods, 'id, name, "Mixed Case"') == [(1, "a", "b")]


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_unknown_columns_are_named(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer(data({"id": 1}, {"id": 2, "colour": "red", "sise": 3}))
    assert outcome.error is not None
    assert outcome.error.kind == "config"
    assert outcome.error.message.startswith("row 2: public.goods has no column `colour`, `sise`; it has `id`, `name`")
    assert stored(goods) == []


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("id", "geheim", 'row 3, column "id": text that cannot be read as integer'),
        ("id", 1.5, 'row 3, column "id": a number that cannot be read as integer'),
        ("id", {"a": 1}, 'row 3, column "id": a mapping cannot be stored as integer'),
        ("sold", 7, 'row 3, column "sold": a number other than 0 and 1 cannot be stored as boolean'),
        ("at", "geheim", 'row 3, column "at": text that cannot be read as timestamp with time zone'),
        ("code", "geheim", 'row 3, column "code": text that cannot be read as uuid'),
        ("picture", "geh?", 'row 3, column "picture": text that is no base64 cannot be stored as bytea'),
        ("Mixed Case", "nul\0", 'row 3, column "Mixed Case": text with a NUL character'),
        ("price", "12,30", 'row 3, column "price": text that cannot be read as numeric(10,2)'),
        ("note", "\ud800", "surrogate"),
    ],
)
def test_a_value_that_does_not_fit_is_named_but_not_shown(
    transfer: Transfer, goods: Connection, column: str, value: Any, words: str
) -> None:
    rows = [{"id": number, "name": "x", column: None} if column != "id" else {"id": number} for number in (1, 2)]
    outcome = transfer(data(*rows, {"id": 3, "name": "x", column: value}), chunk_size=2)
    assert outcome.error is not None
    assert outcome.error.kind == "data"
    assert words in outcome.error.message
    assert "geh" not in outcome.error.message
    assert stored(goods) == []


def test_a_row_without_its_key_is_named(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer(data({"id": 1}, {"name": "x"}), mode="upsert")
    assert outcome.error is not None
    assert outcome.error.message == "row 2 has nothing for `id`, which is in the key"


def test_a_constraint_names_the_rows(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer(data({"id": 1}, {"id": 2}, {"id": 1}))
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.code) == ("constraint", "23505")
    assert outcome.error.message.startswith("row 3: duplicate key value")
    assert stored(goods) == []


@pytest.mark.parametrize("table", ["nowhere", "public.nowhere", 'public.goods"; DROP TABLE public.goods; --'])
def test_a_table_that_is_not_there(transfer: Transfer, goods: Connection, table: str) -> None:
    complaints = TransferTool().check({"source": data(), "target": {"kind": "postgres", "auth": "a", "table": table}})
    if complaints:
        assert "`target.table` has to be" in complaints[0][1]
        return
    outcome = transfer(data({"id": 1}), target={"table": table})
    assert outcome.error is not None
    assert (outcome.error.code, outcome.pg) == ("42P01", {"code": "42P01", "sqlstate": "42P01"})


@pytest.mark.parametrize("table", ["Odd Name", '"Odd Name"', 'public."Odd Name"', "public.Odd Name"])
def test_odd_names_are_quoted(transfer: Transfer, admin: Connection, table: str) -> None:
    admin.execute('CREATE TABLE public."Odd Name" (n int, "a""b; --" text, "%s" text)')
    try:
        ok(transfer(data({"n": 1, 'a"b; --': "x", "%s": "y"}), target={"table": table}))
        assert admin.execute('SELECT * FROM public."Odd Name"').fetchall() == [(1, "x", "y")]
    finally:
        admin.execute('DROP TABLE public."Odd Name"')


# -- modes -------------------------------------------------------------------------------------------------------------


def test_upsert_changes_what_is_given_and_keeps_the_rest(transfer: Transfer, goods: Connection) -> None:
    goods.execute("INSERT INTO public.goods (id, name, price) VALUES (1, 'old', 1), (2, 'old', 2)")
    rows = [{"id": 1, "name": "new"}, {"id": 3, "name": "three"}, {"id": 2, "price": "7"}, {"id": 3, "name": "last"}]
    ok(transfer(data(*rows), mode="upsert", key="id"))
    assert stored(goods, "id, name, price::int") == [(1, "new", 1), (2, "old", 7), (3, "last", None)]


def test_upsert_takes_the_last_row_of_a_key_also_within_a_chunk(transfer: Transfer, goods: Connection) -> None:
    rows = ({"id": number % 3, "name": f"n{number}"} for number in range(10))
    assert ok(transfer(data(*rows), target={"mode": "upsert", "key": ["id"]}, chunk_size=4))["rows"] == 10
    assert stored(goods) == [(0, "n9"), (1, "n7"), (2, "n8")]


def test_upsert_of_keys_alone_changes_nothing(transfer: Transfer, goods: Connection) -> None:
    goods.execute("INSERT INTO public.goods (id, name) VALUES (1, 'old')")
    ok(transfer(data({"id": 1}, {"id": 2}), mode="upsert"))
    assert stored(goods) == [(1, "old"), (2, "nameless")]


def test_upsert_needs_a_unique_key(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer(data({"id": 1, "name": "x"}), mode="upsert", key="name")
    assert outcome.error is not None
    assert outcome.error.code == "42P10"


def test_rows_whose_key_is_null_are_all_kept(transfer: Transfer, admin: Connection) -> None:
    admin.execute("CREATE TABLE public.nulls (k int UNIQUE, v text)")
    try:
        rows: list[dict[str, Any]] = [
            {"k": None, "v": "a"},
            {"k": None, "v": "b"},
            {"k": 1, "v": "c"},
            {"k": 1, "v": "d"},
        ]
        ok(transfer(data(*rows), target={"table": "nulls", "mode": "upsert", "key": "k"}))
        assert admin.execute("SELECT k, v FROM nulls ORDER BY v").fetchall() == [(None, "a"), (None, "b"), (1, "d")]
    finally:
        admin.execute("DROP TABLE public.nulls")


@pytest.mark.parametrize("mode", ["replace", "truncate"])
def test_replace_keeps_the_old_rows_if_it_fails(transfer: Transfer, goods: Connection, mode: str) -> None:
    goods.execute("INSERT INTO public.goods (id, name) VALUES (1, 'old')")
    assert transfer(data({"id": 5}, {"id": "x"}), mode=mode).error is not None
    assert stored(goods) == [(1, "old")]
    ok(transfer(data({"id": 5, "name": "new"}), mode=mode))
    assert stored(goods) == [(5, "new")]


def test_a_view_and_a_table_with_row_security(transfer: Transfer, goods: Connection) -> None:
    goods.execute("CREATE VIEW public.shelf AS SELECT id, name FROM public.goods")
    try:
        ok(transfer(data({"id": 1, "name": "x"}), target={"table": "public.shelf"}))
        goods.execute("ALTER TABLE public.goods ENABLE ROW LEVEL SECURITY")
        ok(transfer(data({"id": 2, "name": "y"})))
        assert stored(goods) == [(1, "x"), (2, "y")]
    finally:
        goods.execute("DROP VIEW public.shelf")


# -- mapping -----------------------------------------------------------------------------------------------------------


def test_a_mapping_follows_paths(transfer: Transfer, goods: Connection) -> None:
    mapping = {
        "id": "no",
        "name": "who.names.0",
        "note": "who",
        "price": 9,
        "sold": True,
        "day": {"value": "2026-01-02"},
        "Mixed Case": "dotted.key",
    }
    row = {"no": 1, "who": {"names": ["Ann"]}, "dotted.key": "d", "unused": 0}
    ok(transfer(data(row, {"no": 2, "who": {}}), mapping=mapping))
    assert stored(goods, 'id, name, note, price::int, sold, day::text, "Mixed Case"') == [
        (1, "Ann", {"names": ["Ann"]}, 9, True, "2026-01-02", "d"),
        (2, "nameless", {}, 9, True, "2026-01-02", None),
    ]


def test_a_mapping_to_an_unknown_column(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer(data({"no": 1}), target={"mapping": {"id": "no", "colour": "no"}})
    assert outcome.error is not None
    assert outcome.error.message.startswith("public.goods has no column `colour`; it has `id`")


def test_a_mapping_from_a_column_that_a_query_has_not(transfer: Transfer, goods: Connection) -> None:
    source = {"kind": "postgres", "auth": "pg_local", "query": "SELECT 1 AS one"}
    outcome = transfer(source, mapping={"id": "one", "name": "two"})
    assert outcome.error is not None
    assert outcome.error.message == "`mapping` names `two`, but the source has `one`"


# -- from PostgreSQL ---------------------------------------------------------------------------------------------------


def test_every_value_arrives_as_it_was(transfer: Transfer, goods: Connection) -> None:
    select = """
        SELECT 1 AS id, 'n' AS name, 1.50::numeric AS price, false AS sold, now() AS at, gen_random_uuid() AS code,
          '"text"'::jsonb AS note, '{"b":1,  "a":2}'::json AS raw, '\\xdeadbeef'::bytea AS picture,
          ARRAY['a', NULL, 'c d'] AS tags, 'infinity'::date AS day, 'NaN'::float8 AS weight, interval '1 month'::text
          AS "Mixed Case"
    """
    goods.execute(f"CREATE TEMPORARY TABLE wanted AS {select}")
    ok(transfer({"type": "postgres", "auth": "other", "query": select.replace("now()", "'2026-01-01'::timestamptz")}))
    goods.execute("UPDATE wanted SET at = '2026-01-01'")
    ours = goods.execute("SELECT raw::text, to_jsonb(g) - 'raw' - 'code' FROM public.goods AS g").fetchall()
    assert ours == goods.execute("SELECT raw::text, to_jsonb(w) - 'raw' - 'code' FROM wanted AS w").fetchall()


@pytest.mark.parametrize("auth", ["pg_local", "other"])
def test_many_rows_in_chunks(transfer: Transfer, goods: Connection, auth: str) -> None:
    query = "SELECT n AS id, 'name ' || n AS name FROM generate_series(1, %(many)s) AS n"
    source = {"kind": "postgres", "auth": auth, "query": query, "params": {"many": 2500}}
    result = ok(transfer(source))
    assert (result["rows"], result["chunks"]) == (2500, 3)
    assert goods.execute("SELECT count(*), min(name), sum(id) FROM public.goods").fetchone() == (
        2500,
        "name 1",
        3126250,
    )


@pytest.mark.parametrize("auth", ["pg_local", "other"])
@pytest.mark.parametrize("bad", [False, True])
def test_moving_rows_is_undone_with_a_failure(transfer: Transfer, goods: Connection, auth: str, bad: bool) -> None:
    goods.execute("CREATE TABLE public.outbox (id int, name text)")
    goods.execute("INSERT INTO public.outbox VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    if bad:
        goods.execute("INSERT INTO public.goods (id) VALUES (3)")
    try:
        source = {"kind": "postgres", "auth": auth, "command": "DELETE FROM public.outbox RETURNING id, name"}
        outcome = transfer(source, chunk_size=2)
        ((left,),) = goods.execute("SELECT count(*) FROM public.outbox").fetchall()
        assert (outcome.error is not None, left, len(stored(goods))) == ((True, 3, 1) if bad else (False, 0, 3))
    finally:
        goods.execute("DROP TABLE public.outbox")


@pytest.mark.parametrize(("auth", "shared"), [("pg_local", True), ("other", False)])
def test_source_and_target_share_a_transaction(transfer: Transfer, goods: Connection, auth: str, shared: bool) -> None:
    source = {"kind": "postgres", "auth": auth, "query": "SELECT 1 AS id, pg_current_xact_id()::text AS name"}
    ok(transfer(source))
    assert goods.execute("SELECT name = xmin::text FROM public.goods").fetchone() == (shared,)


def test_statements_before_the_query(transfer: Transfer, goods: Connection) -> None:
    command = "CREATE TEMP TABLE some_ids (n int); INSERT INTO some_ids VALUES (4), (5); SELECT n AS id FROM some_ids"
    assert (
        ok(transfer({"kind": "postgres", "auth": "other", "command": command + "; DROP TABLE some_ids"}))["rows"] == 2
    )


def test_the_source_names_the_line_of_its_error(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer({"kind": "postgres", "auth": "pg_local", "query": "SELECT 1 AS id\nFROM nowhere"})
    assert outcome.error is not None
    assert outcome.error.code == "42P01"
    assert 'line 2: "FROM nowhere"' in outcome.error.message


def test_a_source_without_rows_is_an_error(transfer: Transfer, goods: Connection) -> None:
    outcome = transfer({"kind": "postgres", "auth": "pg_local", "command": "CREATE TEMP TABLE t (n int)"})
    assert outcome.error is not None
    assert "returns no rows" in outcome.error.message


def test_the_time_limit_ends_it(transfer: Transfer, goods: Connection) -> None:
    query = "SELECT n AS id FROM generate_series(1, 10) AS n, pg_sleep(60)"
    outcome = transfer({"kind": "postgres", "auth": "pg_local", "query": query}, timeout=0.2)
    assert outcome.error is not None
    assert outcome.error.kind == "timeout"
    assert json.dumps(stored(goods)) == "[]"


# -- from HTTP ---------------------------------------------------------------------------------------------------------


class _Api(BaseHTTPRequestHandler):
    """Answers with what the path names."""

    answers: ClassVar[dict[str, Any]] = {
        "/list": [{"id": 1, "userName": "a"}, {"id": 2, "userName": "b"}],
        "/data": {"data": [{"id": 3}], "total": 1},
        "/deep": {"page": {"goods": [{"id": 4}]}, "data": []},
        "/one": {"id": 5},
        "/text": "no rows here",
    }

    def do_GET(self) -> None:
        answer = self.answers.get(self.path)
        self.send_response(200 if answer is not None else 503)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "config", "expected"),
    [
        ("/list", {}, [1, 2]),
        ("/data", {}, [3]),
        ("/deep", {"path": "page.goods"}, [4]),
        ("/deep", {"data_path": "body.page.goods"}, [4]),
        ("/deep", {"path": "page.goods.0"}, [4]),
        ("/one", {}, [5]),
    ],
)
def test_rows_of_a_response(
    transfer: Transfer, goods: Connection, api: str, path: str, config: dict[str, Any], expected: list[int]
) -> None:
    mapping = {"id": "id", "name": "userName"}
    ok(transfer({"type": "http", "url": api + path, "method": "GET", **config}, target={"mapping": mapping}))
    assert [row[0] for row in stored(goods)] == expected


@pytest.mark.parametrize(
    ("path", "config", "kind", "words"),
    [
        ("/text", {}, "data", "has to give mappings"),
        ("/one", {"path": "goods"}, "data", "nothing at the path `goods`"),
        ("/gone", {}, "server_error", "answered 503"),
    ],
)
def test_responses_without_rows(
    transfer: Transfer, goods: Connection, api: str, path: str, config: dict[str, Any], kind: str, words: str
) -> None:
    outcome = transfer({"kind": "http", "url": api + path, **config})
    assert outcome.error is not None
    assert outcome.error.kind == kind
    assert words in outcome.error.message


# -- without end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["pg_local", "other"])
def test_memory_does_not_grow_with_the_rows(transfer: Transfer, goods: Connection, auth: str) -> None:
    """Measured where Python keeps its objects: 60,000 rows at once would take some 50 MB there."""
    query = "SELECT n AS id, repeat('x', 500) AS name FROM generate_series(1, 60000) AS n"
    ok(transfer({"kind": "postgres", "auth": auth, "query": f"{query} LIMIT 10"}))
    tracemalloc.start()
    try:
        assert ok(transfer({"kind": "postgres", "auth": auth, "query": query}, mode="replace"))["rows"] == 60000
        assert tracemalloc.get_traced_memory()[1] < 12 * 2**20
    finally:
        tracemalloc.stop()
