"""``noetl-celery prune``: what ended long ago goes."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from noetl_celery.cli.console import out, out_json
from noetl_celery.cli.passing import Passing
from noetl_celery.errors import InputError

if TYPE_CHECKING:
    from noetl_celery.store.prune import Pruned

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def prune(
    older_than: Annotated[
        str, typer.Option(help="Executions that ended longer ago than this go: 30d, 12h, 90m.", metavar="TIME")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Removes executions that ended long ago, and the weeks of events about nothing else.

    An execution goes together with its children, when all of them are old enough. Playbooks and credentials stay. Work
    may go on meanwhile; interrupted, it is simply run again.
    """
    from noetl_celery.client import Noetl

    time = duration(older_than)
    with Noetl() as client, Passing("looking for what is old enough") as passing:
        pruned = client.prune(time, dry_run=dry_run, told=lambda so_far: passing.say(_counts(so_far)))
    if as_json:
        out_json({"dry_run": dry_run, **asdict(pruned)})
        return
    did, dropped = ("would remove", "would drop") if dry_run else ("removed", "dropped")
    out(f"{did} {_counts(pruned)}")
    for week in pruned.partitions:
        out(f"{dropped} noetl.{week.name} ({week.bytes / 2**20:.1f} MB)")


def duration(text: str) -> timedelta:
    """``30d``, ``12h``, ``90m``. Raises ``InputError`` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text, re.ASCII)
    if match is None:
        raise InputError(f"{text!r} is no time", hint="write a number and its unit, as 30d, 12h, 90m, 45s, 2w")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise InputError(f"{text!r} is longer than anything lasts") from None


def _counts(pruned: Pruned) -> str:
    return (
        f"{pruned.executions} executions, {pruned.stages} stages, {pruned.frames} frames, {pruned.rows} rows, "
        f"{pruned.claims} claims, {pruned.results} large results, {pruned.logs} printed lines"
    )
