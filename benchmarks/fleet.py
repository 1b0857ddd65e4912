"""Worker processes: started when a contestant needs them, one system at a time, so that nobody pays for another."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from benchmarks.model import Command, System
from noetl_celery.cli.supervisor import Child, Program, stop_all, wait_ready
from noetl_celery.errors import NoetlError

START_SECONDS = 120.0
STOP_SECONDS = 15.0
ROOT = Path(__file__).parent.parent


class Fleet:
    """The systems that are up. In a quick run they stay up, which saves their starts and costs a little accuracy."""

    def __init__(self, env: Mapping[str, str], logs: Path, *, exclusive: bool) -> None:
        self._env, self._logs, self._exclusive = dict(env), logs, exclusive
        self._up: dict[System, list[Child]] = {}
        #: who has had a run to warm up since its system was started
        self._warm: set[tuple[System | None, str]] = set()
        self._set_up: set[Callable[[], None]] = set()

    def need(self, system: System | None) -> None:
        """Makes sure that this system's processes are up and ready, and that no other's are in the way."""
        for other in list(self._up):
            if other != system and (self._exclusive or system is None or other.group == system.group):
                self.stop(other)
        if system is not None and system not in self._up:
            try:
                self._start(system)
            except NoetlError:
                self.stop(system)
                raise

    def first_time(self, system: System | None, key: str) -> bool:
        """Whether ``key`` was not asked for since the system was started."""
        fresh = (system, key) not in self._warm
        self._warm.add((system, key))
        return fresh

    def processes(self, system: System | None) -> list[psutil.Process]:
        """All processes of a system, pools and helpers included."""
        found: list[psutil.Process] = []
        for child in self._up.get(system, []) if system else []:
            assert child.process is not None
            try:
                process = psutil.Process(child.process.pid)
                found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess as error:
                raise child.failure(child.how_it_ended()) from error
        return found

    def check(self) -> None:
        """Raises ``ServiceError`` if a process has ended by itself."""
        for child in (child for children in self._up.values() for child in children):
            if not child.running:
                raise child.failure(child.how_it_ended())

    def stop(self, system: System) -> None:
        stop_all(self._up.pop(system), STOP_SECONDS)
        self._warm = {entry for entry in self._warm if entry[0] != system}

    def close(self) -> None:
        for system in list(self._up):
            self.stop(system)

    def _start(self, system: System) -> None:
        children = self._up[system] = []
        if system.setup is not None and system.setup not in self._set_up:
            self._set_up.add(system.setup)
            system.setup()
        waiting: list[tuple[Child, Command]] = []
        for number, command in enumerate(system.commands, 1):
            child = started(f"{system.name} {number}", command, self._logs, {**self._env, **dict(system.env)})
            children.append(child)
            waiting.append((child, command))
        for child, command in waiting:
            wait_said(child, command)


def started(name: str, command: Command, logs: Path, env: Mapping[str, str]) -> Child:
    """A process, started; its log is named after it and the time."""
    log = logs / f"{re.sub(r'[^a-z0-9]+', '-', name)}-{time.strftime('%H%M%S')}.log"
    child = Child(Program(name, [sys.executable, "-m", *command.arguments], log=log, env=env))
    child.start()
    return child


def wait_said(child: Child, command: Command) -> None:
    """Waits until it has said that it is ready; ``ServiceError`` if it ends or takes too long."""
    log = child.program.log
    assert log is not None
    wait_ready(child, lambda: log.read_text(errors="replace").count(command.ready) >= command.times, START_SECONDS)


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """What is added to the environment of all processes; variables of NoETL-Celery that are set are not for us."""
    for name in [name for name in os.environ if name.startswith("NOETL_")]:
        del os.environ[name]
    os.environ.update({name: value for name, value in own.items() if name.startswith("BENCH_")})  # baselines read it
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**own, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
