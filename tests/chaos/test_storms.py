"""Much at once: executions, frames and signals that get in each other's way."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import Trial
from nodes import Cluster, Worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

EXECUTIONS = 200
SIGNALS = 10_000


@pytest.fixture(scope="module")
def workers(system: Cluster) -> list[Worker]:
    return [system.worker("a"), system.worker("b")]


def complaints(workers: list[Worker]) -> list[str]:
    """What any process has logged as an error, or gave up waiting for."""
    lines = [line for worker in workers for line in worker.text.splitlines()]
    return [line for line in lines if re.search(r" (ERROR|CRITICAL) |deadlock|could not serialize|are in use", line)]


def test_many_executions_at_once(system: Cluster, workers: list[Worker]) -> None:
    trial = Trial(system, f"{EXECUTIONS} executions submitted at once")
    with ThreadPoolExecutor(20) as threads:
        for submitted in [threads.submit(trial.submit, 3, pause=0) for _ in range(EXECUTIONS)]:
            submitted.result()
    verdict = trial.check(within=600)
    assert verdict.rerun == 0
    assert complaints(workers) == []


def test_many_frames_in_flight(system: Cluster, workers: list[Worker]) -> None:
    trial = Trial(system, "64 frames in flight")
    trial.submit(2000, frames=64, max_rows=5, concurrency=2, pause=0.2)
    verdict = trial.check(within=600)
    assert verdict.rerun == 0
    assert complaints(workers) == []


def test_many_signals_to_one_execution(system: Cluster, workers: list[Worker]) -> None:
    """It is paused and resumed more often than anybody can read one by one, while it works."""
    trial = Trial(system, f"{SIGNALS:,} signals to one execution")
    work = trial.submit(300)
    trial.under_way()
    system.q(
        "INSERT INTO noetl.signal (execution_id, type, data, due_at, publish_at) "
        "SELECT %s, CASE n %% 2 WHEN 1 THEN 'pause' ELSE 'resume' END, '{}', clock_timestamp(), clock_timestamp() "
        "FROM generate_series(1, %s) AS n ORDER BY n",
        work.execution.id,
        SIGNALS,
    )
    verdict = trial.check(within=600)
    assert verdict.rerun == 0
    assert complaints(workers) == []
