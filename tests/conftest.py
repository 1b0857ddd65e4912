"""Services for all tests: one PostgreSQL for the session, a database of its own for each test that asks for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from services import Server, make_settings

from noetl_celery.cli.embedded import EmbeddedServices
from noetl_celery.errors import InputError
from noetl_celery.settings import Settings
from noetl_celery.store import migrate
from noetl_celery.tools import pg


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server that NOETL_TEST_DATABASE_URL names, or an embedded one. None: skipped, but a failure on CI."""
    given = os.environ.get("NOETL_TEST_DATABASE_URL")
    if given:
        yield Server(given)
        return
    with ExitStack() as stack:
        try:
            services = stack.enter_context(EmbeddedServices(fresh=True, redis=False))
        except InputError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        server = Server(services.database_url or "")
        # Nothing here has to survive a power cut.
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            server.execute(f"ALTER SYSTEM SET {name} = off")
        server.execute("SELECT pg_reload_conf()")
        yield server
        pg.close_all()


@pytest.fixture(scope="session")
def template(postgres: Server) -> Iterator[str]:
    """A database with the schema, that others are cloned from."""
    name = postgres.create()
    migrate.upgrade(make_settings(postgres.database(name)))
    yield name
    postgres.drop(name)


@pytest.fixture
def database(postgres: Server, template: str) -> Iterator[str]:
    """The URL of a fresh database with the schema."""
    name = postgres.create(template)
    yield postgres.database(name)
    pg.close_all()
    postgres.drop(name)


@pytest.fixture
def empty_database(postgres: Server) -> Iterator[str]:
    """The URL of a database with nothing in it, not even the schema: another system's, or one to migrate."""
    name = postgres.create()
    yield postgres.database(name)
    pg.close_all()
    postgres.drop(name)


@pytest.fixture
def settings(database: str) -> Settings:
    return make_settings(database)
