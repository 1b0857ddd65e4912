"""For whoever starts and watches the process. Answered without a token: they say nothing but yes or no."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from noetl_celery.errors import NoetlError
from noetl_celery.store import migrate

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="getHealth", summary="Is the process alive?")
@router.get("/api/health", operation_id="getApiHealth", summary="The same on NoETL's path")
async def alive() -> dict[str, str]:
    """Always ``ok``: it does not look at anything."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Can it answer?",
    responses={503: {"description": "PostgreSQL is not as it must be"}},
)
def ready(request: Request) -> Response:
    """``ok`` if PostgreSQL is there with the schema of this version; else 503."""
    try:
        migrate.check(request.app.state.client.settings)
    except NoetlError as error:
        return JSONResponse({"status": "unavailable", "reason": error.code}, 503)
    return JSONResponse({"status": "ok"})
