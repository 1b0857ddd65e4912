"""The list of executions, with filters, page by page."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from noetl_celery.client import STATUSES, Noetl
from noetl_celery.errors import InputError
from noetl_celery.store import browse
from noetl_celery.web.pages.live import changes
from noetl_celery.web.render import page, part
from noetl_celery.web.shared import Client

router = APIRouter()
PAGE = 50
#: paths that the filter proposes
PATHS = 500


@router.get("/")
def listed(
    request: Request, client: Client, status: str = "", path: str = "", before: str = "", go: str = ""
) -> Response:
    """The latest executions. ``go``: an id to go to."""
    if go.strip():
        return RedirectResponse(f"/executions/{client.execution(go).id}", 303)
    paths = [entry["path"] for entry in client.playbooks(PATHS)]
    return page(
        request,
        "executions.html",
        statuses=STATUSES,
        paths=paths,
        status=status,
        path=path,
        live="" if before else f"/live?{urlencode({'status': status, 'path': path})}",
        **_look(client, status, path, before),
    )


@router.get("/live")
def live(request: Request, client: Client, status: str = "", path: str = "") -> Response:
    """The first page of the list whenever it changes, as server-sent events."""

    def look() -> tuple[str, bool]:
        return part("parts/executions.html", status=status, path=path, **_look(client, status, path, "")), False

    return changes(look)


def _look(client: Noetl, status: str, path: str, before: str) -> dict[str, Any]:
    found = client.read(
        lambda c: browse.executions(c, status=status or None, path=path or None, before=_place(before), limit=PAGE + 1)
    )
    last = found[PAGE - 1] if len(found) > PAGE else None
    older = (
        {"status": status, "path": path, "before": f"{last['created_at'].isoformat()}~{last['execution_id']}"}
        if last
        else {}
    )
    return {"executions": found[:PAGE], "older": f"/?{urlencode(older)}" if older else ""}


def _place(before: str) -> tuple[datetime, int] | None:
    """Where a page begins, as a link says it."""
    if not before:
        return None
    created, _, id_ = before.partition("~")
    try:
        return datetime.fromisoformat(created), int(id_)
    except ValueError:
        raise InputError(f"there is no page {before!r}") from None
