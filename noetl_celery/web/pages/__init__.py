"""The console: pages for people."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from noetl_celery.web.pages import execution, executions, login, playbooks
from noetl_celery.web.shared import allowed

router = APIRouter(include_in_schema=False)
router.include_router(login.router)
for inside in (executions, execution, playbooks):
    router.include_router(inside.router, dependencies=[Depends(allowed)])
