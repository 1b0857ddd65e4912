"""``noetl-celery doctor``: looks at everything that an installation hangs on, and says what to do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from noetl_celery.cli.console import FAILED, GREEN, OK, RED, YELLOW, note, out, out_json, paint
from noetl_celery.cli.passing import Passing

if TYPE_CHECKING:
    from noetl_celery.cli.doctor.findings import Finding

_COLOURS = {"ok": GREEN, "warning": YELLOW, "problem": RED}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False) -> None:
    """Checks settings, PostgreSQL, Redis, workers and the work under way, and says what to do.

    Changes nothing. Works when a service is away: it says so, and goes on with the rest. Exit code 1 if there is a
    problem, 0 if there are warnings at most.
    """
    from noetl_celery.cli.doctor.findings import examine
    from noetl_celery.cli.doctor.place import visiting
    from noetl_celery.cli.doctor.services import HERE, POSTGRES, REDIS
    from noetl_celery.cli.doctor.work import WORK
    from noetl_celery.cli.doctor.workers import WORKERS
    from noetl_celery.settings import load

    with Passing("looking") as passing, visiting(load()) as place:
        checks = [*HERE, *POSTGRES, *REDIS, *WORKERS, *WORK]
        findings = list(examine(place, checks, told=lambda check: passing.say(f"looking at: {check.name}")))
    counts = Counter(finding.level for finding in findings)
    if as_json:
        worst = next((level for level in ("problem", "warning") if counts[level]), "ok")
        out_json({"status": worst, "findings": [asdict(finding) for finding in findings]})
    else:
        show(findings)
        note(
            ", ".join(f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}" for level in ("problem", "warning"))
        )
    raise typer.Exit(FAILED if counts["problem"] else OK)


def show(findings: Sequence[Finding]) -> None:
    """A line for each finding, and below it what to do."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        level = paint(finding.level.ljust(8), _COLOURS[finding.level], sys.stdout)
        out(f"{level} {finding.check.ljust(width)}  {finding.message}")
        if finding.hint:
            out(f"{'':8} {'':{width}}  → {finding.hint}")
