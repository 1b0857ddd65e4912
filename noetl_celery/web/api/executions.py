"""Executions: started, listed, looked at."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Response

from noetl_celery.web.api import execution_models as models
from noetl_celery.web.api import views
from noetl_celery.web.api.events import numbered
from noetl_celery.web.api.paging import cursor_of, cut, parts_of
from noetl_celery.web.api.route import BODY_ERRORS, Cursor, Id, Key, Limit, errors, make_router
from noetl_celery.web.api.text import Text
from noetl_celery.web.shared import Client

router = make_router("executions")


@router.post(
    "/executions",
    status_code=201,
    operation_id="submitExecution",
    summary="Start an execution of a playbook",
    response_model=models.SubmitAnswer,
    responses=BODY_ERRORS | errors(404),
)
def submit(asked: models.SubmitRequest, client: Client, response: Response, key: Key = None) -> dict[str, Any]:
    """It is kept when this answers, and `Location` says where. Sent again with the same `Idempotency-Key` and path, it
    answers with the execution that is there, whatever its workload.
    """
    execution = client.submit(asked.path, asked.workload, version=asked.version, key=key)
    response.headers["Location"] = f"/api/executions/{execution.id}"
    return {
        "execution_id": str(execution.id),
        "path": asked.path,
        "status": execution.status(),
        "announced": execution.announced,
    }


@router.get(
    "/executions",
    operation_id="listExecutions",
    summary="List executions, the newest first",
    response_model=models.ExecutionPage,
)
def listed(
    client: Client,
    status: Annotated[models.Status | None, Query(description="Only those with this status.")] = None,
    path: Annotated[Text | None, Query(description="Only those of this playbook.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """Page by page: executions that are submitted meanwhile shift nothing."""
    before = parts_of(cursor, datetime, int)
    rows = client.executions(limit + 1, status, path=path, before=before)
    page, last = cut(rows, limit)
    following = cursor_of(last["created_at"], last["execution_id"]) if last else None
    return {"executions": [views.execution(row) for row in page], "next": following}


@router.get(
    "/executions/{execution_id}",
    operation_id="getExecution",
    summary="One execution, with its steps",
    response_model=models.ExecutionDetail,
    responses=errors(404),
)
def one(
    execution_id: Id,
    client: Client,
    include_events: Annotated[bool, Query(description="Also a page of its events.")] = False,
    page: Annotated[int | None, Query(ge=1, le=1_000_000, description="Which page of events; includes them.")] = None,
    page_size: Annotated[int, Query(ge=1, le=500, description="Events of a page.")] = 100,
) -> dict[str, Any]:
    """Status, error, the last visit of each step, and how far those are that are at work. NoETL's path, too: with
    `page` it shows events as NoETL does, the newest first.
    """
    execution = client.execution(execution_id)
    row, open_steps = execution.overview(), execution.progress()
    shown = include_events or page is not None
    return {
        **views.execution(row),
        "progress": views.progress(row["status"], open_steps),
        "steps": [views.step(line) for line in execution.steps()],
        "open_steps": [asdict(step) for step in open_steps],
        "events_included": shown,
        "events_endpoint": f"/api/executions/{execution.id}/events",
        **(numbered(execution, page or 1, page_size) if shown else {}),
    }


@router.get(
    "/executions/{execution_id}/status",
    operation_id="getExecutionStatus",
    summary="Where an execution is, in short",
    response_model=models.ExecutionStatus,
    responses=errors(404),
)
def status(execution_id: Id, client: Client) -> dict[str, Any]:
    """For those who ask again and again. NoETL's path."""
    execution = client.execution(execution_id)
    row, steps = views.execution(execution.overview()), execution.steps()
    current = [line["step_name"] for line in steps if line["status"] == "OPEN"]
    return {
        **row,
        "current_step": current[-1] if current else None,
        "completed_steps": [line["step_name"] for line in steps if line["status"] == "COMPLETED"],
        "completed": row["status"] in ("COMPLETED", "CANCELLED"),
        "failed": row["status"] == "FAILED",
        "cancelled": row["status"] == "CANCELLED",
    }


@router.get(
    "/executions/{execution_id}/books",
    operation_id="getExecutionBooks",
    summary="Where all rows of an execution are",
    response_model=models.Books,
    responses=errors(404),
)
def books(execution_id: Id, client: Client) -> dict[str, Any]:
    """Each visit of a step that has work, with its rows counted and what does not add up."""
    execution = client.execution(execution_id)
    counted = [document | {"stage_id": str(document["stage_id"])} for document in map(asdict, execution.books())]
    return {"execution_id": str(execution.id), "books": counted}


@router.get(
    "/executions/{execution_id}/explain",
    operation_id="explainExecution",
    summary="Why an execution is where it is",
    response_model=models.Explanation,
    responses=errors(404),
)
def explain(execution_id: Id, client: Client) -> dict[str, Any]:
    """In words, with what to do. It asks the workers which queues they take, which takes a second."""
    execution = client.execution(execution_id)
    return {"execution_id": str(execution.id), "reasons": [asdict(reason) for reason in execution.explain()]}
