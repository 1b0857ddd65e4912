"""Runs processes so that none of them outlives us: whatever was started ends, in whichever way we end.

A :class:`Program` says what to run, a :class:`Child` is one run of it, :class:`Signals` turns signals into something
that unwinds the start and wakes the loop, and :class:`Supervisor` keeps children alive until it is told to stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from noetl_celery.errors import InputError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set
    from types import FrameType

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 5.0
#: a run this long counts as a good start: the next restart is quick again
STEADY_SECONDS = 10.0
#: so many short runs in a row that ended by themselves, and we give up
SHORT_RUNS = 6
LOG_LINES = 15
#: what children that are asked to stop a second time get at most
HURRY_SECONDS = 5.0


class Stopped(Exception):
    """A signal asked us to stop while we were starting; ``code`` is what the process should exit with."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.code = 128 + signum


@dataclass(frozen=True)
class Program:
    """What to run. Without ``log`` it shares our input and output."""

    name: str
    command: Sequence[str]
    log: Path | None = None
    env: Mapping[str, str] | None = None
    stop_signal: int = signal.SIGTERM
    #: for whoever asks to stop a second time
    hurry_signal: int | None = None
    #: what the kernel sends it when we die without a chance to stop it (Linux)
    orphan_signal: int = signal.SIGKILL
    #: a process group of its own, killed as a whole; a COMMAND stays in ours, so that a terminal reaches it
    own_group: bool = True
    #: with False, an end with exit code 0 is meant and not repaired
    restart_always: bool = True
    uid: int | None = None
    gid: int | None = None


class Child:
    """One program and its current process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        if program.log is not None:
            program.log.parent.mkdir(parents=True, exist_ok=True)
            program.log.write_bytes(b"")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int:
        """As a shell would say it: 128 + n after signal n. Only for a child that has ended."""
        code = self.process.poll() if self.process else None
        if code is None:
            raise RuntimeError(f"{self.program.name} has not ended")
        return code if code >= 0 else 128 - code

    def start(self) -> None:
        """Starts (or starts again) the program; :class:`InputError` if there is no such program."""
        program = self.program
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(program.log.open("ab")) if program.log else None
            self.started_at = time.monotonic()
            try:
                self.process = subprocess.Popen(
                    [str(part) for part in program.command],
                    stdin=None if log is None else subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=None if program.env is None else {**os.environ, **program.env},
                    start_new_session=program.own_group,
                    user=program.uid,
                    group=program.gid,
                    extra_groups=None if program.uid is None else [],
                    preexec_fn=_bind_to_parent(program.orphan_signal) if LINUX else None,
                )
            except (FileNotFoundError, NotADirectoryError):
                raise InputError(f"{program.command[0]}: command not found") from None
            except PermissionError:
                raise InputError(f"{program.command[0]}: not executable") from None
            except OSError as error:
                raise InputError(f"{program.command[0]}: {error.strerror}") from None

    def send(self, signum: int) -> None:
        """Signals the process itself, not its children: it knows better how to end them."""
        if self.process is not None and self.running:
            self.process.send_signal(signum)

    def kill(self) -> None:
        """Ends the process and what is left of its group, at once."""
        if self.process is None:
            return
        if self.program.own_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def how_it_ended(self) -> str:
        code = self.process.returncode if self.process else None
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def last_lines(self) -> str:
        """The end of its log, for an error message; empty if it has none."""
        if self.program.log is None or not self.program.log.exists():
            return ""
        lines = self.program.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "".join(f"\n    {line}" for line in lines)

    def failure(self, what: str) -> ServiceError:
        log = f"; its log {self.program.log} ends with:{self.last_lines()}" if self.program.log else ""
        return ServiceError(f"{self.program.name} {what}{log}")


def wait_ready(child: Child, ready: Callable[[], bool], seconds: float) -> None:
    """Waits until ``ready()``; :class:`ServiceError` with the log's end if the child dies or time is over first."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not child.running:
            raise child.failure(child.how_it_ended())
        if time.monotonic() > deadline:
            raise child.failure(f"was not ready after {seconds:g} s")
        time.sleep(0.05)


