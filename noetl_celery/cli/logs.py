"""``noetl-celery logs``: what tasks printed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from noetl_celery.cli.console import detaching, flush, note, out, out_json
from noetl_celery.cli.executions import Id
from noetl_celery.errors import InputError


def logs(
    execution_id: Id,
    step: Annotated[str | None, typer.Argument(metavar="[STEP]", help="Only of this step, of all its visits.")] = None,
    stay: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the execution ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Begin with the last so many lines.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many lines; 0: all of them.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Shows what the tasks of an execution printed, oldest first, with time, step and row.

    What a task printed in the moment before its worker died may be missing. A row that was run again has printed again.
    """
    from noetl_celery.client import Noetl

    if tail is not None and limit:
        raise InputError("--tail and --limit exclude each other")
    with Noetl() as client:
        execution = client.execution(execution_id)
        with detaching(execution.id):
            nothing = True
            for line in islice(execution.logs(step, tail=tail, follow=stay), limit or None):
                nothing = False
                if as_json:
                    out_json(line)
                else:
                    out(_shown(line))
                if stay:
                    flush()
            if nothing and tail != 0:
                note(f"nothing was printed{f' in step {step!r}' if step else ''}")


def _shown(line: Mapping[str, Any]) -> str:
    place = line["step"] if line["task"] == line["step"] else f"{line['step']}/{line['task']}"
    row = "" if line["kind"] == "single" else f" {line['frame']}.{line['row']}"
    return f"{line['at']:%H:%M:%S.%f}"[:-3] + f"  {place}{row}  {line['text']}"
