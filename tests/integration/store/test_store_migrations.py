"""The schema's revisions: they make what is declared, can be undone, and are checked before a worker works."""

from __future__ import annotations

import threading

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from services import make_settings
from world import wait_for

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


def columns(settings: Settings) -> dict[tuple[str, str], tuple[str, bool, bool]]:
    """Of each column: its type, whether an insert must name it, and whether it may be NULL."""
    with psycopg.connect(settings.libpq_url) as connection:
        found = connection.execute(
            """
            SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                   a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', NOT a.attnotnull
            FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            WHERE c.relnamespace = 'noetl'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND a.attnum > 0 AND NOT a.attisdropped
            """
        ).fetchall()
    return {(table, column): (kind, needed, nullable) for table, column, kind, needed, nullable in found}


def constraints(settings: Settings) -> set[str]:
    """What rows have to fulfil, beside the keys of their tables."""
    with psycopg.connect(settings.libpq_url) as connection:
        found = connection.execute(
            """
            SELECT conrelid::regclass || ': ' || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = 'noetl'::regnamespace AND contype IN ('c', 'f', 'u', 'x')
            UNION ALL
            SELECT indrelid::regclass || ': ' || pg_get_indexdef(indexrelid) FROM pg_index
            WHERE indisunique AND NOT indisprimary AND indrelid IN (
                SELECT oid FROM pg_class WHERE relnamespace = 'noetl'::regnamespace AND NOT relispartition)
            """
        ).fetchall()
    return {text for (text,) in found}


STEPS = [(script.down_revision, script.revision) for script in migrate.revisions() if script.revision >= "0005"]


@pytest.mark.parametrize(("old", "new"), STEPS, ids=[new for _, new in STEPS])
def test_workers_of_the_revision_before_can_go_on(old: str, new: str, unmigrated: Settings) -> None:
    """Nothing that they read is gone or changed, nothing that they write is refused."""
    migrate.upgrade(unmigrated, old)
    before, demanded = columns(unmigrated), constraints(unmigrated)
    migrate.upgrade(unmigrated, new)
    after = columns(unmigrated)
    for place, (kind, needed, nullable) in before.items():
        assert place in after, f"{place} is gone"
        kind_now, needed_now, nullable_now = after[place]
        assert kind_now == kind, place
        assert needed or not needed_now, f"{place} has to be named now"
        assert nullable_now or not nullable, f"{place} may not be NULL now"
    for place in after.keys() - before.keys():
        if any(table == place[0] for table, _ in before):
            assert not after[place][1], f"{place} is unknown to them, and neither nullable nor has it a default"
    tables = {table for table, _ in before}
    more = {text for text in constraints(unmigrated) - demanded if text.split(":")[0].removeprefix("noetl.") in tables}
    assert not more, "rows are refused that were right"


def test_upgrade_gives_way_to_who_works_and_comes_back(unmigrated: Settings) -> None:
    """It never stands in the way for long: those who wait behind it go on, and so does it when it can."""
    migrate.upgrade(unmigrated, "0005")
    reached: list[str] = []
    with psycopg.connect(unmigrated.libpq_url) as long, psycopg.connect(unmigrated.libpq_url, autocommit=True) as other:
        long.execute("SELECT count(*) FROM noetl.event")
        upgrade = threading.Thread(target=lambda: reached.append(migrate.upgrade(unmigrated)))
        upgrade.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'noetl.event'::regclass"
        for _ in range(3):
            wait_for(lambda: other.execute(waiting).fetchone() == (1,), "it waits for the table")
            other.execute(f"SET statement_timeout = {2 * migrate.LOCK_MS}")
            other.execute("INSERT INTO noetl.event (execution_id, event_type) VALUES (1, 'test')")
        assert upgrade.is_alive()
        long.rollback()
        upgrade.join(timeout=30)
    assert reached == [migrate.head()]


def test_upgrade_says_who_does_not_give_way(unmigrated: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "PATIENCE_SECONDS", 1.0)
    migrate.upgrade(unmigrated, "0005")
    with psycopg.connect(unmigrated.libpq_url) as long:
        long.execute("SELECT count(*) FROM noetl.event")
        with pytest.raises(ServiceError, match=r"in use by a transaction that does not end; nothing was changed.*pid"):
            migrate.upgrade(unmigrated)
    assert migrate.current(unmigrated) == "0005"


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
