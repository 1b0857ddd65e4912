"""``noetl-celery schema``: the language for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noetl_celery.cli.console import note, out
from noetl_celery.errors import InputError


def schema(
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Prints a JSON Schema of playbooks, with the kinds of tools that are installed here.

    Editors complete and check playbooks with it. Needs no service.
    """
    from noetl_celery.cursors.registry import CursorRegistry
    from noetl_celery.playbook.schema import as_text, playbook_schema
    from noetl_celery.tools.registry import ToolRegistry

    text = as_text(playbook_schema(ToolRegistry(), CursorRegistry().kinds()))
    if output is None:
        out(text.rstrip("\n"))
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{output} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    note(f"written: {output} (name it in a playbook's first line: # yaml-language-server: $schema={output})")
