"""Starts, follows and ends the process that runs task code with a time limit.

Plain ``subprocess``: worker processes of a prefork pool may not use multiprocessing.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template.jsonable import to_json
from noetl_celery.tools.python_run import PythonTask, failure

_MODULE = "noetl_celery.tools.python_child"
_CHUNK = 1 << 16
#: how long output of a process that has answered is still awaited
_LINGER_SECONDS = 0.2


def run_in_child(task: PythonTask, write_line: Callable[[str], None], deadline: float | None) -> Any:
    """Runs ``task`` in a process of its own and returns its result, as JSON data.

    At ``deadline`` (``time.monotonic()``) the process and all that it started are killed: ``ToolError`` of kind
    ``timeout``. What it printed until then has been written. A process that ends without an answer is kind ``python``,
    and says how it ended.
    """
    if deadline is not None and deadline <= time.monotonic():
        raise _timeout()
    with tempfile.TemporaryFile() as request:
        request.write(to_json({"parent": os.getpid(), "task": asdict(task)}).encode())
        request.seek(0)
        process = _start(request)
    try:
        answer = _Conversation(process, write_line).follow(deadline)
        if answer is None:
            raise _silent_end(process.wait())
    finally:
        end_process(process)
    return _result(answer)


def _start(request: IO[bytes]) -> subprocess.Popen[bytes]:
    # the child has to find what this process finds, also when it was started from a source tree
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=request,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        bufsize=0,
    )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kills the process group: the process, unless it has ended, and whatever it left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@dataclass(slots=True)
class _Conversation:
    """Reads the answer from one pipe of the process and stray output from the other, until one of them ends it."""

    process: subprocess.Popen[bytes]
    write_line: Callable[[str], None]
    answer: dict[str, Any] | None = None
    _parts: dict[int, list[bytes]] = field(default_factory=dict)

    def follow(self, deadline: float | None) -> dict[str, Any] | None:
        """The last frame, or None if the process ended without one. Raises ``ToolError`` at the deadline."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        frames, stray = self.process.stdout.fileno(), self.process.stderr.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(frames, selectors.EVENT_READ, self._frame)
            selector.register(stray, selectors.EVENT_READ, self._stray)
            while frames in selector.get_map() and self.answer is None:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise _timeout()
                self._turn(selector, remaining)
            until = time.monotonic() + _LINGER_SECONDS
            while stray in selector.get_map() and (remaining := until - time.monotonic()) > 0:
                self._turn(selector, remaining)
        self._last_lines(stray)
        return self.answer

    def _turn(self, selector: selectors.BaseSelector, timeout: float | None) -> None:
        for key, _ in selector.select(timeout):
            chunk = os.read(key.fd, _CHUNK)
            if not chunk:
                selector.unregister(key.fd)
                continue
            parts = self._parts.setdefault(key.fd, [])
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                key.data(b"".join(parts) + line)
                parts.clear()
            parts.append(rest)

    def _frame(self, line: bytes) -> None:
        frame = json.loads(line)
        if "print" in frame:
            self.write_line(frame["print"])
        else:
            self.answer = frame

    def _stray(self, line: bytes) -> None:
        self.write_line(line.decode(errors="replace"))

    def _last_lines(self, stray: int) -> None:
        rest = b"".join(self._parts.get(stray, []))
        if rest:
            self._stray(rest)


def _result(answer: dict[str, Any]) -> Any:
    error = answer.get("error")
    if error is None:
        return answer["result"]
    info = ErrorInfo(error["kind"], error["message"], code=error.get("code"))
    raise ToolError(info, extra={"py": error.get("py") or {}})


def _timeout() -> ToolError:
    return ToolError(ErrorInfo("timeout", "the code did not end in time, and was stopped"))


def _silent_end(status: int) -> ToolError:
    if status >= 0:
        return failure(
            f"the code's process ended by itself (exit status {status}) before it had a result", "SystemExit"
        )
    name = signal.Signals(-status).name
    cause = " (out of memory?)" if name == "SIGKILL" else ""
    return failure(f"the code's process was ended by {name}{cause}", "ProcessKilled")
