"""Is it a command of ours? For documents and deployment files, which name commands that nobody runs there."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click
import typer

from noetl_celery.cli import app


def unknown(words: Sequence[str]) -> set[str]:
    """What ``noetl-celery`` does not know of these arguments: the command, or options of it. Those after ``--`` are
    somebody else's."""
    command: click.Command = typer.main.get_command(app)
    context, rest = click.Context(command), list(words)
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        inner = command.get_command(context, rest[0])
        if inner is None:
            return {rest[0]}
        command, context = inner, click.Context(inner, parent=context)
        rest.pop(0)
    if "--" in rest:
        rest = rest[: rest.index("--")]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    return {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - known
