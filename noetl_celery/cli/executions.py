"""``noetl-celery status``, ``wait``, ``events``, ``result`` and ``list``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl_celery.cli.console import (
    EXIT_CODES,
    FAILED,
    detaching,
    flush,
    hush,
    out,
    out_json,
    seconds_text,
    short_json,
    table,
)
from noetl_celery.errors import InputError, WaitTimeout
from noetl_celery.ids import with_text_ids

if TYPE_CHECKING:
    from noetl_celery.execution import Execution

Id = Annotated[str, typer.Argument(metavar="ID", help="The execution's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes: only the result, and errors.")]


def status(
    execution_id: Id,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show how far it is, until it ends.")] = False,
    quiet: Quiet = False,
) -> None:
    """Shows where an execution is. The exit code is 0 whatever its status (use `wait` for one that tells)."""
    from noetl_celery.cli.progress import show_execution
    from noetl_celery.client import Noetl

    hush(quiet)
    with Noetl() as client:
        execution = client.execution(execution_id)
        if watch:
            with detaching(execution.id):
                follow(execution, None, as_json=as_json)
        elif as_json:
            out_json(execution.report())
        else:
            show_execution(execution)


def wait(
    execution_id: Id,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait; then exit code 3.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Waits for the end of an execution. Exit code 0: completed, 1: failed or cancelled, 3: timeout."""
    from noetl_celery.client import Noetl

    hush(quiet)
    with Noetl() as client:
        execution = client.execution(execution_id)
        with detaching(execution.id):
            raise typer.Exit(follow(execution, timeout, as_json=as_json))


def events(
    execution_id: Id,
    stay: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the execution ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Shows what happened in an execution, oldest first."""
    from noetl_celery.client import Noetl

    with Noetl() as client:
        execution = client.execution(execution_id)
        with detaching(execution.id):
            for event in execution.events(follow=stay):
                if as_json:
                    out_json(with_text_ids(event))
                else:
                    out(_event_line(event))
                if stay:
                    flush()


def result(
    execution_id: Id,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's name.")],
    path: Annotated[str, typer.Option(help="Only a part of it, as `rows[3].name`.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")] = None,
) -> None:
    """Prints the result of a step as JSON, whatever its size."""
    from noetl_celery.client import Noetl

    with Noetl() as client:
        pieces = client.execution(execution_id).step_result_text(step, path)
        if output is not None:
            _write(output, pieces)
            return
        for piece in pieces:
            out(piece, end="")
        out()


def _write(file: Path, pieces: Iterable[str]) -> None:
    """The file is there when all of it is written, and not before."""
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.writelines(pieces)
            stream.write("\n")
        part.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def list_(
    status: Annotated[str | None, typer.Option(help="Only those with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Shows the latest executions, newest first."""
    from noetl_celery.client import Noetl

    with Noetl() as client:
        found = client.executions(limit, status)
    if as_json:
        out_json([with_text_ids(row) for row in found])
        return
    rows = [
        (
            str(row["execution_id"]),
            row["status"],
            row["path"],
            f"{row['created_at']:%Y-%m-%d %H:%M:%S}",
            _took(row),
            (row["error"] or {}).get("message") or "",
        )
        for row in found
    ]
    for line in table(
        ("ID", "STATUS", "PATH", "SUBMITTED", "TOOK", "ERROR"),
        [(*r[:5], short_json(r[5].split("\n")[0], 60)) for r in rows],
    ):
        out(line)


def follow(execution: Execution, timeout: float | None, *, as_json: bool) -> int:
    """Waits while showing progress, then shows how it ended; the exit code. With JSON a timeout prints a report too."""
    from noetl_celery.cli.progress import ProgressView, show_execution, show_summary
    from noetl_celery.cli.waiting import Waiting

    waiting = Waiting(execution)
    with ProgressView(execution.id) as view:
        try:
            last = None
            for last in execution.watch(timeout):
                view.show(last)
                waiting.look(last)
        except WaitTimeout:
            if as_json:
                out_json(execution.report())
            raise
    if as_json:
        out_json(execution.report())
    else:
        show_execution(execution)
        show_summary(execution)
    return EXIT_CODES.get(last.status, FAILED) if last else FAILED


def _took(row: Mapping[str, Any]) -> str:
    ended = row["finished_at"]
    return seconds_text((ended - row["created_at"]).total_seconds()) if ended else ""


def _event_line(event: Mapping[str, Any]) -> str:
    details = {key: value for key in ("context", "result", "meta") if (value := event[key])}
    parts = [
        f"{event['created_at']:%H:%M:%S.%f}"[:-3],
        event["event_type"].ljust(18),
        event["node_name"] or "",
        event["status"] or "",
        short_json(details) if details else "",
    ]
    return "  ".join(part for part in parts if part.strip())
