"""Rows of the tables as answers show them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noetl_celery.engine.state import FINAL
from noetl_celery.errors import Problem
from noetl_celery.ids import with_text_ids
from noetl_celery.report import StepProgress, brief_error

_PROBLEM = ("message", "code", "line", "column", "step", "hint")


def execution(row: Mapping[str, Any]) -> dict[str, Any]:
    """An execution as ``store.browse.executions`` has it: an ``ExecutionSummary``."""
    failure = brief_error(row["error"])
    return {
        **with_text_ids(row),
        "error": failure["message"] if failure else None,
        "failure": failure,
        "start_time": row["created_at"],
        "end_time": row["finished_at"],
        "duration_seconds": round(row["seconds"], 3),
    }


def step(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``Execution.steps``: a ``Step``."""
    return {**row, "step": row["step_name"], "seconds": round(row["seconds"], 3)}


def progress(status: str, steps: Sequence[StepProgress]) -> int:
    """How far an execution is, in percent: of the rows in its open loops whose total is known."""
    if status in FINAL:
        return 100
    counted = [(step.done, step.total) for step in steps if step.total]
    total = sum(total for _, total in counted)
    return min(99, 100 * sum(done for done, _ in counted) // total) if total else 0


def event(row: Mapping[str, Any]) -> dict[str, Any]:
    """An event with NoETL's second names."""
    ids = {name: str(row[name]) for name in ("event_id", "parent_event_id") if row[name] is not None}
    return {
        **with_text_ids(row),
        "parent_event_id": None,
        **ids,
        "node_id": row["node_name"],
        "timestamp": row["created_at"],
        "error": _error_in(row),
    }


def _error_in(row: Mapping[str, Any]) -> str | None:
    """The message of the error that an event tells of, in its result or its context."""
    for part in (row["result"], row["context"]):
        error = part.get("error") if isinstance(part, Mapping) else None
        message = error.get("message") if isinstance(error, Mapping) else error
        if message:
            return str(message)
    return None


def pagination(page: int, size: int, total: int) -> dict[str, Any]:
    """NoETL's words for a page."""
    pages = max(1, -(-total // size))
    return {
        "page": page,
        "page_size": size,
        "total_events": total,
        "total_pages": pages,
        "has_next": page < pages,
        "has_prev": page > 1,
    }


def problems(found: Iterable[Problem]) -> list[dict[str, Any]]:
    """Problems of a playbook, each a ``Checked``."""
    return [{"warning": one.warning, **{name: getattr(one, name) for name in _PROBLEM}} for one in found]
