"""Transfers into and out of duckdb, without any service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl_celery.outcome import Outcome
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.duckdb import DuckdbTool
from noetl_celery.tools.limits import Limits, limits, set_limits
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.transfer import TransferTool

GOODS = """
    CREATE TYPE colour AS ENUM ('red', 'green');
    CREATE TABLE goods (
      id INTEGER PRIMARY KEY, name VARCHAR DEFAULT 'nameless', price DECIMAL(10, 2), sold BOOLEAN, "at" TIMESTAMPTZ,
      code UUID, note JSON, picture BLOB, tags VARCHAR[], shape STRUCT(a INTEGER, b VARCHAR), day DATE, weight DOUBLE,
      hue colour, "Mixed Case" VARCHAR)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    before = limits()
    set_limits(Limits(duckdb_dir=tmp_path))
    sql(GOODS)
    yield
    set_limits(before)


def called(tool: Any, config: dict[str, Any]) -> Outcome:
    assert not tool.check(config)
    return run_tool(tool, ToolCall(config, {}, lambda name: {}, print, {"execution_id": "7"}))


def sql(query: str) -> Any:
    outcome = called(DuckdbTool(), {"query": query})
    assert outcome.error is None, outcome.error
    return outcome.data


def transfer(*rows: dict[str, Any], table: str = "goods", **config: Any) -> Outcome:
    source = config.pop("source", {"kind": "data", "data": list(rows)})
    return called(TransferTool(), {"source": source, "target": {"kind": "duckdb", "table": table}, **config})


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.error is None, outcome.error
    result: dict[str, Any] = outcome.data
    return result


