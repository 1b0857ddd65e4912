"""``noetl-celery register`` and ``run``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noetl_celery.cli.console import detaching, hush, note, out, out_json, warn
from noetl_celery.cli.executions import Quiet, follow
from noetl_celery.cli.inputs import assignments, json_mapping
from noetl_celery.cli.problems import Sources, shown
from noetl_celery.errors import PlaybookInvalid, Problem

if TYPE_CHECKING:
    from noetl_celery.client import Noetl
    from noetl_celery.execution import Execution
    from noetl_celery.submission import Playbook

Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="Playbooks (YAML).", show_default=False)]


def register(files: Files) -> None:
    """Puts playbooks into the catalog: all of them or none.

    Changed content makes a new version, unchanged content none. Exit code 2 if one is refused.
    """
    from noetl_celery.client import Noetl

    playbooks, problems = _read(files)
    if problems:
        raise PlaybookInvalid(problems)
    with Noetl() as client:
        for playbook in playbooks:
            done = client.register_playbook(playbook)
            _show_warnings(done.warnings)
            out(f"{done.path} version {done.version}{'' if done.new else ' (unchanged)'}")


def run(
    playbook: Annotated[
        str, typer.Argument(metavar="FILE_OR_PATH", help="A file (registered first), or a path of the catalog.")
    ],
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", "-w", help="JSON object, @file, or - for standard input; merged over the playbook's."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="One value of the workload: a.b=3. Wins over --workload."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; then exit code 3, and the execution goes on.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the id and do not wait.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Runs a playbook and shows how far it is. Ctrl-C leaves the execution running.

    Exit code 0: completed, 1: failed or cancelled, 2: invalid input, 3: timeout (the execution goes on).
    """
    from noetl_celery.client import Noetl
    from noetl_celery.playbook.workload import deep_merged

    hush(quiet)
    overrides = deep_merged(
        json_mapping(workload, "--workload") if workload is not None else {}, assignments(settings or [])
    )
    with Noetl() as client:
        execution = _submit(client, playbook, overrides)
        if not execution.announced:
            warn("Redis is not reachable; the execution is stored and starts when it is back")
        if detach:
            _show_id(execution, as_json)
            return
        with detaching(execution.id):
            raise typer.Exit(follow(execution, timeout, as_json=as_json))


def _submit(client: Noetl, playbook: str, overrides: dict[str, Any]) -> Execution:
    from noetl_celery.submission import read_playbook

    path = playbook
    if _is_file(playbook):
        done = client.register_playbook(read_playbook(playbook))
        _show_warnings(done.warnings)
        path = done.path
    return client.submit(path, overrides)


def _is_file(text: str) -> bool:
    """A catalog path never ends in .yaml; a name that does and is no file is a file that is missing."""
    return text.endswith((".yaml", ".yml")) or Path(text).is_file()


def _show_id(execution: Execution, as_json: bool) -> None:
    if as_json:
        out_json({"execution_id": str(execution.id), "status": execution.status()})
    else:
        out(str(execution.id))


def _read(files: Sequence[str]) -> tuple[list[Playbook], list[Problem]]:
    """The playbooks that are in order, and the problems of the others."""
    from noetl_celery.submission import read_playbook

    playbooks: list[Playbook] = []
    problems: list[Problem] = []
    for file in files:
        try:
            playbooks.append(read_playbook(file))
        except PlaybookInvalid as error:
            problems.extend(error.problems)
    return playbooks, problems


def _show_warnings(warnings: Sequence[Problem]) -> None:
    sources = Sources()
    for warning in warnings:
        for line in shown(warning, sources, sys.stderr):
            note(line)
