"""``noetl-celery cancel``, ``pause``, ``resume``, ``retry`` and ``verify``."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from noetl_celery.cli.console import FAILED, OK, RED, detaching, hush, note, out, out_json, paint
from noetl_celery.cli.executions import Id, Json, Quiet, follow
from noetl_celery.errors import InputError


class Rows(StrEnum):
    """Which rows of a step are run again."""

    failed = "failed"


def cancel(
    execution_id: Id,
    reason: Annotated[str | None, typer.Option(help="Why, for those who look at it later.")] = None,
) -> None:
    """Ends an execution: nothing new starts, what runs is finished. Asking again does no harm."""
    from noetl_celery.client import Noetl

    with Noetl() as client:
        execution = client.execution(execution_id)
        if execution.cancel(reason):
            note(f"execution {execution.id} is being cancelled")
        else:
            note(f"execution {execution.id} has ended already: {execution.status()}")


def pause(execution_id: Id) -> None:
    """Holds an execution: no step and no claim starts until it is resumed; rows that were claimed go on."""
    _tell(execution_id, "pause", "is paused; rows that were claimed go on")


def resume(execution_id: Id) -> None:
    """Goes on with a paused execution."""
    _tell(execution_id, "resume", "goes on")


def _tell(execution_id: str, what: str, said: str) -> None:
    from noetl_celery.client import Noetl

    with Noetl() as client:
        execution = client.execution(execution_id)
        if getattr(execution, what)():
            note(f"execution {execution.id} {said}")
        else:
            raise InputError(f"execution {execution.id} has ended: {execution.status()}")


def retry(
    execution_id: Id,
    step: Annotated[str | None, typer.Argument(metavar="[STEP]", help="With --rows: the step.")] = None,
    rows: Annotated[Rows | None, typer.Option(help="Run these rows of STEP again.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it ends; the exit code tells how.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Runs failed work again: a failed execution from where it failed, without rows that were ok; or, with
    `--rows failed STEP`, the failed rows of a step, and what follows it."""
    from noetl_celery.client import Noetl

    hush(quiet)
    if (step is None) != (rows is None):
        raise InputError(
            "`--rows` and STEP go together", hint=f"write: noetl-celery retry {execution_id} --rows failed STEP"
        )
    with Noetl() as client:
        execution = client.execution(execution_id)
        execution.retry(step=step)
        what = f"the failed rows of step '{step}' are" if step else "what failed is"
        note(f"execution {execution.id}: {what} run again")
        if wait:
            execution.wait_until_under_way()
            with detaching(execution.id):
                raise typer.Exit(follow(execution, None, as_json=as_json))


def verify(execution_id: Id, as_json: Json = False) -> None:
    """Decides an execution again from its events and compares it with the tables. Exit code 1: they differ."""
    from noetl_celery.client import Noetl
    from noetl_celery.store.verify import shown

    with Noetl() as client:
        execution = client.execution(execution_id)
        found = execution.verify()
        if as_json:
            out_json({"execution_id": str(execution.id), **asdict(found)})
        else:
            for line in found.notes:
                out(line)
            for line in shown(found.differences):
                out(paint(line, RED, typer.get_text_stream("stdout")))
            count = len(found.differences)
            out(f"{found.turns:,} decisions made again, {count} difference{'' if count == 1 else 's'}")
        raise typer.Exit(FAILED if found.differences else OK)
