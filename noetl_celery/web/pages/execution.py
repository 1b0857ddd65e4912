"""One execution: its pages, each of which can be followed live, and what one can tell it to do."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from noetl_celery.client import Noetl
from noetl_celery.engine.state import FINAL
from noetl_celery.errors import NotFound
from noetl_celery.hiding import learn_workload
from noetl_celery.progress import Rates
from noetl_celery.web.listening import Listening
from noetl_celery.web.pages import views
from noetl_celery.web.pages.live import changes
from noetl_celery.web.render import page, part
from noetl_celery.web.shared import Client

router = APIRouter(prefix="/executions/{execution_id}")
_ACTIONS = ("pause", "resume", "cancel", "retry")


@router.get("")
@router.get("/{tab}")
def shown(request: Request, client: Client, execution_id: str, tab: str = "overview") -> Response:
    """A page of an execution."""
    query = dict(request.query_params)
    found = _look(request, client, execution_id, tab, query, Rates())
    final = found["execution"]["status"] in FINAL
    paged = bool(query.keys() & {"before", "after"})
    live = "" if final or paged else f"/executions/{execution_id}/live/{tab}?{urlencode(query)}"
    return page(request, "execution.html", tabs=views.TABS, live=live, **found)


@router.get("/live/{tab}")
def live(request: Request, client: Client, execution_id: str, tab: str) -> Response:
    """The page whenever it changes, as server-sent events, until the execution has ended."""
    query = dict(request.query_params)

    rates = Rates()

    def look() -> tuple[str, bool]:
        found = _look(request, client, execution_id, tab, query, rates)
        return part("parts/execution.html", **found), found["execution"]["status"] in FINAL

    return changes(look)


@router.post("/{action}")
def act(
    client: Client,
    execution_id: str,
    action: str,
    reason: Annotated[str, Form()] = "",
    step: Annotated[str, Form()] = "",
) -> Response:
    """Tells the workers what to do, and goes back to the execution."""
    if action not in _ACTIONS:
        raise NotFound(f"there is no action {action!r}")
    execution = client.execution(execution_id)
    if action == "cancel":
        execution.cancel(reason.strip() or None)
    elif action == "retry":
        execution.retry(step=step or None)
    else:
        getattr(execution, action)()
    return RedirectResponse(f"/executions/{execution.id}", 303)


def _look(
    request: Request, client: Noetl, execution_id: str, tab: str, query: dict[str, str], rates: Rates
) -> dict[str, Any]:
    if tab not in views.TABS:
        raise NotFound(f"an execution has no page {quote(tab)!r}")
    execution = client.execution(execution_id)
    listening: Listening = request.app.state.listening
    found = views.TABS[tab](views.Asked(client, execution, query, listening.queues, rates))
    learn_workload(execution.id, found["execution"]["workload"])  # what is a secret there is shown nowhere
    return {"tab": tab, **found}
