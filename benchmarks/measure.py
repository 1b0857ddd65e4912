"""What a run costs: CPU seconds, memory, messages, transactions and WAL, as differences around it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psutil

from benchmarks.model import Values
from benchmarks.services import Services

SAMPLE_SECONDS = 0.5
MB = 1024 * 1024


@dataclass
class Snapshot:
    """Counters at one moment."""

    cpu_workers: float
    cpu_postgres: float
    cpu_redis: float
    cpu_client: float
    messages: int
    transactions: int
    wal_bytes: int

    def until(self, end: Snapshot) -> Values:
        return {name: float(getattr(end, name) - value) for name, value in vars(self).items()}


@dataclass
class Meter:
    """Measures what happens inside of its block; ``values`` holds it afterwards.

    Counters are exact and of the moment. Transactions are those that write: each takes one number of PostgreSQL's
    counter, which statistics views would only show seconds later. WAL is the distance that the log has moved. A message
    is one call of the Redis command that puts one on a queue.
    """

    services: Services
    workers: Sequence[psutil.Process]
    message_command: str
    values: Values = field(default_factory=dict)
    rss: list[float] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._postgres = psutil.Process(self.services.pid("PostgreSQL"))
        self._redis = psutil.Process(self.services.pid("Redis"))
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._start = self._look()
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._sampler.join()
        if kind is None:
            self.values = {**self._start.until(self._look()), **memory(self.rss)}
            self.values["pss_mb"] = sum(pss_bytes(process) for process in self.workers) / MB

    def _look(self) -> Snapshot:
        times = os.times()
        counted = self.services.q(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid, "
            "(pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS wal"
        )[0]
        return Snapshot(
            cpu_workers=sum(cpu_seconds(process) for process in self.workers),
            cpu_postgres=sum(cpu_seconds(process) for process in tree(self._postgres)),
            cpu_redis=cpu_seconds(self._redis),
            cpu_client=times.user + times.system,
            messages=self.services.redis_calls(self.message_command),
            transactions=counted["xid"],
            wal_bytes=counted["wal"],
        )

    def _sample(self) -> None:
        while True:
            self.rss.append(sum(rss_bytes(process) for process in self.workers) / MB)
            if self._stop.wait(SAMPLE_SECONDS):
                return


def tree(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def cpu_seconds(process: psutil.Process) -> float:
    """Of a process and of those children of it that have ended; 0.0 if it is gone itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def rss_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def pss_bytes(process: psutil.Process) -> int:
    """Its memory, with what it shares with others divided among them; where the system does not say, RSS."""
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            return int(process.memory_full_info().pss)
        except (psutil.AccessDenied, AttributeError):
            return rss_bytes(process)
    return 0


def memory(samples: Sequence[float]) -> Values:
    """The most at any time, and the last tenth of the run beside its second one (the first one warms up)."""
    if not samples:
        return {}
    found = {"rss_mb": max(samples)}
    tenth = len(samples) // 10
    if tenth:
        found["rss_growth"] = max(samples[-tenth:]) / max(samples[tenth : 2 * tenth])
    return found
