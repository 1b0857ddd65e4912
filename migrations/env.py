"""Alembic's entry: runs the migrations on the connection that ``noetl_celery.store.migrate`` gives it.

With the ``alembic`` command it connects by itself to NOETL_DATABASE_URL, without the advisory lock.
"""

import sqlalchemy as sa
from alembic import context

from noetl_celery.settings import load
from noetl_celery.store.tables import SCHEMA, declared, metadata


def run(connection: sa.Connection) -> None:
    """Runs the migrations that were asked for on this connection."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=declared,
        compare_type=True,
        compare_server_default=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with sa.create_engine(load().sqlalchemy_url).begin() as own:
        own.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        run(own)
