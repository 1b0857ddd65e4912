"""Runs a tool and makes an outcome of whatever comes out of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, TemplateError, ToolError
from noetl_celery.outcome import Outcome
from noetl_celery.template.jsonable import jsonable
from noetl_celery.tools.base import Reply, Tool, ToolCall

log = logging.getLogger(__name__)

_PARTS = ("http", "pg", "py")


def run_tool(tool: Tool, call: ToolCall, *, clock: Callable[[], float] = time.monotonic) -> Outcome:
    """Runs ``tool`` once; never raises an ``Exception``.

    Data is JSON-safe in the outcome: a value without a JSON form makes an error of kind ``result_type`` that names
    it. ``ToolError`` becomes its info and extras; a template of a credential that cannot be rendered is kind
    ``template``; anything else is a bug of the tool, kind ``internal``, and logged. ``meta.duration`` is in seconds.
    Nothing is run once ``call.deadline`` has passed: kind ``timeout``.
    What comes with an error (data, ``http``, ``pg``, ``py``) is hidden as its message is; data of a success is data.
    """
    hiding.learn_named(call.config)
    started = clock()
    try:
        if call.deadline is not None and started >= call.deadline:
            raise ToolError(ErrorInfo("timeout", "the time of the step was over before this task began"))
        outcome = _succeeded(tool.run(call))
    except ToolError as error:
        outcome = _failed(error)
    except TemplateError as error:
        outcome = Outcome(error=ErrorInfo("template", str(error)))
    except Exception as error:
        log.exception("tool %s failed unexpectedly", tool.kind, extra={"names": dict(call.names)})
        outcome = Outcome(error=ErrorInfo("internal", f"{type(error).__name__}: {error}"))
    outcome.meta["duration"] = round(clock() - started, 6)
    return outcome


def _succeeded(returned: Any) -> Outcome:
    reply = returned if isinstance(returned, Reply) else Reply(returned)
    try:
        data = reply.data if reply.kept or reply.plain else jsonable(reply.data)
        return Outcome(data, http=_part(reply.http), pg=_part(reply.pg), py=_part(reply.py))
    except TypeError as error:
        return Outcome(error=ErrorInfo("result_type", f"the result cannot be kept: {error}"))


def _failed(error: ToolError) -> Outcome:
    parts = {name: hiding.without(_part(error.extra.get(name) or {})) for name in _PARTS}
    try:
        data = hiding.without(jsonable(error.extra.get("data")))
    except TypeError:
        data = None  # the failure matters more than what came with it
    return Outcome(data, error.info, **parts)


def _part(values: Mapping[str, Any]) -> dict[str, Any]:
    if not values:
        return {}
    converted = jsonable(values)
    return dict(converted) if isinstance(converted, Mapping) else {}
