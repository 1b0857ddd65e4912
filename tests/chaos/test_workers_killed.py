"""Worker processes are killed at random moments; whoever is there goes on with their rows."""

from __future__ import annotations

import psutil
import pytest
from harness import LENGTHS, Trial
from nodes import Cluster, Worker

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def workers(system: Cluster) -> list[Worker]:
    """Two workers; what of them is killed is started again: nodes by their worker, a worker by the test."""
    return [system.worker("a"), system.worker("b")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", LENGTHS)
def test_processes_of_the_pools_are_killed(seconds: float, system: Cluster, workers: list[Worker]) -> None:
    trial = Trial(system, "SIGKILL of pool processes")
    for _ in trial.harm(seconds, every=2):
        victims: list[psutil.Process] = [process for worker in workers for process in worker.pool()]
        if victims:
            system.kill(trial.random.choice(victims))
    verdict = trial.check()
    assert verdict.rerun > 0, "somebody was at work when he was killed"
