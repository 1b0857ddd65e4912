"""Looks at executions that run, as tests of what people see make them."""

from __future__ import annotations

from noetl_celery.report import StepProgress


def step(**changes: object) -> StepProgress:
    """An open step, a cursor loop in the middle of its work."""
    values: dict[str, object] = {
        "stage_id": 1,
        "step": "drain",
        "visit": 1,
        "kind": "cursor",
        "ok": 1200,
        "failed": 0,
        "frames": 24,
        "open_frames": 2,
        "open_rows": 7,
        "seconds": 5.12,
    }
    return StepProgress(**{**values, **changes})  # type: ignore[arg-type]
