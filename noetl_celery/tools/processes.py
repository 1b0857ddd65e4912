"""Processes that tasks have: started by the launcher of this worker process, followed until they or their time end.

Each has a session and process group of its own; when it ends, is given up, or this worker process dies in whatever way,
all of the group is killed. What takes itself out of its group (``setsid``) is on its own.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from noetl_celery.template.jsonable import to_json
from noetl_celery.tools.environment import inherited
from noetl_celery.tools.launcher import CODE, COMMAND

__all__ = ["CODE", "COMMAND", "LOST", "Process", "close", "how_it_ended", "started"]

_MODULE = "noetl_celery.tools.launcher"
_CHUNK = 1 << 16
#: how long output is still awaited of something that outlived the process and its group
_LINGER_SECONDS = 0.2
#: how long a killed process may take to be gone
_GONE_SECONDS = 5.0
#: the status of a process whose launcher died: nobody knows how it ended
LOST = 1000


@dataclass(slots=True)
class Process:
    """A running process. ``status`` is None until it has ended; negative for a signal; ``LOST``."""

    line: socket.socket
    stdout: int
    stderr: int
    status: int | None = None

    def follow(self, stdout: Callable[[bytes], None], stderr: Callable[[bytes], None], deadline: float | None) -> bool:
        """Hands on what it writes until it has ended; False if ``deadline`` (``time.monotonic()``) comes before.

        Does not wait for what it left behind and still holds its streams. Raises ``OSError`` if it could not be
        started, and whatever a receiver raises.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ, stdout)
            selector.register(self.stderr, selectors.EVENT_READ, stderr)
            selector.register(self.line, selectors.EVENT_READ)
            while self.status is None:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._turn(selector, deadline)
            linger = time.monotonic() + _LINGER_SECONDS
            while selector.get_map() and time.monotonic() < linger:
                self._turn(selector, linger)
        return True

    def _turn(self, selector: selectors.BaseSelector, until: float | None) -> None:
        for key, _ in selector.select(None if until is None else max(0.0, until - time.monotonic())):
            if key.fileobj is self.line:
                self._read_status()
                selector.unregister(self.line)
                continue
            chunk = os.read(key.fd, _CHUNK)
            if chunk:
                key.data(chunk)
            else:
                selector.unregister(key.fd)

    def _read_status(self) -> None:
        try:
            said = self.line.recv(_CHUNK)
        except OSError:
            said = b""
        answer = json.loads(said.splitlines()[0]) if said else {"status": LOST}
        self.status = answer.get("status", LOST)
        if answer.get("errno"):
            raise OSError(answer["errno"], os.strerror(answer["errno"]))

    def end(self) -> None:
        """Has it killed with its group if it still runs, and closes everything. May be called twice."""
        if self.line.fileno() < 0:
            return
        if self.status is None:
            with suppress(OSError):
                self.line.shutdown(socket.SHUT_WR)
                self.line.settimeout(_GONE_SECONDS)
                self._read_status()
        self.line.close()
        os.close(self.stdout)
        os.close(self.stderr)


@contextmanager
def started(kind: bytes, request: Mapping[str, Any], stdin: bytes = b"") -> Iterator[Process]:
    """Starts task code (``CODE``) or a command (``COMMAND``); it is gone at the end of the block.

    ``request`` is what :mod:`noetl_celery.tools.launcher` wants to know. Files, not pipes, bring it and ``stdin``:
    nothing has to be fed while the output is read.
    """
    with ExitStack() as opened:
        near, streams = _streams(opened)
        files = [_file(opened, data) for data in (to_json(request).encode("utf-8", "surrogatepass"), stdin)]
        process = Process(*near)
        try:
            line, stdout, stderr = streams
            _LAUNCHERS.start(kind, (line.fileno(), *files, stdout, stderr))
        except BaseException:
            process.status = LOST
            process.end()
            raise
    try:
        yield process
    finally:
        process.end()


def _streams(opened: ExitStack) -> tuple[tuple[socket.socket, int, int], tuple[socket.socket, int, int]]:
    """Line, stdout and stderr: our ends, and those of the process, which are closed with ``opened``."""
    (out, out_far), (err, err_far) = os.pipe(), os.pipe()
    line, line_far = socket.socketpair()
    opened.callback(line_far.close)
    opened.callback(os.close, out_far)
    opened.callback(os.close, err_far)
    return (line, out, err), (line_far, out_far, err_far)


def _file(opened: ExitStack, data: bytes) -> int:
    file = opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - that is what it does
    file.write(data)
    file.seek(0)
    return file.fileno()


class _Launchers:
    """The launcher of this process: made when it is needed first, anew after a fork and when it has died."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget_inherited)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def _forget_inherited(self) -> None:
        if self._control is not None:
            self._control.close()  # or the launcher would not see our parent die
        if self._process is not None:
            self._process.returncode = 0  # our parent's to wait for
        self._forget()

    def start(self, kind: bytes, descriptors: Sequence[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._connected(), [kind], descriptors)
            except (BrokenPipeError, ConnectionResetError):
                self._drop()
                socket.send_fds(self._connected(), [kind], descriptors)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connected(self) -> socket.socket:
        if self._control is None:
            # the launcher has to find what this process finds, also when that was started from a source tree
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={**inherited(), "PYTHONPATH": path},
                    start_new_session=True,
                )
            self._control = ours
        return self._control

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_GONE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None


def how_it_ended(status: int) -> str:
    """For people: ``exit code 3``, ``killed by signal 9 (out of memory?)``."""
    if status == LOST:
        return "lost with the process that started it (out of memory?)"
    if status >= 0:
        return f"exit code {status}"
    cause = "out of memory?" if status == -signal.SIGKILL else signal.strsignal(-status)
    return f"killed by signal {-status} ({cause})"


_LAUNCHERS = _Launchers()
#: ends this process's launcher, and what it has started; the next start makes another
close = _LAUNCHERS.close
atexit.register(close)
