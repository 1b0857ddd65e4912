"""The process that starts others for a worker process: task code, each run in a fork of its own, and commands.

The worker does not start them itself, for two reasons. It has threads, so that a fork of it is not safe, and a new
interpreter for each row would take a third of a second: here everything is imported, and there is one thread. And it
may die at any moment: then the socket below ends, and this process kills what it has started, with everything that
those have started.

Standard input is that socket. To start something, one byte comes, its kind, with the descriptors ``LINE``,
``REQUEST`` (a file with JSON), and three for the streams of the new process. On its line one JSON object answers,
``{"status": …}`` (negative: a signal) when it has ended or ``{"errno": …}`` if it cannot be started. Whoever closes the
other end of the line for writing has the process killed. Nothing here waits for anybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from noetl_celery.tools import python_child

#: kinds of starts
CODE, COMMAND = b"c", b"x"
DESCRIPTORS = 5
_PR_SET_PDEATHSIG = 1
#: added to the badness of what is started: when memory is short it goes before the worker does
_OOM_SCORE = "500"
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Launcher:
    """Serves one worker process until that closes its end of ``control``, or dies."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._serving = True
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def serve(self) -> None:
        """Starts, reports and kills; at the end kills what still runs."""
        ended, wake = os.pipe()
        os.set_blocking(ended, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ, self._start)
        self._selector.register(ended, selectors.EVENT_READ, lambda: self._report(ended))
        while self._serving:
            for key, _ in self._selector.select():
                key.data()
        for process in self._lines:
            kill(process)

    def _start(self) -> None:
        kind, descriptors, _, _ = socket.recv_fds(self._control, 1, DESCRIPTORS)
        if not kind:
            self._serving = False
            return
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        line = socket.socket(fileno=descriptors[0])
        try:
            process = os.fork()
        except OSError as error:
            _say(line, {"errno": error.errno})
            line.close()
        else:
            if process == 0:
                self._become(kind, line, descriptors[1], descriptors[2:])
            self._lines[process] = line
            self._selector.register(line, selectors.EVENT_READ, lambda: self._let_go(process, line))
        for descriptor in descriptors[1:]:
            os.close(descriptor)

    def _let_go(self, process: int, line: socket.socket) -> None:
        """The other side wants no more of it; it is told when that has happened."""
        self._selector.unregister(line)
        kill(process)

    def _report(self, ended: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(ended, 4096)
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            line = self._lines.pop(process)
            kill(process)  # what it has left behind
            with contextlib.suppress(KeyError):
                self._selector.unregister(line)
            _say(line, {"status": os.waitstatus_to_exitcode(status)})
            line.close()

    # -- in the fork -----------------------------------------------------------------------------------------------

    def _become(self, kind: bytes, line: socket.socket, request: int, streams: list[int]) -> NoReturn:
        status = 1
        try:
            self._settle(streams)
            with open(request, encoding="utf-8") as file:
                wanted = json.load(file)
            if kind == COMMAND:
                _execute(wanted, line)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            status = python_child.run(wanted)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # without what the launcher, or threads of the code, would do at an end

    def _settle(self, streams: list[int]) -> None:
        """A session and group of its own, the streams, signals as they are by default; dies with the launcher."""
        os.setsid()
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(_OOM_SCORE)
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        signal.set_wakeup_fd(-1)
        for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _execute(wanted: dict[str, Any], line: socket.socket) -> NoReturn:
    """Becomes a command; the line closes by itself when that has worked."""
    try:
        if wanted["cwd"] is not None:
            os.chdir(wanted["cwd"])
        arguments = wanted["arguments"]
        os.execvpe(arguments[0], arguments, wanted["env"])
    except OSError as error:
        _say(line, {"errno": error.errno})
    os._exit(127)


def _say(line: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        line.send(json.dumps(answer).encode() + b"\n")


def kill(process: int) -> None:
    """Kills the process and its group, or what is left of them."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(process, signal.SIGKILL)


def main() -> None:
    for number in _IGNORED:
        # a stop of the whole service is the worker's to decide: what runs may end in its time
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # pages that no collector touches stay shared with the forks
    Launcher(socket.socket(fileno=os.dup(0))).serve()


if __name__ == "__main__":
    main()
