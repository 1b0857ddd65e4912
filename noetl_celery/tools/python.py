"""The ``python`` tool: a few lines of code between the other tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.tools import processes, script
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.keys import (
    Complaint,
    auth_of,
    bad_config,
    check_seconds,
    deadline_of,
    is_blank,
    is_template,
    one_of,
    unknown_keys,
)
from noetl_celery.tools.python_process import run_in_process
from noetl_celery.tools.python_run import PythonTask, run_source
from noetl_celery.tools.python_source import compile_source, syntax_message

_KNOWN = frozenset({"code", "script", "libs"})


class PythonTool:
    """Runs ``code``, or a ``script`` from elsewhere, in the lane's thread; where its time is limited, by its own
    ``timeout`` or that of its step, in a process of its own that can be killed.

    The result is what a top-level ``return`` gives, else what ``main(…)`` returns, called with the inputs that
    it names, else the variable ``result``. Inputs are variables and ``input_data``; they are copies, so the code
    cannot change what others see.
    """

    kind = "python"
    raw_keys: frozenset[str] = frozenset({"code"})
    keys: frozenset[str] = _KNOWN

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Keys, the code that has to be there, and its syntax."""
        complaints = unknown_keys(config, _KNOWN)
        complaints += one_of(config, ("code", "script"), required=True)
        complaints += check_seconds(config, "timeout")
        libs = config.get("libs")
        if not (is_blank(libs) or is_template(libs) or isinstance(libs, Mapping | list)):
            complaints.append(("libs", "`libs` has to be a mapping of names to modules, or a list of distributions"))
        if not is_blank(config.get("script")):
            complaints += script.check(config["script"])
        return complaints or _code_complaints(config)

    def run(self, call: ToolCall) -> Any:
        """The code's result. Raises ``ToolError`` of kind ``python``, ``timeout``, ``result_type``,
        ``result_too_large`` or ``config``, and what reading a ``script`` raises."""
        deadline = deadline_of(call.config, call.deadline)
        task = _task(call)
        if deadline is None:
            return run_source(task, call.print)
        return run_in_process(task, call.print, deadline)

    def close(self) -> None:
        """Ends the process that starts others, what still runs, and connections to servers of scripts."""
        processes.close()
        script.close()


def _code_complaints(config: Mapping[str, Any]) -> list[Complaint]:
    key = "script" if is_blank(config.get("code")) else "code"
    source = script.inline(config["script"]) if key == "script" else config["code"]
    if source is None:
        return []  # not known before it runs
    if not isinstance(source, str):
        return [(key, f"the code has to be text, not {type(source).__name__}")]
    try:
        compile_source(source)
    except (SyntaxError, ValueError) as error:
        return [(key, f"the code cannot be compiled: {syntax_message(error)}")]
    return []


def _source(call: ToolCall) -> str:
    code = call.config.get("code")
    if is_blank(code):
        return script.load(call)
    if not isinstance(code, str):
        raise bad_config(f"the code has to be text, not {type(code).__name__}")
    return code


def _task(call: ToolCall) -> PythonTask:
    config = call.config
    own = [config[key] for key in ("args", "input") if isinstance(config.get(key), Mapping)]
    inputs: dict[str, Any] = {}
    for values in (*own, call.input):
        inputs.update(values)
    return PythonTask(_source(call), inputs, call.context, config.get("libs"), _auth(call))


def _auth(call: ToolCall) -> Any:
    auth = auth_of(call.config)
    return dict(call.credential(auth)) if isinstance(auth, str) and auth.strip() else auth
