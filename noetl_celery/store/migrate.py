"""The schema's revisions: upgrade and downgrade under an advisory lock, and the check that every worker makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util.exc import CommandError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed, wait_random

from noetl_celery.errors import InputError, ServiceError
from noetl_celery.settings import Settings
from noetl_celery.store.db import away
from noetl_celery.store.tables import SCHEMA

_LOCK = 4_873_220_611
_UPGRADE_HINT = "run: noetl-celery db upgrade"
#: how long a change waits for a table; more than PostgreSQL's ``deadlock_timeout`` (1 s), after which an autovacuum
#: makes room
LOCK_MS = 2_000
#: least pause between two tries, and how long they go on
PAUSE_SECONDS, PATIENCE_SECONDS = 1.0, 60.0


def upgrade(settings: Settings, revision: str = "head") -> str:
    """Brings the schema to ``revision``, in one transaction; returns the revision reached. Idempotent.

    Whoever upgrades at the same time waits for its turn and finds nothing to do. Work may go on meanwhile: nobody waits
    longer than two seconds for a table that is still in use. Raises ``ServiceError`` for an unreachable server and for
    tables that are in use for a minute, ``InputError`` for an unknown revision.
    """
    return _change(settings, lambda config: command.upgrade(config, revision))


def downgrade(settings: Settings, revision: str) -> str:
    """Takes the schema back to ``revision`` (``base``: nothing is left of it); returns the revision reached."""
    return _change(settings, lambda config: command.downgrade(config, revision), at_base=_leave_nothing)


def current(settings: Settings) -> str | None:
    """The revision that the database is at; None before the first upgrade."""
    with _connect(settings) as connection:
        return _current(connection)


def head() -> str:
    """The revision that this version of the package needs."""
    return revisions()[-1].revision


def revisions() -> list[Script]:
    """All revisions that this version knows, the oldest first."""
    return list(ScriptDirectory.from_config(_config()).walk_revisions())[::-1]


def check(settings: Settings) -> None:
    """Raises ``ServiceError`` unless the database is at exactly the revision that this package needs."""
    found, needed = current(settings), head()
    if found == needed:
        return
    if found is None:
        raise ServiceError(f"the database has no schema `{SCHEMA}` yet", hint=_UPGRADE_HINT)
    known = {script.revision for script in revisions()}
    hint = _UPGRADE_HINT if found in known else "the database is newer: upgrade noetl-celery on this machine"
    raise ServiceError(f"the schema `{SCHEMA}` is at revision {found}, this version needs {needed}", hint=hint)


def _change(
    settings: Settings, run: Callable[[Config], None], at_base: Callable[[sa.Connection], None] | None = None
) -> str:
    """One transaction, tried again while somebody's transaction is in its way.

    It waits only briefly for a table: everybody who wants that table meanwhile waits behind it.
    """

    def attempt() -> str:
        with _connect(settings) as connection:
            # Those who upgrade at the same time wait for each other as long as it takes.
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_MS}"))
            return _run(connection, run, at_base)

    patience = Retrying(
        retry=retry_if_exception(_in_the_way),
        wait=wait_fixed(PAUSE_SECONDS) + wait_random(0, PAUSE_SECONDS),
        stop=stop_after_delay(PATIENCE_SECONDS),
        reraise=True,
    )
    try:
        return patience(attempt)
    except sa.exc.OperationalError as error:
        raise _busy() from error


def _run(
    connection: sa.Connection, run: Callable[[Config], None], at_base: Callable[[sa.Connection], None] | None
) -> str:
    connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    config = _config()
    config.attributes["connection"] = connection
    try:
        run(config)
    except CommandError as error:
        raise InputError(f"{error}", hint="`noetl-celery db current` shows where the database is") from error
    reached = _current(connection)
    if reached is None and at_base is not None:
        at_base(connection)
    return reached or "base"


def _in_the_way(error: BaseException) -> bool:
    """A lock that we did not get in time, or a deadlock: whoever holds it goes on, and we come back."""
    return isinstance(error, sa.exc.OperationalError) and getattr(error.orig, "sqlstate", None) in ("55P03", "40P01")


def _busy() -> ServiceError:
    return ServiceError(
        f"the tables of schema `{SCHEMA}` are in use by a transaction that does not end; nothing was changed",
        hint="find it with: SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start; then try again",
    )


def _leave_nothing(connection: sa.Connection) -> None:
    """Removes Alembic's own table, and the schema unless somebody else keeps something in it."""
    connection.execute(sa.text(f"DROP TABLE IF EXISTS {SCHEMA}.alembic_version"))
    others = sa.text("SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace(:schema))")
    if not connection.execute(others, {"schema": SCHEMA}).scalar_one():
        connection.execute(sa.text(f"DROP SCHEMA {SCHEMA} RESTRICT"))


@contextmanager
def _connect(settings: Settings) -> Iterator[sa.Connection]:
    engine = sa.create_engine(settings.sqlalchemy_url, poolclass=sa.pool.NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.begin() as connection:
            yield connection
    except sa.exc.OperationalError as error:
        if _in_the_way(error):
            raise
        raise away(error.orig if isinstance(error.orig, Exception) else error) from error


def _current(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA}).get_current_revision()


def _config() -> Config:
    package = Path(__file__).resolve().parent.parent
    # In a wheel the scripts lie inside the package, in a source tree beside it.
    scripts = next(path for path in (package / "migrations", package.parent / "migrations") if path.is_dir())
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return config
