"""The commands of docs/cli.md, from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import typer

from noetl_celery.cli import app

PROGRAM = "noetl-celery"


def commands(_: str) -> str:
    """Every command: what it is called with, what it does, its arguments and options."""
    root: Any = typer.main.get_command(app)
    return "\n\n".join(_described(root, PROGRAM, click.Context(root, info_name=PROGRAM)))


def _described(command: Any, name: str, context: click.Context) -> Iterator[str]:
    if not hasattr(command, "list_commands"):
        yield _command(command, name, context)
        return
    if name == PROGRAM:
        yield f"## Options of every command\n\nThey stand before the command.\n\n{_table(command, context)}"
    else:
        yield f"## {name}\n\n{_prose(command.help)}"
    for word in command.list_commands(context):
        inner = command.get_command(context, word)
        yield from _described(inner, f"{name} {word}", click.Context(inner, info_name=word, parent=context))


def _command(command: Any, name: str, context: click.Context) -> str:
    level = "###" if name.count(" ") > 1 else "##"
    more = " [-- COMMAND…]" if command.context_settings.get("allow_extra_args") else ""
    usage = " ".join([name, *command.collect_usage_pieces(context)]) + more
    parts = [f"{level} {name}", f"```text\n{usage}\n```", _prose(command.help), _table(command, context)]
    return "\n\n".join(part for part in parts if part)


def _table(command: Any, context: click.Context) -> str:
    records = [parameter.get_help_record(context) for parameter in command.params if parameter.name != "help"]
    rows = [f"| `{_cell(left)}` | {_cell(right)} |" for left, right in filter(None, records)]
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace(" RANGE", "").replace("|", "\\|").strip()


def _prose(text: str | None) -> str:
    """A docstring as paragraphs."""
    return "\n\n".join(re.sub(r"\s+", " ", part).strip() for part in (text or "").split("\n\n"))
