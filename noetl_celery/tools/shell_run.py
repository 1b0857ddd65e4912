"""Runs one command to its end, or to that of its time: output followed line by line, bounded, nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from noetl_celery.tools import processes
from noetl_celery.tools.printed import Printed


@dataclass(frozen=True, slots=True)
class Command:
    """What to start. ``env`` is the whole environment; ``cwd`` None is ours."""

    arguments: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None


@dataclass(slots=True)
class Ended:
    """``status``: exit status, negative for a signal, None if it was stopped; then ``too_late`` or ``too_much``."""

    status: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    too_late: bool = False
    too_much: bool = False


def run(
    command: Command, stdin: bytes, write_line: Callable[[str], None], deadline: float | None, most_bytes: int
) -> Ended:
    """Runs it in a process group of its own, which is killed at the end: also what it left in the background.

    ``deadline`` is a ``time.monotonic()`` value; ``most_bytes`` bounds both outputs together. Raises ``OSError`` if it
    cannot be started, ``ValueError`` for a NUL in an argument.
    """
    if deadline is not None and deadline <= time.monotonic():
        return Ended(None, too_late=True)
    if any("\0" in text for text in (*command.arguments, *command.env.values(), *command.env)):
        raise ValueError("it has a NUL character in it")
    room = _Room(most_bytes)
    stdout, stderr = _Output(write_line, room), _Output(write_line, room)
    in_time, too_much = True, False
    with processes.started(processes.COMMAND, asdict(command), stdin) as process:
        try:
            in_time = process.follow(stdout.read, stderr.read, deadline)
        except _TooMuch:
            too_much = True
        status = process.status if in_time and not too_much else None
    for output in (stdout, stderr):
        output.printed.flush()
    return Ended(status, bytes(stdout.whole), bytes(stderr.whole), too_late=not in_time, too_much=too_much)


class _TooMuch(Exception):
    """The command writes more than it may."""


@dataclass(slots=True)
class _Room:
    left: int


class _Output:
    """One output: what has been read of it, and its way to the log."""

    def __init__(self, write_line: Callable[[str], None], room: _Room) -> None:
        self.whole = bytearray()
        self.printed = Printed(write_line)
        self._room = room

    def read(self, chunk: bytes) -> None:
        self._room.left -= len(chunk)
        if self._room.left < 0:
            raise _TooMuch
        self.whole += chunk
        self.printed.write_bytes(chunk)
