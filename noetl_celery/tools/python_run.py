"""Runs compiled task code in a namespace of its own, in this process: a lane's, or the tool's child process."""

from __future__ import annotations

import asyncio
import builtins
import copy
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools.printed import Printed
from noetl_celery.tools.python_source import ENTRY, FILENAME, NOTHING, Compiled, compile_source, syntax_message

_NOTHING = object()
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_LINE_LENGTH = 200


@dataclass(frozen=True, slots=True)
class PythonTask:
    """What to run: the code, its inputs, what it sees as ``context`` and ``auth``, and the ``libs`` to import."""

    source: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    libs: Any = None
    auth: Any = None


def run_source(task: PythonTask, write_line: Callable[[str], None]) -> Any:
    """What the code returned, not yet checked for JSON. Raises ``ToolError`` (``python``) for whatever it raises."""
    try:
        compiled = compile_source(task.source)
    except (SyntaxError, ValueError) as error:
        raise failure(f"SyntaxError: {syntax_message(error)}", "SyntaxError") from None
    printer, process = Printer(write_line), os.getpid()
    try:
        return _execute(compiled, _namespace(task, printer), task)
    except ToolError:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the code raised them, not the worker
        raise user_error(error, task.source) from None
    finally:
        if os.getpid() != process:
            os._exit(0)  # a fork that the code made and forgot: it would go on as a second worker
        printer.flush()


def failure(message: str, exception_type: str, *, line: int | None = None) -> ToolError:
    """An error of kind ``python``."""
    return ToolError(
        ErrorInfo("python", message, code=exception_type),
        extra={"py": {"exception_type": exception_type, "line": line}},
    )


def user_error(error: BaseException, source: str) -> ToolError:
    """``ZeroDivisionError: division by zero (line 3: `x = 1/0`)``: the innermost line of the task's own code."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in {"builtins", "__noetl__"} else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        text = str(error)
    except Exception:
        text = ""
    message = f"{name}: {text}" if text else name
    frames = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILENAME]
    if not frames:
        return failure(message, name)
    lines = source.splitlines()
    shown = lines[frames[-1] - 1].strip()[:_LINE_LENGTH] if frames[-1] <= len(lines) else ""
    return failure(f"{message} (line {frames[-1]}: `{shown}`)", name, line=frames[-1])


class Printer(Printed):
    """The task's ``print``: whole lines go to the task's output, as does what is printed to standard error."""

    def __call__(
        self, *values: Any, sep: str | None = None, end: str | None = None, file: Any = None, flush: bool = False
    ) -> None:
        """Like the built-in; a ``file`` of the code's own gets what is printed to it."""
        if file is not None and file not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            builtins.print(*values, sep=sep, end=end, file=file, flush=flush)
            return
        self.write((" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end))


def _namespace(task: PythonTask, printer: Printer) -> dict[str, Any]:
    inputs = _copied(task.inputs)
    # only copied for code that can see it: it holds the execution's whole workload and ctx
    context = _copied(task.context) if "context" in task.source else {}
    return {
        "context": context,
        "auth": _copied(task.auth),
        "input_data": inputs,
        **imported(task.libs),
        **inputs,
        "__name__": "__noetl__",
        "__builtins__": {**vars(builtins), "print": printer},
        NOTHING: _NOTHING,
    }


def _copied(value: Any) -> Any:
    """A deep copy; quick for JSON data."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return copy.deepcopy(value)


def _execute(compiled: Compiled, namespace: dict[str, Any], task: PythonTask) -> Any:
    exec(compiled.code, namespace)
    if compiled.entry:
        value = _awaited(namespace.pop(ENTRY)())
        if value is not _NOTHING:
            return value
    main = namespace.get("main") if "main" in compiled.names else None
    if callable(main):
        return _call_main(main, namespace, task.inputs, has_result="result" in compiled.names)
    if "result" in compiled.names or "result" not in task.inputs:
        return namespace.get("result")
    return None


def _call_main(
    main: Callable[..., Any], namespace: dict[str, Any], inputs: Mapping[str, Any], *, has_result: bool
) -> Any:
    """Calls ``main`` with the inputs that it names (and the rest, if it takes ``**kwargs``).

    A ``main`` that needs more than the inputs is taken for a helper if the code made a ``result`` without our help.
    """
    offered = {name: namespace.get(name) for name in ("input_data", "context")}
    given = {name: namespace.get(name, value) for name, value in inputs.items()}
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    missing: list[str] = []
    for name, parameter in inspect.signature(main).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords = {**given, **keywords}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif name in given or name in offered:
            value = given[name] if name in given else offered[name]
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                keywords[name] = value
        elif parameter.default is parameter.empty:
            missing.append(name)
    if missing and has_result:
        return namespace.get("result")
    if missing:
        known = ", ".join(inputs) or "none"
        raise failure(f"TypeError: main() needs `{missing[0]}`, which is not an input (inputs: {known})", "TypeError")
    return _awaited(main(*positional, **keywords))


def _awaited(value: Any) -> Any:
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def imported(libs: Any) -> dict[str, Any]:
    """The names that ``libs`` brings. Raises ``ToolError`` for what is not installed or cannot be imported."""
    if not libs:
        return {}
    if isinstance(libs, list | tuple):
        for requirement in libs:
            _require(str(requirement))
        return {}
    if not isinstance(libs, Mapping):
        raise failure(f"`libs` has to be a mapping or a list, not {type(libs).__name__}", "TypeError")
    return {str(alias): _import(str(alias), wanted) for alias, wanted in libs.items()}


def _require(requirement: str) -> None:
    match = _REQUIREMENT.match(requirement)
    try:
        distribution(match[1] if match else requirement)
    except (PackageNotFoundError, ValueError):
        message = f"libs: the distribution `{requirement}` is not installed where this worker runs"
        raise failure(message, "PackageNotFoundError") from None


def _import(alias: str, wanted: Any) -> Any:
    module, name = alias, None
    if isinstance(wanted, Mapping):
        module = str(wanted.get("from") or wanted.get("import") or alias)
        name = str(wanted.get("import") or alias) if wanted.get("from") else None
    elif wanted:
        module = str(wanted)
    try:
        loaded = importlib.import_module(module)
        if name is None:
            return loaded
        # ``from package import module`` too
        return getattr(loaded, name) if hasattr(loaded, name) else importlib.import_module(f"{module}.{name}")
    except Exception as error:
        what = f"`{name}` from `{module}`" if name else f"`{module}`"
        raise failure(f"libs: {what} cannot be imported: {error}", type(error).__name__) from None
