"""Executions told what to do. Each answers at once; workers follow it."""

from __future__ import annotations

from typing import Any

from noetl_celery.web.api import execution_models as models
from noetl_celery.web.api.route import BODY_ERRORS, Id, errors, make_router
from noetl_celery.web.shared import Client

router = make_router("control")
_ENDED = "it had ended already"


@router.post(
    "/executions/{execution_id}/cancel",
    operation_id="cancelExecution",
    summary="Cancel an execution",
    response_model=models.CancelAnswer,
    responses=BODY_ERRORS | errors(404),
)
def cancel(execution_id: Id, client: Client, asked: models.CancelRequest | None = None) -> dict[str, Any]:
    """No new row starts, running ones come to their end, and so do the executions that it called. NoETL's path, too."""
    execution = client.execution(execution_id)
    accepted = execution.cancel(asked.reason if asked else None)
    told = _answer(execution.id, execution.status(), accepted, "it is told to end")
    return told | {"cancelled_executions": [str(execution.id)] if accepted else []}


@router.post(
    "/executions/{execution_id}/pause",
    operation_id="pauseExecution",
    summary="Pause an execution",
    response_model=models.ControlAnswer,
    responses=errors(404),
)
def pause(execution_id: Id, client: Client) -> dict[str, Any]:
    """No new step or claim starts; rows that are claimed already go on."""
    execution = client.execution(execution_id)
    accepted = execution.pause()
    return _answer(execution.id, execution.status(), accepted, "it is told to pause")


@router.post(
    "/executions/{execution_id}/resume",
    operation_id="resumeExecution",
    summary="Go on after a pause",
    response_model=models.ControlAnswer,
    responses=errors(404),
)
def resume(execution_id: Id, client: Client) -> dict[str, Any]:
    """It goes on where it was paused."""
    execution = client.execution(execution_id)
    accepted = execution.resume()
    return _answer(execution.id, execution.status(), accepted, "it is told to go on")


@router.post(
    "/executions/{execution_id}/retry",
    operation_id="retryExecution",
    summary="Run failed work again",
    response_model=models.ControlAnswer,
    responses=BODY_ERRORS | errors(404, 409),
)
def retry(execution_id: Id, client: Client, asked: models.RetryRequest | None = None) -> dict[str, Any]:
    """Without a step: what made a FAILED execution fail; it goes on from there. With one: the failed rows of its last
    visit, also of an execution that has completed. 409 if there is nothing to run again.
    """
    execution = client.execution(execution_id)
    execution.retry(step=asked.step if asked else None)
    return _answer(execution.id, execution.status(), True, "it is told to run failed work again")


def _answer(execution_id: int, status: str, accepted: bool, done: str) -> dict[str, Any]:
    message = done if accepted else _ENDED
    return {"execution_id": str(execution_id), "accepted": accepted, "status": status, "message": message}
