"""Shapes of what the engine tells: envelopes, errors, and what events say about a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.playbook.plan import StepPlan


def node_type(step: StepPlan) -> str:
    """What kind of node a step is, in its events."""
    if step.loop is not None:
        return "loop"
    return step.tasks[0].kind if len(step.tasks) == 1 else "pipeline" if step.tasks else "router"


def loop_meta(step: StepPlan) -> dict[str, Any]:
    """The loop of a step as its events name it."""
    return {"iterator_name": step.loop.iterator, "mode": step.loop.mode} if step.loop else {}


def type_name(data: Any) -> str:
    """The type of a result as NoETL's summaries call it."""
    if isinstance(data, Mapping):
        return "dict"
    if isinstance(data, Sequence) and not isinstance(data, str):
        return "list"
    return type(data).__name__


def stage_envelope(data: Any, error: Mapping[str, Any] | None) -> dict[str, Any]:
    """The envelope of a stage that has no row of its own to take it from."""
    return {
        "status": "error" if error else "ok",
        "data": data,
        "result": data,
        "response": data,
        "error": dict(error or {}),
        "http": {},
        "pg": {},
        "py": {},
        "meta": {},
    }


def empty_collection() -> dict[str, Any]:
    """The result of a collection without elements."""
    return {"results": [], "data": [], "count": 0, "stats": {"total": 0, "ok": 0, "failed": 0}}


def template_error(problem: Exception) -> dict[str, Any]:
    """The error of a template that could not be rendered."""
    return {"kind": "template", "message": str(problem), "code": None, "status": None, "retryable": False}
