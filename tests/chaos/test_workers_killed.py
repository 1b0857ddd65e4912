"""Worker processes are killed at random moments; whoever is there goes on with their rows."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
from harness import INNOCENT, NODE_KILLED, SECONDS, Trial
from nodes import Cluster, Worker, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SETTINGS = INNOCENT

Harm = Callable[[Trial, list[Worker]], None]


@pytest.fixture(scope="module")
def workers(system: Cluster) -> list[Worker]:
    """Two workers; what of them is killed is started again: nodes by their worker, a worker by the test."""
    return [system.worker("a"), system.worker("b")]


def one_of(trial: Trial, processes: list[psutil.Process]) -> None:
    if processes:  # they may all be about to start
        trial.system.kill(trial.random.choice(processes))


def pool_process(trial: Trial, workers: list[Worker]) -> None:
    """One that is at work, if there is any."""
    busy = {row["pid"] for row in trial.system.q("SELECT pid FROM noetl.run JOIN noetl.worker USING (worker_id)")}
    pool = [process for worker in workers for process in worker.pool()]
    one_of(trial, [process for process in pool if process.pid in busy] or pool)


def node(trial: Trial, workers: list[Worker]) -> None:
    one_of(trial, [node for worker in workers for node in worker.nodes().values()])


def machine(trial: Trial, workers: list[Worker]) -> None:
    index = trial.random.randrange(len(workers))
    workers[index].kill()
    workers[index] = trial.system.worker(workers[index].name, wait=False)


def anything(trial: Trial, workers: list[Worker]) -> None:
    trial.random.choices([pool_process, node, machine], [6, 2, 1])[0](trial, workers)


@pytest.mark.short
def test_anything_is_killed(system: Cluster, workers: list[Worker]) -> None:
    trial = Trial(system, "SIGKILL of pool processes, nodes and workers, a few seconds")
    trial.submit(150, source="elsewhere", pause=0.1)
    for _ in trial.harm(8, every=1.5):
        anything(trial, workers)
    trial.check(allowed=NODE_KILLED)


@pytest.mark.parametrize(
    ("harm", "every", "fault"),
    [
        (pool_process, 2, "SIGKILL of pool processes"),
        (node, 5, "SIGKILL of whole nodes"),
        (machine, 12, "SIGKILL of whole workers"),
    ],
    ids=["pool", "node", "machine"],
)
def test_some_are_killed_again_and_again(
    harm: Harm, every: float, fault: str, system: Cluster, workers: list[Worker]
) -> None:
    trial = Trial(system, fault)
    trial.submit(1000, source="elsewhere")
    for _ in trial.harm(SECONDS, every=every):
        harm(trial, workers)
    trial.check(allowed=NODE_KILLED)
    abandoned = trial.system.value("SELECT count(*) FROM noetl.event WHERE event_type = 'frame.abandoned'")
    assert abandoned > 0, "somebody was at work when he was killed"


def test_anything_is_killed_under_mixed_load(system: Cluster, workers: list[Worker]) -> None:
    """Retries that park, children, a collection."""
    trial = Trial(system, "SIGKILL of anything, under children, parked rows and collections")
    for _ in trial.harm(SECONDS, every=3, path="chaos/mixed", rows=150):
        anything(trial, workers)
    trial.check(allowed=NODE_KILLED)
    for work in trial.works:
        items = work.execution.report()["steps"]["items"]["output"]
        assert items["results"] == [2 * number for number in range(40)]


def test_the_only_worker_is_killed_and_started_again(system: Cluster, workers: list[Worker]) -> None:
    """The last test of this file: it ends the others."""
    trial = Trial(system, "SIGKILL of the only worker")
    for worker in workers:
        worker.kill()
    only = [system.worker("only")]
    for _ in range(3):
        work = trial.submit(300)
        wait_for(lambda work=work: trial.done(work) > 50, "rows are at work", 90)  # type: ignore[misc]
        machine(trial, only)
    trial.check(allowed=NODE_KILLED)
