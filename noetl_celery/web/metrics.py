"""For Prometheus: what is open, as PostgreSQL and Redis say it."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from noetl_celery.telemetry import CONTENT_TYPE, exposition
from noetl_celery.web.shared import Client, allowed

router = APIRouter(include_in_schema=False, dependencies=[Depends(allowed)])


@router.get("/metrics")
def metrics(client: Client) -> Response:
    """All gauges, in Prometheus' text format. Always 200: a service that is away is told by ``noetl_up``."""
    return Response(exposition(client.settings), media_type=CONTENT_TYPE)
