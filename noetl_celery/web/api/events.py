"""What happened: page by page, and as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Header, Query
from sse_starlette import EventSourceResponse, ServerSentEvent

from noetl_celery.aio import AsyncExecution
from noetl_celery.errors import NotFound, ServiceError
from noetl_celery.execution import Execution
from noetl_celery.submission import checked_id
from noetl_celery.web.api import execution_models as models
from noetl_celery.web.api import views
from noetl_celery.web.api.route import After, Id, Limit, errors, make_router, sent_as
from noetl_celery.web.api.text import ID_PATTERN
from noetl_celery.web.shared import Client

router = make_router("events")
#: how long a stream pauses while PostgreSQL is away
AWAY_SECONDS = 2.0
#: a comment after so much silence, so that nobody between takes the connection for dead
PING_SECONDS = 15
_STREAM = (
    "Server-sent events: `id` is the id of the event, `data` the event as JSON. The last one is `event: end` with the "
    "status, when the execution has ended."
)


@router.get(
    "/executions/{execution_id}/events",
    operation_id="listEvents",
    summary="The events of an execution",
    response_model=models.EventPage,
    responses=errors(404),
)
def listed(
    execution_id: Id,
    client: Client,
    after: After = "0",
    limit: Limit = 100,
    page: Annotated[int | None, Query(ge=1, le=1_000_000, description="A page as NoETL counts them.")] = None,
    page_size: Annotated[int, Query(ge=1, le=500, description="Events of such a page.")] = 100,
) -> dict[str, Any]:
    """The oldest first, from behind `after`. While the execution runs, `next` may be asked for later, again and again:
    the stream does that better. With `page` as NoETL's path has it: the newest first, with a count of all.
    """
    execution = client.execution(execution_id)
    row = execution.overview()
    about = {"execution_id": str(execution.id), "path": row["path"], "status": row["status"]}
    if page is not None:
        return about | numbered(execution, page, page_size)
    found = execution.event_page(limit, after=checked_id(after, "event id"))
    following = str(found[-1]["event_id"]) if found else None
    return about | {"events": [views.event(event) for event in found], "next": following}


@router.get(
    "/executions/{execution_id}/events/stream",
    operation_id="streamEvents",
    summary="The events of an execution as they happen",
    response_class=EventSourceResponse,
    responses=sent_as("text/event-stream", _STREAM) | errors(404),
)
def stream(
    execution_id: Id,
    client: Client,
    after: After = "0",
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            description="Goes on behind this event; browsers send it when they connect again.",
            json_schema_extra={"pattern": ID_PATTERN},
        ),
    ] = None,
) -> EventSourceResponse:
    """From the first event, or from behind `after`, until the execution ends."""
    execution = client.execution(execution_id)
    start = checked_id(last_event_id or after, "event id")
    return EventSourceResponse(_told(execution, start), ping=PING_SECONDS)


async def _told(execution: Execution, after: int) -> AsyncGenerator[ServerSentEvent, None]:
    """No thread is held between two looks. While PostgreSQL is away it waits, and goes on behind what it has sent."""
    told = AsyncExecution(execution)
    while True:
        try:
            async with aclosing(told.events(after, follow=True)) as rows:
                async for row in rows:
                    after = max(after, row["event_id"])
                    event = models.Event.model_validate(views.event(row))
                    yield ServerSentEvent(event.model_dump_json(), id=event.event_id)
            status = await told.status()
        except NotFound:  # it was pruned
            return
        except ServiceError:
            await asyncio.sleep(AWAY_SECONDS)
        else:
            yield ServerSentEvent(f'{{"status": "{status}"}}', event="end")
            return


def numbered(execution: Execution, page: int, size: int) -> dict[str, Any]:
    """A page of events as NoETL counts them, the newest first."""
    found, total = execution.latest_events(size, skip=(page - 1) * size)
    return {"events": [views.event(event) for event in found], "pagination": views.pagination(page, size, total)}
