"""The application: what it shares, who may use it, how errors look."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.responses import Response

from noetl_celery import __version__
from noetl_celery.client import Noetl
from noetl_celery.settings import Settings
from noetl_celery.web import api, health, metrics, pages, problems
from noetl_celery.web.access import Access
from noetl_celery.web.listening import Listening

#: database sessions, shared by all requests
CONNECTIONS = 8
#: who asks is told soon that PostgreSQL is away, and asks again
PATIENCE_SECONDS = 2.0
#: no statement of a request takes longer
STATEMENT_SECONDS = 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def create(settings: Settings, *, token: str | None = None) -> FastAPI:
    """The application for these settings.

    ``token``: what whoever uses it has to know; None lets all of this machine in (loopback names only).
    """
    brief = settings.model_copy(update={"statement_seconds": min(settings.statement_seconds, STATEMENT_SECONDS)})
    client = Noetl(brief, connections=CONNECTIONS, patience_seconds=PATIENCE_SECONDS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            client.close()

    app = FastAPI(
        title="NoETL-Celery",
        version=__version__,
        summary="Playbooks, executions and what becomes of them.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # both would load their scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.client, app.state.access, app.state.listening = client, Access(token), Listening(client)
    app.middleware("http")(_with_headers)
    problems.install(app)
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(api.router)
    app.include_router(pages.router)
    return app


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
