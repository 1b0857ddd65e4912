"""One piece of task code in a process of its own, which may be killed at any moment.

Writes JSON lines to what was standard output when it began: any number of ``{"print": …}`` and one ``{"result": …}``
or ``{"error": …}``. Whatever the code itself writes to standard output or standard error goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from noetl_celery.errors import ToolError
from noetl_celery.template.jsonable import jsonable
from noetl_celery.tools.python_run import PythonTask, failure, run_source


def run(request: dict[str, Any]) -> int:
    """Runs ``task`` of the request, whose answer may have ``most`` bytes; returns the exit status."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    lock = threading.Lock()

    def send(frame: bytes) -> None:
        with lock:
            frames.write(frame + b"\n")
            frames.flush()

    send(_answer(PythonTask(**request["task"]), lambda line: send(_encoded({"print": line})), int(request["most"])))
    sys.stdout.flush()
    return 0


def _stream(descriptor: int) -> IO[Any]:
    mode = "w" if descriptor else "r"
    return os.fdopen(descriptor, mode, 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _answer(task: PythonTask, write_line: Callable[[str], None], most: int) -> bytes:
    try:
        answer = _encoded({"result": jsonable(run_source(task, write_line))})
        if len(answer) <= most:
            return answer
        kind, message = "result_too_large", f"the result has {len(answer):,} bytes as JSON"
        return _error(kind, f"{message}; NOETL_RESULT_MAX_BYTES allows {most:,}")
    except ToolError as error:
        return _tool_error(error)
    except MemoryError:
        return _tool_error(
            failure("MemoryError: the result does not fit into the memory of its process", "MemoryError")
        )
    except (TypeError, ValueError) as error:
        return _error("result_type", f"the result cannot be kept: {error}")


def _tool_error(error: ToolError) -> bytes:
    return _error(error.info.kind, error.info.message, code=error.info.code, py=error.extra.get("py"))


def _error(kind: str, message: str, **more: Any) -> bytes:
    return _encoded({"error": {"kind": kind, "message": message, **more}})


def _encoded(frame: dict[str, Any]) -> bytes:
    # half of a surrogate pair is for the worker to judge
    return json.dumps(frame, ensure_ascii=False).encode("utf-8", "surrogatepass")
