"""``noetl-celery db``: the schema ``noetl`` and its revisions."""

from __future__ import annotations

from typing import Annotated

import typer

from noetl_celery.cli.console import note, out

commands = typer.Typer(no_args_is_help=True, help="Makes and changes the schema `noetl` in NOETL_DATABASE_URL.")


@commands.command()
def upgrade(revision: Annotated[str, typer.Argument(help="Where to; the newest by default.")] = "head") -> None:
    """Brings the schema to a revision. Does nothing where it is there already; several may run at once."""
    from noetl_celery.settings import load
    from noetl_celery.store import migrate

    note(f"the schema is at revision {migrate.upgrade(load(), revision)}")


@commands.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Where to: a revision, -1 for one back, or `base` for nothing left.")],
) -> None:
    """Takes the schema back to a revision. What the newer ones had added is lost."""
    from noetl_celery.settings import load
    from noetl_celery.store import migrate

    note(f"the schema is at revision {migrate.downgrade(load(), revision)}")


@commands.command()
def current() -> None:
    """Prints the revision of the database."""
    from noetl_celery.settings import load
    from noetl_celery.store import migrate

    out(migrate.current(load()) or "none")


@commands.command()
def check() -> None:
    """Succeeds only if the database has the revision that this version needs."""
    from noetl_celery.settings import load
    from noetl_celery.store import migrate

    migrate.check(load())
    out(f"ok: revision {migrate.head()}")
