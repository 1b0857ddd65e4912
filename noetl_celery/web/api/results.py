"""What came out: results of any size, rows page by page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import StreamingResponse

from noetl_celery.ids import with_text_ids
from noetl_celery.store import browse
from noetl_celery.submission import checked_id
from noetl_celery.web.api import execution_models as models
from noetl_celery.web.api.paging import cursor_of, cut, parts_of
from noetl_celery.web.api.route import After, Cursor, Id, Limit, errors, make_router, sent_as
from noetl_celery.web.api.text import Text
from noetl_celery.web.shared import Client

router = make_router("results")


@router.get(
    "/executions/{execution_id}/result",
    operation_id="getResult",
    summary="The result of an execution, of a step, or a part of it",
    response_class=StreamingResponse,
    responses=sent_as("application/json", "The result itself, of any size.") | errors(404, 409),
)
def result(
    execution_id: Id,
    client: Client,
    step: Annotated[Text | None, Query(description="Of the last visit of this step, instead of the whole.")] = None,
    path: Annotated[Text, Query(description="Only a part of it, as `rows[3].name`.")] = "",
) -> StreamingResponse:
    """JSON, in pieces as they are read. Without a step: of the last one that had a task; 409 if the execution has not
    ended, or not well.
    """
    execution = client.execution(execution_id)
    pieces = execution.outcome_text(path) if step is None else execution.step_result_text(step, path)
    return StreamingResponse(_begun(pieces), media_type="application/json")


@router.get(
    "/executions/{execution_id}/rows",
    operation_id="listRows",
    summary="The rows of a step",
    response_model=models.RowPage,
    responses=errors(404),
)
def rows(
    execution_id: Id,
    client: Client,
    step: Annotated[Text, Query(min_length=1, description="The step; its last visit is shown.")],
    failed: Annotated[bool, Query(description="Only rows that failed.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> dict[str, Any]:
    """What each was made of, how often it was tried, and its error."""
    execution = client.execution(execution_id)
    after = parts_of(cursor, int, int, int)
    found = execution.row_page(step, limit + 1, failed=failed, after=after)
    page, last = cut(found, limit)
    return {
        "execution_id": str(execution.id),
        "step": step,
        "rows": [with_text_ids(row) for row in page],
        "next": cursor_of(*browse.place(last)) if last else None,
    }


@router.get(
    "/executions/{execution_id}/logs",
    operation_id="listLogs",
    summary="What the tasks of an execution printed",
    response_model=models.LogPage,
    responses=errors(404),
)
def logs(
    execution_id: Id,
    client: Client,
    step: Annotated[Text | None, Query(description="Only of all visits of this step.")] = None,
    after: After = "0",
    limit: Limit = 100,
) -> dict[str, Any]:
    """Line by line, also while they are at work."""
    execution = client.execution(execution_id)
    found = execution.log_page(limit, step=step, after=checked_id(after, "id of a line"))
    return {
        "execution_id": str(execution.id),
        "lines": [line | {"log_id": str(line["log_id"])} for line in found],
        "next": str(found[-1]["log_id"]) if found else None,
    }


def _begun(pieces: Iterator[str]) -> Iterator[str]:
    """The same; what goes wrong at the beginning is raised now, while the answer can still say so."""
    return chain([next(pieces)], pieces)
