"""What only NoETL's clients ask for: NoETL's paths for what has another one here."""

from __future__ import annotations

from typing import Any

from noetl_celery.web.api import catalog
from noetl_celery.web.api import execution_models as models
from noetl_celery.web.api.route import BODY_ERRORS, errors, make_router
from noetl_celery.web.shared import Client

router = make_router("NoETL")


@router.post(
    "/execute",
    operation_id="executePlaybook",
    summary="Start an execution of a playbook (NoETL)",
    response_model=models.ExecuteAnswer,
    responses=BODY_ERRORS | errors(404),
)
def execute(asked: models.ExecuteRequest, client: Client) -> dict[str, Any]:
    """As `POST /api/executions`, with NoETL's names of fields."""
    entry = catalog.entry_of(asked, client)
    execution = client.submit(entry["path"], asked.workload, version=entry["version"])
    return {"execution_id": str(execution.id)}
