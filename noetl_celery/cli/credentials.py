"""``noetl-celery credential``: set, list, delete. A credential's fields go in and never come out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl_celery.cli.console import note, out, out_json, table
from noetl_celery.cli.inputs import json_mapping
from noetl_celery.errors import InputError, NotFound

if TYPE_CHECKING:
    from noetl_celery.client import Noetl

commands = typer.Typer(
    no_args_is_help=True, help="Stores what playbooks name in `auth`, encrypted with NOETL_SECRET_KEY."
)


@commands.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="How playbooks call it.")],
    data: Annotated[
        str, typer.Option(help="The fields as JSON, @file, or - for standard input (keeps secrets out of `ps`).")
    ],
    type_: Annotated[
        str, typer.Option("--type", help="What it is for: postgres, or the kind of a plugin's tool.")
    ] = "postgres",
) -> None:
    """Creates or replaces a credential."""
    from noetl_celery.store.credentials import Vault

    if not name.strip():
        raise InputError("a credential needs a name")
    fields = json_mapping(data, "--data")
    _check(type_, fields)
    with _client() as client:
        vault = Vault(client.settings)
        client.run(lambda connection: vault.store(connection, name, type_, fields))
    note(f"credential '{name}' ({type_}) is stored")


@commands.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False) -> None:
    """Shows names, types and times; never the fields."""
    from noetl_celery.store import credentials

    with _client() as client:
        found = client.read(credentials.names)
    if as_json:
        out_json(found)
        return
    rows = [(row["name"], row["type"], f"{row['updated_at']:%Y-%m-%d %H:%M:%S}") for row in found]
    for line in table(("NAME", "TYPE", "UPDATED"), rows):
        out(line)


@commands.command("delete")
def delete(name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Removes a credential."""
    from noetl_celery.store import credentials

    with _client() as client:
        if not client.run(lambda connection: credentials.delete(connection, name)):
            raise NotFound(f"there is no credential '{name}'", hint="`noetl-celery credential list` shows all names")
    note(f"credential '{name}' is deleted")


def _check(type_: str, fields: Mapping[str, Any]) -> None:
    """What is sure not to work is refused here; the message names what is missing, never a value."""
    if type_ not in ("postgres", "postgresql"):
        return
    from noetl_celery.errors import ToolError
    from noetl_celery.tools.pg import conninfo

    if any("{{" in value for value in fields.values() if isinstance(value, str)):
        return
    try:
        conninfo(fields)
    except ToolError as error:
        raise InputError(error.message) from None


@contextmanager
def _client() -> Iterator[Noetl]:
    from noetl_celery.client import Noetl

    with Noetl() as client:
        yield client
