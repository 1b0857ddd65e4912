"""The process that runs one piece of task code which may have to be killed.

Reads one JSON object from standard input, writes JSON lines to what was standard output when it began: any number of
``{"print": …}`` and one ``{"result": …}`` or ``{"error": …}``. Whatever the code itself writes to standard output or
standard error goes to standard error. Dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

from noetl_celery.errors import ToolError
from noetl_celery.template.jsonable import jsonable
from noetl_celery.tools.python_run import PythonTask, run_source

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the request on standard input; returns the exit status."""
    frames = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    _die_with(int(request["parent"]))
    lock = threading.Lock()

    def send(frame: dict[str, Any]) -> None:
        with lock:
            frames.write(json.dumps(frame) + "\n")
            frames.flush()

    send(_answer(PythonTask(**request["task"]), lambda line: send({"print": line})))
    return 0


def _answer(task: PythonTask, write_line: Any) -> dict[str, Any]:
    try:
        return {"result": jsonable(run_source(task, write_line))}
    except ToolError as error:
        info = error.info
        return {"error": {"kind": info.kind, "message": info.message, "code": info.code, "py": error.extra.get("py")}}
    except TypeError as error:
        return {"error": {"kind": "result_type", "message": f"the result cannot be kept: {error}"}}


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before we asked


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # threads that the code left behind must not keep the worker waiting
    os._exit(status)
