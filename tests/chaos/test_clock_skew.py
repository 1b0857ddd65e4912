"""Workers whose clocks are two hours apart: leases, pauses and the order of things are the database's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from harness import INNOCENT, LENGTHS, Trial
from nodes import Cluster, Node, wait_for

pytestmark = pytest.mark.chaos

SETTINGS = INNOCENT

#: where nodes find the module of their app
PATH = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

HOUR = 3600
#: kombu looks for messages that were held for too long this often, in seconds
RESTORE_SECONDS = 10


def start(system: Cluster, name: str, skew: int, pool: str, queue: str) -> Node:
    env = {"NOETL_TEST_SKEW": str(skew), "PYTHONPATH": PATH}
    return system.start(
        f"{queue}-{name}", "-P", pool, "-c", "2", queues=f"noetl.{queue}", wait=False, app="skewed_app", **env
    )


def of_a_worker(system: Cluster, name: str, skew: int) -> list[Node]:
    return [start(system, name, skew, "threads", "control"), start(system, name, skew, "prefork", "body")]


@pytest.fixture
def workers(system: Cluster) -> Iterator[dict[int, list[Node]]]:
    """By what their clocks are wrong."""
    begun = len(system.nodes)
    made = {skew: of_a_worker(system, name, skew) for name, skew in (("ahead", HOUR), ("behind", -HOUR))}
    for node in system.nodes[begun:]:
        system.ready(node)
    yield made
    for node in system.nodes[begun:]:
        node.kill()


def clock(node: Node) -> timedelta:
    """How wrong the times in a node's log are."""
    stamps = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} INFO .* ready\.$", node.text, re.MULTILINE)
    return datetime.fromisoformat(stamps[0]).replace(tzinfo=UTC) - datetime.now(UTC)


def received(nodes: list[Node]) -> list[str]:
    """The ids of all messages that nodes were handed."""
    return [task for node in nodes for task in re.findall(r"Task noetl\.\w+\[([0-9a-f-]+)\] received", node.text)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [12.0, pytest.param(LENGTHS[-1].values[0], id="long")])
def test_processes_are_killed_while_clocks_are_apart(
    seconds: float, system: Cluster, workers: dict[int, list[Node]]
) -> None:
    for skew, nodes in workers.items():
        for node in nodes:
            assert abs(clock(node) - timedelta(seconds=skew)) < timedelta(minutes=10)
    trial = Trial(system, "clocks an hour ahead and an hour behind, SIGKILL of pool processes")
    trial.submit(rows=400, pause=0.1)
    trial.under_way()
    for _ in trial.harm(seconds, every=3, pause=0.1):
        lanes = "SELECT pid FROM noetl.worker JOIN noetl.run USING (worker_id) WHERE frame_id IS NOT NULL"
        busy = {row["pid"] for row in system.q(lanes)}
        victims = [child for _, bodies in workers.values() for child in bodies.children() if child.pid in busy]
        if victims:
            system.kill(trial.random.choice(victims))
    verdict = trial.check()
    assert verdict.rerun > 0, "somebody was at work when he was killed"


@pytest.mark.timeout(300)
def test_nobody_but_its_worker_gives_a_message_back(system: Cluster) -> None:
    """Redis' messages in hand carry the time of the worker that holds them, and others look for old ones."""
    behind = of_a_worker(system, "slow", -HOUR)
    for node in behind:
        system.ready(node)
    trial = Trial(system, "clocks an hour ahead and an hour behind")
    try:
        work = trial.submit(rows=60, max_rows=60, concurrency=2, pause=1)
        trial.under_way(1)
        ahead = [start(system, "late", HOUR, "threads", "control")]
        system.ready(ahead[0])
        wait_for(lambda: trial.done(work) == 60, "longer than the looks for old messages", 4 * RESTORE_SECONDS + 60)
        assert trial.check().rerun == 0
        tasks = received([*behind, *ahead])
        assert sorted(tasks) == sorted(set(tasks)), "each message was handed out once"
    finally:
        for node in system.nodes[-3:]:
            node.kill()
