"""``noetl-celery lint``: what is wrong with playbooks and what is worth a look, without any service."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from noetl_celery.cli.console import INVALID, note, out, out_json
from noetl_celery.cli.problems import Sources, as_data, as_github, counted, in_order, shown
from noetl_celery.errors import InputError, PlaybookInvalid, Problem

_SUFFIXES = (".yaml", ".yml")
_KIND = re.compile(rb"""^kind:\s*["']?(\w*)""", re.M)
_VERSION = re.compile(rb"""^apiVersion:\s*["']?noetl\.io/""", re.M)

Paths = Annotated[
    list[str], typer.Argument(metavar="FILE_OR_FOLDER…", help="Playbooks, and folders of them.", show_default=False)
]


class Format(Enum):
    """What ``--format`` may be."""

    text = "text"
    json = "json"
    github = "github"


def lint(
    paths: Paths,
    format_: Annotated[
        Format, typer.Option("--format", help="How to say it; github: workflow commands that mark the lines.")
    ] = Format.text,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings, too, make the exit code 2.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="First write older forms anew, in the files, keeping comments.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what --fix would change, and do nothing else.")] = False,
) -> None:
    """Checks playbooks; needs no service.

    Says what is wrong and what is worth a look, as file:line:column with a code. Exit code 0: nothing, or warnings
    only; 2: a playbook would be refused.
    """
    files = playbook_files(paths)
    if fix or diff:
        for file in files:
            _rewrite(file, only_show=diff)
        if diff:
            return
    problems = in_order([problem for file in files for problem in problems_of(file)], files)
    errors = sum(not problem.warning for problem in problems)
    warnings = len(problems) - errors
    if format_ is Format.json:
        found = [as_data(problem) for problem in problems]
        out_json({"files": files, "errors": errors, "warnings": warnings, "problems": found})
    elif format_ is Format.github:
        for problem in problems:
            out(as_github(problem))
    else:
        _for_people(files, problems)
    if errors or (strict and warnings):
        raise typer.Exit(INVALID)


def playbook_files(paths: Sequence[str]) -> list[str]:
    """The files, and of folders those that say that they are playbooks. Raises ``InputError`` for an empty folder."""
    files: dict[str, None] = {}
    for path in paths:
        folder = Path(path)
        if not folder.is_dir():
            files[path] = None
            continue
        inside = [str(file) for file in sorted(folder.rglob("*")) if _is_playbook(file, folder)]
        if not inside:
            raise InputError(f"no playbook in the folder {path}", hint="a playbook says `kind: Playbook`")
        files |= dict.fromkeys(inside)
    return list(files)


def problems_of(file: str) -> list[Problem]:
    """Everything that there is to say of a file. Raises ``InputError`` for one that cannot be read."""
    from noetl_celery.submission import read_playbook

    try:
        return list(read_playbook(file).compiled.warnings)
    except PlaybookInvalid as error:
        return [*error.problems, *error.warnings]


def _is_playbook(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    if hidden or file.suffix not in _SUFFIXES or not file.is_file():
        return False
    try:
        text = file.read_bytes()
    except OSError:
        return True  # whoever reads it next says why it cannot be read
    kind = _KIND.search(text)
    return kind[1] == b"Playbook" if kind is not None else _VERSION.search(text) is not None


def _for_people(files: Sequence[str], problems: Sequence[Problem]) -> None:
    sources = Sources()
    for problem in problems:
        for line in shown(problem, sources, sys.stdout):
            out(line)
    for file in files:
        own = [problem for problem in problems if problem.file == file]
        errors = sum(not problem.warning for problem in own)
        out(f"{file}: {counted(errors, len(own) - errors)}")


def _rewrite(file: str, *, only_show: bool) -> None:
    """Older forms anew. A file with errors is left alone: what is wrong with it is said next."""
    from noetl_celery.playbook.rewrite import rewrite

    path = Path(file)
    try:
        before = path.read_bytes().decode()
        after = rewrite(before, file=file)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    except (PlaybookInvalid, UnicodeDecodeError):
        return
    if after == before:
        return
    changes = list(difflib.unified_diff(before.splitlines(), after.splitlines(), file, file, n=2, lineterm=""))
    if only_show:
        for line in changes:
            out(line)
        return
    try:
        path.write_bytes(after.encode())
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from error
    added = sum(line.startswith("+") for line in changes) - 1
    note(f"{file}: older forms rewritten ({added} line{'' if added == 1 else 's'}; --diff shows it beforehand)")
