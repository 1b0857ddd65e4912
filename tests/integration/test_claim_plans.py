"""The SQL of docs/cursor-loops.md, and that PostgreSQL runs it with the plans that the page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pages import blocks

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "cursor-loops.md"
BLOCKS = {block.title: block.body for block in blocks(PAGE.read_text()) if block.title}
PLANS = sorted(name.removesuffix(".plan") for name in BLOCKS if name.endswith(".plan"))
#: what tells one plan from another: the kinds of nodes, and which index
NODE = re.compile(
    r"(?:->  |^)(?P<kind>[A-Z][A-Za-z ]*?)(?: using (?P<index>\w+))?(?: on \w+.*)?(?: \d)?$", re.MULTILINE
)
#: most rows are done, 400 open, as many claimed, some of them long ago
FILL = """
    CREATE TABLE tenants AS SELECT n AS id FROM generate_series(1, 20) n;
    INSERT INTO jobs (tenant, priority, status, claimed_at)
    SELECT n % 20 + 1, n % 7, CASE WHEN n % 500 = 0 THEN 'open' WHEN n % 500 = 1 THEN 'claimed' ELSE 'done' END,
           CASE WHEN n % 500 = 1 THEN now() - interval '1 minute' * (n % 17) END
    FROM generate_series(1, 200000) n;
    ANALYZE;
"""


@pytest.fixture
def jobs(empty_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(BLOCKS["jobs.sql"].encode())
        connection.execute(FILL.encode())
        yield connection


def nodes(plan: str) -> list[tuple[str, str | None]]:
    return [(found["kind"], found["index"]) for found in NODE.finditer(plan)]


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_as_shown(jobs: psycopg.Connection, name: str) -> None:
    statement = BLOCKS[f"{name}.sql"]
    explained = jobs.execute(f"EXPLAIN (COSTS OFF) {statement}".encode()).fetchall()
    plan = "\n".join(line for (line,) in explained)
    shown = nodes(BLOCKS[f"{name}.plan"])
    assert len(shown) > 1
    assert nodes(plan) == shown, plan
    assert jobs.execute(statement.encode()).rowcount > 0


def test_two_claims_at_once_share_no_row(jobs: psycopg.Connection) -> None:
    """The page says why: locks decide, and what is locked is passed over."""
    with psycopg.connect(jobs.info.dsn) as other, jobs.transaction():
        mine = {row for (row,) in jobs.execute(BLOCKS["claim.sql"].encode())}
        theirs = {row for (row,) in other.execute(BLOCKS["claim.sql"].encode())}
        assert len(mine) == len(theirs) == 50
        assert not mine & theirs


def test_every_statement_has_its_plan() -> None:
    assert PLANS == ["claim", "reclaim", "tenants"]
    assert {name for name in BLOCKS if name.endswith(".sql")} == {"jobs.sql", *(f"{name}.sql" for name in PLANS)}
