"""Mixed load with faults of all kinds for many minutes (``make soak``): nothing is lost, and nothing grows."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
import pytest
import redis
from harness import INNOCENT, NODE_KILLED, Trial, arena
from nodes import Worker

pytestmark = [pytest.mark.chaos, pytest.mark.soak]

MINUTES = float(os.environ.get("NOETL_SOAK_MINUTES", "20"))
SAMPLE_SECONDS = 2.0
FAULT_SECONDS = 8.0
#: executions at work at once
LOADS: list[tuple[int, dict[str, object]]] = [
    (400, {"path": "chaos/queue"}),
    (400, {"path": "chaos/queue", "source": "elsewhere", "frames": 2, "max_rows": 40}),
    (60, {"path": "chaos/mixed"}),
]
#: tables whose rows come and go: they keep their size
HOT = ("run", "outbox", "signal", "wakeup", "worker", "sweep")
#: what a half may have more than the one before: relative, and in absolute terms (little is noise)
MOST_GROWTH = 1.25
NOISE = {"memory, MB": 40, "connections": 5, "hot tables, MB": 2, "dead rows": 2000, "lag, s": 5}
#: errors that connections cut by us explain
CUT = (
    *NODE_KILLED,
    r"(?i)terminating connection|connection .*(lost|closed|reset)|AdminShutdown|OperationalError|ServiceError",
    r"redis\.exceptions|kombu\.exceptions|NOSCRIPT|ChordError|was ended by|ended with exit code (1|75);",
)


class Soak:
    """The workers, what is done to them, and what is measured meanwhile."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.system = trial, trial.system
        self.workers = [self.system.worker(name) for name in ("a", "b")]
        self.samples: list[dict[str, float]] = []
        self.faults: dict[str, int] = {}

    # -- faults --------------------------------------------------------------------------------------------------

    def do_harm(self) -> None:
        kinds: list[Callable[[], object]] = [
            *[self.kill_a_pool_process] * 3,
            *[self.freeze_a_pool_process] * 2,
            *[self.cut_connections] * 2,
            self.kill_a_node,
            self.empty_redis,
            self.restart_a_worker,
            self.lose_a_machine,
        ]
        harm = self.trial.random.choice(kinds)
        self.faults[harm.__name__] = self.faults.get(harm.__name__, 0) + 1
        harm()

    def pool(self) -> list[psutil.Process]:
        return [process for worker in self.workers for process in worker.pool()]

    def kill_a_pool_process(self) -> None:
        if pool := self.pool():
            self.system.kill(self.trial.random.choice(pool))

    def kill_a_node(self) -> None:
        if nodes := [node for worker in self.workers for node in worker.nodes().values()]:
            self.system.kill(self.trial.random.choice(nodes))

    def freeze_a_pool_process(self) -> None:
        """For longer than the leases of these tests, now and then."""
        if not (pool := self.pool()):
            return
        victim = self.trial.random.choice(pool)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGSTOP)
            time.sleep(self.trial.random.uniform(1, 8))
            victim.send_signal(signal.SIGCONT)

    def cut_connections(self) -> None:
        self.system.q(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.3"
        )

    def empty_redis(self) -> None:
        with redis.Redis.from_url(self.system.env["NOETL_BROKER_URL"]) as broker:
            broker.flushall()

    def restart_a_worker(self) -> None:
        worker = self.trial.random.choice(self.workers)
        worker.ended = True
        worker.process.send_signal(signal.SIGTERM)
        worker.process.wait(60)
        self.start_again(worker)

    def lose_a_machine(self) -> None:
        worker = self.trial.random.choice(self.workers)
        worker.kill()
        self.start_again(worker)

    def start_again(self, worker: Worker) -> None:
        self.workers[self.workers.index(worker)] = self.system.worker(worker.name, wait=False)

    # -- measures ------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        self.samples.append(
            {
                "memory, MB": self.memory() / 2**20,
                "connections": self.number(
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                ),
                "hot tables, MB": self.number(
                    "SELECT sum(pg_total_relation_size(('noetl.' || name)::regclass)) FROM unnest(%s::text[]) name",
                    list(HOT),
                )
                / 2**20,
                "dead rows": self.number(
                    "SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'noetl' AND relname = ANY(%s)",
                    list(HOT),
                ),
                "lag, s": self.number(
                    "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0) FROM ("
                    "SELECT publish_at AS at FROM noetl.outbox WHERE publish_at < clock_timestamp() "
                    "UNION ALL SELECT due_at FROM noetl.signal WHERE due_at < clock_timestamp()) AS late"
                ),
            }
        )

    def number(self, statement: str, *values: object) -> float:
        return float(self.system.value(statement, *values))

    def memory(self) -> float:
        """Of a process, on average: how many there are depends on who was killed last."""
        sizes = []
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(worker.process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        sizes.append(process.memory_info().rss)
        return sum(sizes) / len(sizes) if sizes else 0.0

    def halves(self) -> dict[str, tuple[float, float]]:
        """The medians of the first and of the second half, without the start."""
        steady = self.samples[len(self.samples) // 10 :]
        middle = len(steady) // 2
        return {
            name: (median(one[name] for one in steady[:middle]), median(one[name] for one in steady[middle:]))
            for name in NOISE
        }


def keep_loaded(trial: Trial, running: dict[int, int]) -> None:
    """Another execution for each load whose last one has ended; ``running``: the work of each load."""
    for number, (rows, load) in enumerate(LOADS):
        if number not in running or trial.works[running[number]].execution.status() == "COMPLETED":
            running[number] = len(trial.works)
            trial.submit(rows, **load)  # type: ignore[arg-type]


def look_after(soak: Soak, seconds: float) -> None:
    trial, running = soak.trial, dict[int, int]()
    until = time.monotonic() + seconds
    harm_at = time.monotonic() + FAULT_SECONDS
    while time.monotonic() < until:
        keep_loaded(trial, running)
        soak.sample()
        if time.monotonic() >= harm_at:
            soak.do_harm()
            harm_at = time.monotonic() + FAULT_SECONDS * trial.random.uniform(0.5, 1.5)
        time.sleep(SAMPLE_SECONDS)


@pytest.mark.timeout(int(MINUTES * 60) + 900)
def test_nothing_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with arena(tmp_path, **INNOCENT) as system:
        soak = Soak(Trial(system, f"mixed load with faults of all kinds, {MINUTES:g} minutes"))
        look_after(soak, MINUTES * 60)
        # A cut connection may take the reply to a COMMIT with it: a task of the playbook is run again then.
        verdict = soak.trial.check(within=300, again=soak.faults.get("cut_connections", 0) * 16, allowed=CUT)
        halves = soak.halves()
        with capsys.disabled():
            report(soak, halves)
            print(f"{verdict.rows} rows, {verdict.lost} lost, {verdict.rerun} re-run, stall {verdict.stall:.1f} s")
        grown = [
            name
            for name, (first, second) in halves.items()
            if second > MOST_GROWTH * first and second - first > NOISE[name]
        ]
        assert not grown, {name: halves[name] for name in grown}


def report(soak: Soak, halves: dict[str, tuple[float, float]]) -> None:
    print(f"\n{len(soak.trial.works)} executions, {len(soak.samples)} samples; faults: {soak.faults}")
    for name, (first, second) in halves.items():
        worst = max(sample[name] for sample in soak.samples)
        print(f"| {name} | {first:.1f} | {second:.1f} | {worst:.1f} |")
