"""Runs one command to its end, or to that of its time: output followed line by line, bounded, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from noetl_celery.tools.python_process import end_process

_CHUNK = 1 << 16
#: how often a command is looked at whose output something else keeps open
_LOOK_SECONDS = 0.05
#: how long output is still awaited after the command itself has ended
_LINGER_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Command:
    """What to start. ``stdin`` is empty if None; ``env`` is the whole environment; ``cwd`` None is ours."""

    arguments: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: bytes | None = None


@dataclass(slots=True)
class Ended:
    """``status``: exit status, negative for a signal, None if it was stopped; then ``too_late`` or ``too_much``."""

    status: int | None
    stdout: bytes
    stderr: bytes
    too_late: bool = False
    too_much: bool = False


def run(command: Command, write_line: Callable[[str], None], deadline: float | None, most_bytes: int) -> Ended:
    """Runs it in a process group of its own, which is killed at the end: also what it left in the background.

    ``deadline`` is a ``time.monotonic()`` value; ``most_bytes`` bounds both outputs together. Raises ``OSError`` if it
    cannot be started, ``ValueError`` for a NUL in an argument.
    """
    if deadline is not None and deadline <= time.monotonic():
        return Ended(None, b"", b"", too_late=True)
    process = _start(command)
    reader = _Reader(process, write_line, deadline, most_bytes)
    try:
        return reader.follow()
    finally:
        end_process(process)


def _start(command: Command) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as file:
        # a file, not a pipe: nothing has to be fed while the output is read
        file.write(command.stdin or b"")
        file.seek(0)
        return subprocess.Popen(
            list(command.arguments),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=command.cwd,
            env=dict(command.env),
            start_new_session=True,
            bufsize=0,
        )


@dataclass(slots=True)
class _Pipe:
    """One output: what has been read of it, and the line that is not complete yet."""

    whole: bytearray = field(default_factory=bytearray)
    written: int = 0

    def lines(self, *, last: bool = False) -> list[str]:
        """Complete lines that were not handed out before; with ``last`` also the rest."""
        end = len(self.whole) if last else self.whole.rfind(b"\n", self.written) + 1
        fresh = bytes(self.whole[self.written : end]) if end > self.written else b""
        self.written = max(end, self.written)
        return fresh.decode(errors="replace").splitlines()


class _Reader:
    """Reads both outputs until they end, the command ends, its time is over or its output too large."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        write_line: Callable[[str], None],
        deadline: float | None,
        most_bytes: int,
    ) -> None:
        self._process, self._write_line = process, write_line
        self._deadline, self._left = deadline, most_bytes
        self._stdout, self._stderr = _Pipe(), _Pipe()

    def follow(self) -> Ended:
        with selectors.DefaultSelector() as selector:
            for stream, pipe in ((self._process.stdout, self._stdout), (self._process.stderr, self._stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, pipe)
            stopped = self._read(selector)
        for pipe in (self._stdout, self._stderr):
            self._print(pipe, last=True)
        status = None if stopped else self._process.returncode
        return Ended(
            status,
            bytes(self._stdout.whole),
            bytes(self._stderr.whole),
            too_late=stopped and self._left >= 0,
            too_much=self._left < 0,
        )

    def _read(self, selector: selectors.BaseSelector) -> bool:
        """True if the command has to be stopped."""
        linger: float | None = None
        while True:
            now = time.monotonic()
            ended = self._process.poll() is not None
            if ended:
                linger = now + _LINGER_SECONDS if linger is None else linger
                if not selector.get_map() or now >= linger:
                    return False
            elif self._deadline is not None and now >= self._deadline:
                return True
            wait = _LOOK_SECONDS if self._deadline is None else min(_LOOK_SECONDS, max(0.0, self._deadline - now))
            if not self._turn(selector, wait):
                return True

    def _turn(self, selector: selectors.BaseSelector, wait: float) -> bool:
        """Reads what is there; False once it is too much."""
        if not selector.get_map():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait)  # it has closed its outputs, and may go on
            return True
        for key, _ in selector.select(wait):
            stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
            chunk = os.read(stream.fileno(), _CHUNK)
            if not chunk:
                selector.unregister(stream)
                continue
            self._left -= len(chunk)
            if self._left < 0:
                return False
            key.data.whole += chunk
            self._print(key.data)
        return True

    def _print(self, pipe: _Pipe, *, last: bool = False) -> None:
        for line in pipe.lines(last=last):
            self._write_line(line)
