"""The schema's revisions: they make what is declared, can be undone, and are checked before a worker works."""

from __future__ import annotations

import threading

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from services import make_settings

from noetl_celery.errors import InputError, ServiceError
from noetl_celery.settings import Settings
from noetl_celery.store import migrate
from noetl_celery.store.tables import SCHEMA, declared, metadata

pytestmark = pytest.mark.integration


def differences(settings: Settings) -> list[object]:
    # A role named like the schema has it in its search path, and Alembic would take the schema for the default one.
    path = {"options": "-c search_path=public"}
    engine = sa.create_engine(settings.sqlalchemy_url, poolclass=sa.pool.NullPool, connect_args=path)
    with engine.connect() as connection:
        options = {
            "version_table_schema": SCHEMA,
            "include_schemas": True,
            "include_name": declared,
            "compare_type": True,
            "compare_server_default": True,
        }
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def objects(settings: Settings) -> list[tuple[str, str]]:
    """Everything in the database that does not belong to PostgreSQL itself."""
    with psycopg.connect(settings.libpq_url) as connection:
        return connection.execute(
            """
            SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
            UNION ALL
            SELECT n.nspname, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
            WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
            UNION ALL SELECT nspname, '' FROM pg_namespace WHERE nspname = 'noetl'
            """
        ).fetchall()


@pytest.fixture
def unmigrated(empty_database: str) -> Settings:
    return make_settings(empty_database)


def test_migrations_make_what_is_declared(settings: Settings) -> None:
    assert differences(settings) == []


def test_checks_and_partial_indexes_are_there_too(settings: Settings) -> None:
    """``compare_metadata`` looks at neither CHECK constraints nor the conditions of indexes."""
    declared = {
        constraint.name if str(constraint.name).startswith(table.name) else f"{table.name}_{constraint.name}_check"
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, sa.CheckConstraint)
    }
    conditional = {
        index.name
        for table in metadata.tables.values()
        for index in table.indexes
        if index.dialect_options["postgresql"]["where"] is not None
    }
    with psycopg.connect(settings.libpq_url) as connection:
        checks = connection.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND connamespace = 'noetl'::regnamespace"
        ).fetchall()
        indexes = connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE i.indpred IS NOT NULL AND NOT c.relispartition AND c.relnamespace = 'noetl'::regnamespace"
        ).fetchall()
    assert {name for (name,) in checks} == declared
    assert {name for (name,) in indexes} == conditional


def test_downgrade_leaves_nothing_and_can_be_repeated(unmigrated: Settings) -> None:
    before = objects(unmigrated)
    assert migrate.upgrade(unmigrated) == migrate.head()
    assert migrate.upgrade(unmigrated) == migrate.head()
    assert migrate.downgrade(unmigrated, "base") == "base"
    assert objects(unmigrated) == before
    assert migrate.upgrade(unmigrated) == migrate.head()
    assert differences(unmigrated) == []


def test_downgrade_spares_what_others_keep_in_the_schema(unmigrated: Settings) -> None:
    migrate.upgrade(unmigrated)
    with psycopg.connect(unmigrated.libpq_url, autocommit=True) as connection:
        connection.execute("CREATE VIEW noetl.mine AS SELECT 1 AS one")
    migrate.downgrade(unmigrated, "base")
    with psycopg.connect(unmigrated.libpq_url) as connection:
        assert connection.execute("SELECT one FROM noetl.mine").fetchall() == [(1,)]


def test_upgrades_at_once_take_turns(unmigrated: Settings) -> None:
    results: list[object] = []

    def upgrade() -> None:
        try:
            results.append(migrate.upgrade(unmigrated))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [migrate.head()] * 4


def test_check_names_what_is_wrong(unmigrated: Settings) -> None:
    with pytest.raises(ServiceError, match=r"no schema `noetl` yet \(run: noetl-celery db upgrade\)"):
        migrate.check(unmigrated)
    assert migrate.current(unmigrated) is None
    migrate.upgrade(unmigrated)
    migrate.check(unmigrated)
    with psycopg.connect(unmigrated.libpq_url, autocommit=True) as connection:
        connection.execute("UPDATE noetl.alembic_version SET version_num = '9999'")
    with pytest.raises(
        ServiceError, match=rf"revision 9999, this version needs {migrate.head()}.*upgrade noetl-celery"
    ):
        migrate.check(unmigrated)


def test_check_of_an_older_revision_says_upgrade(unmigrated: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate.upgrade(unmigrated)
    monkeypatch.setattr(migrate, "head", lambda: "next")
    with pytest.raises(ServiceError, match=r"this version needs next \(run: noetl-celery db upgrade\)"):
        migrate.check(unmigrated)


def test_unknown_revisions_and_absent_servers(unmigrated: Settings) -> None:
    with pytest.raises(InputError, match="no-such"):
        migrate.upgrade(unmigrated, "no-such")
    assert migrate.current(unmigrated) is None
    with pytest.raises(ServiceError, match="not reachable") as caught:
        migrate.check(make_settings("postgresql://u:hush@127.0.0.1:1/d"))
    assert "hush" not in str(caught.value)
