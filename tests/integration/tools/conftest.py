"""A database to try the tools on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from services import Server, credential_of

from noetl_celery.outcome import Outcome
from noetl_celery.tools import pg
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.postgres import PostgresTool


@pytest.fixture(scope="session")
def database_url(postgres: Server) -> Iterator[str]:
    """A database of their own for all tests of tools."""
    name = postgres.create()
    yield postgres.database(name)
    pg.close_all()
    postgres.drop(name)


@pytest.fixture
def credential(database_url: str) -> dict[str, Any]:
    """The credential as NoETL's fields spell it."""
    return dict(credential_of(database_url))


@pytest.fixture
def admin(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def tool() -> Iterator[PostgresTool]:
    made = PostgresTool()
    yield made
    made.close()


Run = Callable[..., Outcome]


@pytest.fixture
def run(tool: PostgresTool, credential: dict[str, Any]) -> Run:
    """Runs SQL: ``run("SELECT 1", params={…})``."""

    def run_sql(command: Any, *, deadline: float | None = None, **config: Any) -> Outcome:
        call = ToolCall(
            config={"auth": "pg_local", "command": command, **config},
            input={},
            credential=lambda name: credential,
            print=print,
            names={},
            deadline=deadline,
        )
        return run_tool(tool, call)

    return run_sql
