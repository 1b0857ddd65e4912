"""``kind: playbook``: what a row needs to start its child, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl_celery.engine.pipeline import Call, Position
from noetl_celery.engine.state import FINAL
from noetl_celery.errors import ErrorInfo, NoetlError, ToolError
from noetl_celery.ids import new_id
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.workload import workload_of
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.process import Process
from noetl_celery.store import catalog, children, executions, stages
from noetl_celery.store.children import NewChild
from noetl_celery.store.db import Connection
from noetl_celery.store.decisions import start_queue
from noetl_celery.store.loaders import Limits
from noetl_celery.store.results import Opener
from noetl_celery.template import jsonable


def new_child(process: Process, stage: StageNames, call: Call, position: Position) -> NewChild:
    """What to start for ``call``. Raises ``ToolError``: no such playbook, input that is no JSON, too deep."""
    depth, limit = stage.depth + 1, process.settings.child_depth
    if depth > limit:
        message = f"playbooks call each other {limit} deep; does one of them call itself? (NOETL_CHILD_DEPTH)"
        raise ToolError(ErrorInfo("child_depth", message))
    try:
        catalog_id, plan = process.db.read(lambda connection: _registered(process, connection, call))
    except ToolError:
        raise
    except NoetlError as error:
        raise ToolError(ErrorInfo("playbook", f"playbook '{call.path}': {error}")) from error
    try:
        execution_id = new_id()
        workload = jsonable(workload_of(plan, call.input, execution_id))
    except TypeError as error:
        raise ToolError(ErrorInfo("result_type", f"the input of '{call.path}' cannot be kept: {error}")) from error
    iter_ = {key: value for key, value in position.iter.items() if key != "parent" or value}
    return NewChild(execution_id, catalog_id, plan.path, workload, iter_, depth, call.timeout, start_queue(plan))


def _registered(process: Process, connection: Connection, call: Call) -> tuple[int, Any]:
    entry = catalog.version(connection, call.path, call.version)
    if entry is None:
        near = catalog.like(connection, call.path)
        which = f"version {call.version} of playbook '{call.path}'" if call.version is not None else f"'{call.path}'"
        hint = f"; did you mean '{near[0]}'?" if near and near[0] != call.path else ""
        raise ToolError(ErrorInfo("not_found", f"no playbook {which} is registered{hint}"))
    return entry["catalog_id"], process.plans.get(connection, entry["catalog_id"])


def child_outcome(process: Process, call: Call, announce: Callable[[int], object]) -> Outcome | None:
    """The outcome of a call whose child has ended, or has run out of time; None: it is at work.

    A child that has run out of time is told to end, and ``announce`` has that looked at now.
    """
    opener = Opener(process.db.read, Limits.of(process.settings))

    def look(connection: Connection) -> Outcome | None:
        assert call.child is not None
        found = children.look(connection, call.child, call.timeout)
        if found is None:
            return Outcome(error=ErrorInfo("not_found", f"execution {call.child} is gone"))
        if found["status"] in FINAL:
            return _ended(connection, call, found, opener)
        if found["expired"]:
            again = process.settings.republish_seconds
            children.cancel(connection, call.child, "its caller's timeout", republish_seconds=again)
            message = f"playbook '{found['path']}' took longer than {call.timeout:g} s (execution {call.child})"
            return Outcome(error=ErrorInfo("timeout", message, retryable=True))
        return None

    outcome = process.db.run(look)
    if outcome is not None and outcome.error is not None and outcome.error.kind == "timeout":
        assert call.child is not None
        announce(call.child)
    return outcome


def give_up_child(process: Process, child: int, reason: str) -> None:
    """Tells a child to end that nobody waits for any more. Harmless for one that has ended."""
    again = process.settings.republish_seconds
    process.db.run(lambda connection: children.cancel(connection, child, reason, republish_seconds=again))


def _ended(connection: Connection, call: Call, found: Mapping[str, Any], opener: Opener) -> Outcome:
    assert call.child is not None
    if found["status"] == "COMPLETED":
        if call.return_step is not None:
            results = stages.Results(connection, call.child, {call.return_step}, opener)
            if call.return_step in results:
                return Outcome(results[call.return_step])
        # A large result stays where it is: the caller's row will refer to it as well.
        return Outcome(opener.open(executions.result(connection, call.child)))
    error = found["error"] or {}
    where = f" in step '{error['step']}'" if error.get("step") else ""
    said = error.get("message") or "it was cancelled"
    kind = "cancelled" if found["status"] == "CANCELLED" else "playbook"
    message = f"playbook '{found['path']}' (execution {call.child}) {found['status']}{where}: {said}"
    data = {"execution_id": str(call.child), "status": found["status"], "error": error}
    return Outcome(data, ErrorInfo(kind, message, code=error.get("kind")))