def stop_all(children: Sequence[Child], grace_seconds: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """Asks all to stop, waits for them together, kills what is left after ``grace_seconds`` and each one's group.

    Once ``hurry()`` is true they are asked again, more urgently, and get at most ``HURRY_SECONDS``.
    """
    for child in children:
        child.send(child.program.stop_signal)
    deadline, hurried = time.monotonic() + grace_seconds, False
    while any(child.running for child in children) and time.monotonic() < deadline:
        if not hurried and hurry():
            hurried, deadline = True, min(deadline, time.monotonic() + HURRY_SECONDS)
            for child in children:
                if child.program.hurry_signal is not None:
                    child.send(child.program.hurry_signal)
        time.sleep(0.05)
    for child in children:
        child.kill()


def _bind_to_parent(signum: int) -> Callable[[], None]:
    parent = os.getpid()

    def bind() -> None:
        assert _LIBC is not None
        _LIBC.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and here
            os._exit(1)

    return bind


def adopt_orphans(wanted: bool) -> bool:
    """Whether what our children leave behind becomes our child (Linux), so that :func:`end_orphans` can find it.

    Returns what held before.
    """
    if _LIBC is None:
        return False
    before = ctypes.c_int()
    _LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
    return bool(before.value)


def _child_pids() -> set[int]:
    pids: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(int(pid) for pid in listing.read_text().split())
    return pids


def collect_orphans(spared: Set[int]) -> None:
    """Takes the exit codes of adopted processes that have ended, so that no zombies gather."""
    for pid in _child_pids() - spared:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def end_orphans(spared: Set[int], seconds: float = 5.0) -> None:
    """Kills adopted processes, and what those leave behind in turn; gives up after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := _child_pids() - spared) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


class Signals:
    """SIGTERM, SIGINT and SIGHUP while this context is open (main thread only).

    At first a signal raises :class:`Stopped`, so that a start unwinds; after :meth:`defer`, or once it has raised, it
    is only noted in ``received`` and wakes :meth:`wait`.
    """

    HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: list[int] = []
        self._deferred = False
        self._previous: dict[int, object] = {}
        self._wake, self._waker = socket.socketpair()

    def __enter__(self) -> Self:
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for signum in self.HANDLED:
            self._previous[signum] = signal.signal(signum, self._handle)
        self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._previous_fd)
        self._wake.close()
        self._waker.close()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self.received.append(signum)
        if not self._deferred:
            self._deferred = True
            raise Stopped(signum)

    def defer(self) -> None:
        self._deferred = True

    def wait(self, seconds: float) -> None:
        """Sleeps, at most until the next signal (the end of a child is one)."""
        select.select([self._wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass


@dataclass
class _Minded:
    """A child with the history that decides when it is started again."""

    child: Child
    delay: float = FIRST_DELAY_SECONDS
    short_runs: int = 0
    restarts: int = 0
    ever_steady: bool = False
    due_at: float | None = None


@dataclass
class Supervisor:
    """Keeps children running, and stops those that it started when the context ends.

    A child that dies is started again, with growing delays. One that never got going (it ends by itself, with an
    error, soon after its first start), or that keeps ending so, is a failure of the whole: :class:`ServiceError`.
    """

    signals: Signals
    grace_seconds: float
    notice: Callable[[str], None]
    _minded: list[_Minded] = field(default_factory=list)
    _own: list[Child] = field(default_factory=list)
    #: children that the process had before: not ours to end
    _older: set[int] = field(default_factory=set)
    _adopted_before: bool = False

    def __enter__(self) -> Self:
        self._older = _child_pids()
        self._adopted_before = adopt_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        self.signals.defer()
        stop_all(self._own, self.grace_seconds, lambda: len(self.signals.received) > 1)
        end_orphans(self._spared())
        adopt_orphans(self._adopted_before)

    def _spared(self) -> set[int]:
        """Processes that are no orphans: those that were there before, and our children."""
        known = [*(minded.child for minded in self._minded), *self._own]
        return self._older | {child.process.pid for child in known if child.process}

    def start(self, program: Program) -> Child:
        """Starts a program and keeps it running until the end."""
        child = Child(program)
        self._own.append(child)
        child.start()
        self.watch(child)
        return child

    def watch(self, child: Child) -> None:
        """Restarts ``child`` when it dies, but leaves its end to whoever started it."""
        self._minded.append(_Minded(child))

    def check(self) -> bool:
        """One look at all children. False if one has ended that is meant to stay ended."""
        for minded in self._minded:
            if minded.child.running:
                if time.monotonic() - minded.child.started_at > STEADY_SECONDS:
                    minded.delay, minded.short_runs, minded.ever_steady = FIRST_DELAY_SECONDS, 0, True
            elif minded.due_at is None:
                if minded.child.exit_code == 0 and not minded.child.program.restart_always:
                    return False
                self._plan_restart(minded)
            elif time.monotonic() >= minded.due_at:
                minded.due_at = None
                minded.child.start()
        collect_orphans(self._spared())
        return True

    def _plan_restart(self, minded: _Minded) -> None:
        child = minded.child
        by_itself = child.exit_code < 128
        never_started = by_itself and not minded.ever_steady and minded.restarts == 0
        minded.short_runs += by_itself
        minded.restarts += 1
        how = child.how_it_ended()
        child.kill()  # what is left of its group
        if never_started or minded.short_runs >= SHORT_RUNS:
            raise child.failure(how)
        self.notice(f"{child.program.name} {how}; starting it again in {minded.delay:g} s")
        minded.due_at = time.monotonic() + minded.delay
        minded.delay = min(minded.delay * 2, LONGEST_DELAY_SECONDS)

    def run(self) -> int:
        """Minds the children until a signal (or a meant end of a child) says that it is over; the exit code to use."""
        self.signals.defer()
        while not self.signals.received:
            if not self.check():
                return 0
            self.signals.wait(1.0)
        return 0

    def run_command(self, program: Program) -> int:
        """Minds the children while ``program`` runs; its exit code.

        A signal to us goes on to it, and it has the grace time to end.
        """
        self.signals.defer()
        command = Child(program)
        self._own.append(command)
        if not self.signals.received:
            command.start()
        passed_on, deadline = 0, float("inf")
        while command.running:
            for signum in self.signals.received[passed_on:]:
                passed_on += 1
                if signum == signal.SIGINT and _terminal_told_the_group():
                    continue
                command.send(signum)
                deadline = min(deadline, time.monotonic() + self.grace_seconds)
            if time.monotonic() > deadline:
                command.kill()
            if not self.signals.received:
                self.check()
            self.signals.wait(0.5)
        return command.exit_code if command.process else 128 + self.signals.received[0]


def _terminal_told_the_group() -> bool:
    """Ctrl-C reaches every process of the foreground group: passing it on would deliver it twice."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
