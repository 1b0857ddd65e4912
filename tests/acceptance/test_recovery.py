"""Workers die, freeze and lose their broker at every bad moment; executions complete, and nothing counts twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
import redis
from nodes import Cluster, Node, cluster, wait_for

from noetl_celery.faults import POINTS
from noetl_celery.settings import BODY_QUEUE

pytestmark = pytest.mark.acceptance

ROWS = 12
#: what only a source in another database reaches
ELSEWHERE = {"claim.taken", "claim.recorded", "claim.source_committed"}
#: what only a row with a child reaches
CALLING = {"lane.child_started"}
#: rows that may have run when their worker died: those at work at once, and those whose outcomes are still collected
IN_THE_AIR = 3 + 20


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("recovery")) as made:
        yield made


@pytest.fixture(scope="module")
def healthy(system: Cluster) -> Node:
    """A worker that lives through all tests but the last ones; a test may tell it to take no messages for a while."""
    return system.start("healthy", "-P", "prefork", "-c", "2")


def dies(node: Node) -> None:
    wait_for(lambda: node.process.poll() is not None, f"{node.name} dies")
    assert node.process.returncode == -signal.SIGKILL, node.text


@pytest.mark.parametrize("point", sorted(set(POINTS) - {"submit.committed"}))
def test_a_worker_that_dies_at_a_fault_point(point: str, system: Cluster, healthy: Node) -> None:
    source = "elsewhere" if point in ELSEWHERE else "here"
    system.fill(point, ROWS, source)
    system.consume(healthy, False)
    try:
        doomed = system.start(f"doomed-{point}", "-P", "threads", "-c", "4", NOETL_FAULT=f"{point}:kill")
        path = "test/recovery_child" if point in CALLING else "test/recovery"
        execution = system.submit(point, path=path, source=source)
        dies(doomed)
    finally:
        system.consume(healthy, True)
    assert execution.wait(timeout=30) == "COMPLETED"
    system.assert_whole(execution, point, ROWS, again=IN_THE_AIR if point.startswith("lane.") else 0)


def test_a_client_that_dies_after_it_submitted(system: Cluster, healthy: Node) -> None:
    system.fill("submit", ROWS)
    script = "from noetl_celery import Noetl; Noetl().submit('test/recovery', {'batch': 'submit'})"
    done = subprocess.run(
        [sys.executable, "-c", script], env=system.env | {"NOETL_FAULT": "submit.committed:kill"}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    execution = system.client.execution(system.value("SELECT max(execution_id) FROM noetl.execution"))
    assert execution.wait(timeout=30) == "COMPLETED"
    system.assert_whole(execution, "submit", ROWS, again=0)


def test_a_pool_process_killed_at_work(system: Cluster, healthy: Node) -> None:
    """The node goes on with a new process; its rows are taken up by whoever is there."""
    system.fill("pool", 60)
    execution = system.submit("pool", pause=0.02, max_rows=20)
    wait_for(lambda: system.done("pool") > 10, "rows are at work")
    (busy, *_) = system.q("SELECT w.pid FROM noetl.run r JOIN noetl.worker w USING (worker_id)")
    os.kill(busy["pid"], signal.SIGKILL)
    assert execution.wait(timeout=40) == "COMPLETED"
    system.assert_whole(execution, "pool", 60, again=IN_THE_AIR)


def test_a_broker_emptied_in_the_middle(system: Cluster, healthy: Node) -> None:
    """Every message, chord counter and binding is gone."""
    system.fill("flush", 100)
    execution = system.submit("flush", pause=0.02, max_rows=10)
    wait_for(lambda: system.done("flush") > 20, "rows are at work")
    with redis.Redis.from_url(system.env["NOETL_BROKER_URL"]) as broker:
        broker.flushall()
    assert execution.wait(timeout=40) == "COMPLETED"
    system.assert_whole(execution, "flush", 100, again=0)


def test_events_do_not_grow_with_the_rows(system: Cluster, healthy: Node) -> None:
    system.fill("events", 1000)
    execution = system.submit("events", max_rows=50, concurrency=8)
    assert execution.wait(timeout=60) == "COMPLETED"
    system.assert_whole(execution, "events", 1000, again=0)
    assert system.value("SELECT count(*) FROM noetl.event WHERE execution_id = %s", execution.id) <= 150


def test_a_frozen_worker_that_wakes_after_its_lease_changes_nothing(system: Cluster, healthy: Node) -> None:
    system.fill("frozen", ROWS)
    system.consume(healthy, False, queues=BODY_QUEUE)
    try:
        # One lane and no sweep: frozen inside a transaction it would keep its locks until PostgreSQL ends the session.
        quiet = {"NOETL_SWEEP_SECONDS": "3600", "NOETL_FAULT": "lane.row_done:stop:2"}
        frozen = system.start("frozen", "-P", "threads", "-c", "1", queues=BODY_QUEUE, **quiet)
        execution = system.submit("frozen", lease=2)
        wait_for(lambda: psutil.Process(frozen.process.pid).status() == psutil.STATUS_STOPPED, "it freezes")
    finally:
        system.consume(healthy, True, queues=BODY_QUEUE)
    assert execution.wait(timeout=30) == "COMPLETED"
    wait_for(lambda: not system.q("SELECT FROM noetl.signal WHERE execution_id = %s", execution.id), "all is decided")
    before = system.snapshot(execution.id)
    frozen.process.send_signal(signal.SIGCONT)
    # Its pulse or a write that matches nothing tells it first; the lane stops either way.
    wait_for(lambda: " stops: " in frozen.text and " succeeded" in frozen.text, "its lane notices, and ends")
    assert system.snapshot(execution.id) == before
    system.assert_whole(execution, "frozen", ROWS, again=2 * IN_THE_AIR)
    frozen.kill()


def test_the_only_worker_killed_and_started_again(system: Cluster, healthy: Node) -> None:
    """The last one: it ends the healthy worker."""
    system.fill("only", 100)
    execution = system.submit("only", pause=0.02, max_rows=10)
    wait_for(lambda: system.done("only") > 20, "rows are at work")
    healthy.kill()
    assert execution.status() == "RUNNING"
    system.start("again", "-P", "prefork", "-c", "2", wait=False)
    assert execution.wait(timeout=60) == "COMPLETED"
    system.assert_whole(execution, "only", 100, again=2 * IN_THE_AIR)
