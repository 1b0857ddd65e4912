"""``noetl-celery credential``: set, list, delete. A credential's fields go in and never come out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from noetl_celery.cli.console import note, out, out_json, table
from noetl_celery.cli.inputs import json_mapping

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
    fields = json_mapping(data, "--data")
    with _client() as client:
        client.set_credential(name, type_, fields)
    note(f"credential '{name}' ({type_}) is stored")


@commands.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False) -> None:
    """Shows names, types and times; never the fields."""
    with _client() as client:
        found = client.credentials()
    if as_json:
        out_json(found)
        return
    rows = [(row["name"], row["type"], f"{row['updated_at']:%Y-%m-%d %H:%M:%S}") for row in found]
    for line in table(("NAME", "TYPE", "UPDATED"), rows):
        out(line)


@commands.command("delete")
def delete(name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Removes a credential."""
    with _client() as client:
        client.delete_credential(name)
    note(f"credential '{name}' is deleted")


@contextmanager
def _client() -> Iterator[Noetl]:
    from noetl_celery.client import Noetl

    with Noetl() as client:
        yield client
