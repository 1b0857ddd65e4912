"""``noetl-celery rows``: what became of each row of a step."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from noetl_celery.cli.console import note, out, out_json, short_json, table
from noetl_celery.cli.executions import Id
from noetl_celery.errors import InputError
from noetl_celery.ids import with_text_ids

COLUMNS = ("frame", "row", "status", "retries", "crashes", "finished_at", "item", "task", "kind", "message")
ITEM_WIDTH, MESSAGE_WIDTH = 40, 80


def rows(
    execution_id: Id,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's name; its last visit is shown.")],
    failed: Annotated[bool, typer.Option("--failed", help="Only rows that failed.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0: all of them.")] = 100,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a line of names.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Shows the rows of a step with what they were made of, how often they were tried, and their errors."""
    from noetl_celery.client import Noetl

    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other")
    with Noetl() as client:
        found = client.execution(execution_id).rows(step, failed=failed)
        shown = islice(found, limit or None)
        if as_json:
            for row in shown:
                out_json(with_text_ids(row))
        elif as_csv:
            _csv(shown)
        else:
            _table(shown)
        if limit and next(found, None) is not None:
            note(f"there are more than {limit}; --limit 0 shows all of them")


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    error = row["error"] or {}
    return {**row, **{name: error.get(name) for name in ("task", "kind", "message")}}


def _csv(rows: Iterator[dict[str, Any]]) -> None:
    line = io.StringIO()
    writer = csv.DictWriter(line, COLUMNS, extrasaction="ignore", lineterminator="")
    writer.writeheader()
    out(line.getvalue())
    for row in rows:
        line.seek(0)
        line.truncate()
        finished = row["finished_at"]
        texts = {"item": short_json(row["item"], 10**9), "finished_at": finished and finished.isoformat()}
        writer.writerow({**_fields(row), **texts})
        out(line.getvalue())


def _error(row: Mapping[str, Any]) -> str:
    first = str(row["message"] or "").split("\n")[0]
    return f"{row['kind']}: {short_json(first, MESSAGE_WIDTH)}" if row["kind"] else ""


def _table(rows: Iterator[dict[str, Any]]) -> None:
    lines = [
        (
            f"{row['frame']}.{row['row']}",
            row["status"],
            str(row["retries"]),
            str(row["crashes"]),
            short_json(row["item"], ITEM_WIDTH),
            row["task"] or "",
            _error(row),
        )
        for row in map(_fields, rows)
    ]
    for text in table(("ROW", "STATUS", "RETRIES", "CRASHES", "ITEM", "TASK", "ERROR"), lines):
        out(text)
