"""The HTTP API under ``/api``: playbooks, executions and credentials for programs; docs/http-api.md shows its use.

Where NoETL has a path for the same, it is the same path and its names of fields are in the answer.
"""

from __future__ import annotations

from fastapi import APIRouter

from noetl_celery.web.api import catalog, control, credentials, events, executions, foreign, results

router = APIRouter(prefix="/api")
for part in (catalog, executions, control, results, events, credentials, foreign):
    router.include_router(part.router)
