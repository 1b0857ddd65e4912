"""``noetl-celery explain``: why an execution is where it is, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

from noetl_celery.cli.console import YELLOW, out, out_json, paint, painted_status, seconds_text
from noetl_celery.cli.executions import Id, Json


def explain(execution_id: Id, as_json: Json = False) -> None:
    """Says in words what an execution waits for, and what to do. The exit code is 0 whatever that is."""
    import sys

    from noetl_celery.client import Noetl

    with Noetl() as client:
        execution = client.execution(execution_id)
        row = execution.row()
        reasons = execution.explain()
    if as_json:
        shown = [asdict(reason) for reason in reasons]
        out_json({"execution_id": str(execution.id), "status": row["status"], "reasons": shown})
        return
    age = seconds_text(execution.duration())
    out(f"{row['path']}  {painted_status(row['status'], sys.stdout)}  {age}  (execution {execution.id})")
    for reason in reasons:
        out(f"  {f'{reason.step}: ' if reason.step else ''}{reason.text}")
        if reason.todo:
            out(f"    {paint('→', YELLOW, sys.stdout)} {reason.todo}")