def message(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


def test_values_become_what_the_column_is() -> None:
    row = {
        "id": "42",
        "name": {"a": [1]},
        "price": "12.30",
        "sold": 1,
        "at": "2026-01-02T03:04:05+02:00",
        "code": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
        "note": {"deep": [1, None]},
        "picture": "aGVsbG8=",
        "tags": ["a", None, 'q"'],
        "shape": {"a": 1, "b": "x"},
        "day": "",
        "weight": 2,
        "hue": "green",
        "mixed case": False,
    }
    result = ok(transfer(row))
    assert (result["rows"], result["target"]) == (1, {"kind": "duckdb", "table": "main.goods"})
    assert sql("FROM goods") == [
        {
            **{key: row[key] for key in ("code", "picture", "tags", "shape", "weight", "hue")},
            "id": 42,
            "name": '{"a": [1]}',
            "price": 12.3,
            "sold": True,
            "at": "2026-01-02T01:04:05+00:00",
            "note": '{"deep": [1, null]}',
            "day": None,
            "Mixed Case": "false",
        }
    ]


def test_characters_of_every_kind() -> None:
    names = ["tab\t", "line\nbreak", "nul\0", "back\\slash", "'\"", "€ 𝄞", "", "null"]
    ok(transfer(*({"id": number, "name": name} for number, name in enumerate(names))))
    assert [row["name"] for row in sql("SELECT name FROM goods ORDER BY id")] == names


def test_a_key_that_is_missing_keeps_the_default() -> None:
    ok(transfer({"id": 1, "name": None}, {"id": 2}, {"id": 3, "name": "x"}))
    assert [row["name"] for row in sql("SELECT name FROM goods ORDER BY id")] == [None, "nameless", "x"]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("id", "geheim", 'row 3, column "id": text that cannot be read as INTEGER'),
        ("at", "geheim", 'row 3, column "at": text that cannot be read as TIMESTAMP WITH TIME ZONE'),
        ("hue", "geheim", 'row 3, column "hue": text that cannot be read as'),
        ("price", [1], 'row 3, column "price": a list cannot be stored as DECIMAL(10,2)'),
        ("picture", "geh?", 'row 3, column "picture": text that is no base64'),
        ("name", "\ud800", 'row 3, column "name": text with half a surrogate pair'),
        ("colour", 1, "row 3: main.goods has no column `colour`; it has `id`"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_kept(column: str, value: Any, words: str) -> None:
    text = message(transfer({"id": 1}, {"id": 2}, {"id": 3, column: value}, chunk_size=2))
    assert words in text
    assert "geh" not in text
    assert sql("FROM goods") == []


def test_modes() -> None:
    ok(transfer({"id": 1, "name": "one"}, {"id": 2, "name": "two"}))
    ok(transfer({"id": 2, "name": "new"}, {"id": 3, "name": "a"}, {"id": 3, "name": "b"}, mode="upsert"))
    ok(transfer({"id": 1}, {"id": 4}, mode="upsert", key="id"))
    names = [(row["id"], row["name"]) for row in sql("SELECT id, name FROM goods ORDER BY id")]
    assert names == [(1, "one"), (2, "new"), (3, "b"), (4, "nameless")]
    assert "row 2 has nothing for `id`" in message(transfer({"id": 9}, {"name": "x"}, mode="upsert"))
    assert message(transfer({"id": 1})).startswith("rows 1 to 1: Duplicate key")
    assert "cannot be read" in message(transfer({"id": 8}, {"id": "x"}, mode="replace"))
    assert len(sql("FROM goods")) == 4
    ok(transfer({"id": 8}, mode="replace"))
    assert [row["id"] for row in sql("FROM goods")] == [8]


@pytest.mark.parametrize("table", ["Odd Name", '"odd name"', 'main."Odd Name"'])
def test_odd_names_are_quoted(table: str) -> None:
    sql('CREATE TABLE "Odd Name" (n INTEGER, "a""b; --" VARCHAR)')
    ok(transfer({"n": 1, 'a"b; --': "x"}, table=table))
    assert sql('FROM "Odd Name"') == [{"n": 1, 'a"b; --': "x"}]


def test_a_table_that_is_not_there() -> None:
    outcome = transfer({"id": 1}, table="nowhere")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("sql", False)


def test_from_one_table_to_another_of_the_same_file() -> None:
    sql("CREATE TABLE copies AS FROM goods WITH NO DATA")
    query = "SELECT range::INTEGER AS id, {'k': range}::JSON AS note, 'n' || range AS name FROM range(2500)"
    result = ok(
        transfer(source={"kind": "duckdb", "query": f"CREATE TABLE seen AS SELECT 1; {query}; SET threads = 2"})
    )
    assert (result["rows"], result["chunks"]) == (2500, 3)
    ok(transfer(source={"type": "duckdb", "query": "SELECT id, note FROM goods"}, table="copies"))
    found = sql("SELECT count(*) AS n, sum(id) AS s, max(note->>'k') AS m FROM copies")
    assert found == [{"n": 2500, "s": 3123750, "m": "999"}]


def test_a_source_that_fails_keeps_nothing() -> None:
    late = "CASE WHEN range < 2000 THEN range ELSE error('late') END"
    query = f"CREATE TABLE seen AS SELECT 1;\nSELECT {late} AS id FROM range(3000)"
    assert "late" in message(transfer(source={"kind": "duckdb", "query": query}))
    assert sql("FROM goods") == []
    assert sql("SELECT count(*) AS n FROM duckdb_tables() WHERE table_name = 'seen'") == [{"n": 0}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": {"kind": "snowflake"}}, "unknown kind `snowflake` of `source`; known: `data`, `http`"),
        ({"source": {}}, "`source` needs a `kind`"),
        ({"source": None}, "needs `source`"),
        ({"source": {"kind": "data"}}, "needs `data`"),
        ({"source": {"kind": "http", "data": {}}}, "needs one of `url`"),
        ({"source": {"kind": "http", "url": "x", "sql": "y"}}, "unknown key `sql` in `source` of kind `http`"),
        ({"source": {"kind": "postgres", "query": "BEGIN; SELECT 1", "auth": "a"}}, "`BEGIN` cannot be used here"),
        ({"source": {"kind": "postgres", "query": "SELECT 1"}}, "needs `auth`"),
        ({"source": {"kind": "duckdb"}}, "needs one of `query`"),
        ({"target": {"kind": "http"}}, "unknown kind `http` of `target`"),
        ({"target": {"kind": "duckdb"}}, "needs `table`"),
        ({"target": {"kind": "duckdb", "table": "a.b.c"}}, "`target.table` has to be"),
        ({"target": {"kind": "duckdb", "table": "a", "query": "INSERT"}}, "unknown key `query` in `target`"),
        ({"mode": "merge"}, "unknown mode `merge`"),
        ({"chunk_size": 0}, "`chunk_size` has to be"),
        ({"chunks": 1}, "unknown key `chunks`: did you mean `chunk_size`?"),
    ],
)
def test_keys_are_checked(changes: dict[str, Any], words: str) -> None:
    good = {"source": {"kind": "data", "data": "{{ x }}"}, "target": {"kind": "duckdb", "table": "{{ t }}"}}
    tool = TransferTool()
    assert not tool.check(good)
    assert any(words in text for _, text in tool.check({**good, **changes})), tool.check({**good, **changes})
