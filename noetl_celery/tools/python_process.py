"""Task code that has to end in time: run in a process of its own, which is killed when the time is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import processes
from noetl_celery.tools.limits import limits
from noetl_celery.tools.printed import Printed
from noetl_celery.tools.python_run import PythonTask, failure

_STATUS = "the code's process ended by itself, without a result: "
_KILLED = "the code's process was "


def run_in_process(task: PythonTask, write_line: Callable[[str], None], deadline: float) -> Any:
    """Runs ``task`` in a process of its own and returns its result, as JSON data.

    At ``deadline`` (``time.monotonic()``) the process and all that it started are killed: ``ToolError`` of kind
    ``timeout``. What it printed until then has been written. A process that ends without an answer is kind ``python``,
    and says how it ended; kind ``result_too_large`` is one whose answer is larger than a result may be.
    """
    if deadline <= time.monotonic():
        raise _timeout()
    frames, stray = _Frames(write_line), Printed(write_line)
    with processes.started(processes.CODE, {"task": asdict(task), "most": limits().output_bytes}) as process:
        in_time = process.follow(frames.read, stray.write_bytes, deadline)
    stray.flush()
    if frames.answer is not None:
        return _result(frames.answer)
    if not in_time:
        raise _timeout()
    raise _silent_end(process.status)


class _Frames:
    """Takes the lines of the child apart: what it prints is handed on, the answer kept."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self.answer: dict[str, Any] | None = None
        self._write_line = write_line
        self._parts: list[bytes] = []

    def read(self, chunk: bytes) -> None:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._frame(b"".join([*self._parts, line]))
            self._parts.clear()
        self._parts.append(rest)

    def _frame(self, line: bytes) -> None:
        frame = json.loads(line.decode("utf-8", "surrogatepass"))
        if "print" in frame:
            self._write_line(frame["print"])
        else:
            self.answer = frame


def _result(answer: dict[str, Any]) -> Any:
    error = answer.get("error")
    if error is None:
        return answer["result"]
    info = ErrorInfo(error["kind"], error["message"], code=error.get("code"))
    raise ToolError(info, extra={"py": error.get("py") or {}})


def _timeout() -> ToolError:
    return ToolError(ErrorInfo("timeout", "the code did not end in time, and was stopped"))


def _silent_end(status: int | None) -> ToolError:
    how = processes.how_it_ended(processes.LOST if status is None else status)
    if how.startswith("exit"):
        return failure(_STATUS + how, "SystemExit")
    return failure(_KILLED + how, "ProcessKilled")
