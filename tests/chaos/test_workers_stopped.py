"""Workers are told to stop while rows are at work: nobody waits for a lease, and nothing runs twice without need.

Leases are minutes here, and a process counts as dead after a minute: whatever goes on sooner was handed over.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import psutil
import psycopg
import pytest
from harness import LENGTHS, Trial
from nodes import Cluster, Node, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SETTINGS = {"NOETL_LEASE_SECONDS": "300", "NOETL_DEAD_AFTER_SECONDS": "60"}
#: much sooner than anything is found dead
SOON = 30
GATE = 4711


def two_of(system: Cluster, kind: str, grace: float) -> list[Node]:
    nodes: list[Node] = []
    for name in ("a", "b"):
        if kind == "worker":
            nodes.append(system.worker(name, "-c", "1", "--grace", str(grace), wait=False))
        else:
            pool = ["-P", kind, "-c", "1" if kind == "prefork" else "2"]
            nodes.append(system.start(name, *pool, wait=False, NOETL_GRACE_SECONDS=str(grace)))
    for node in nodes:
        system.ready(node)
    return nodes


def at_work(trial: Trial, nodes: list[Node]) -> Node:
    """The one that has the lane, once its long row has begun and it has got on with others."""
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
    wait_for(lambda: trial.system.q(waiting, GATE), "the long row has begun")
    trial.under_way(4)
    execution = trial.works[-1].execution.id
    statement = "SELECT pid FROM noetl.run JOIN noetl.worker USING (worker_id) WHERE execution_id = %s"
    pid = trial.system.value(statement, execution)
    return next(node for node in nodes if pid in processes_of(node))


def processes_of(node: Node) -> set[int]:
    main = psutil.Process(node.process.pid)
    return {process.pid for process in (main, *main.children(recursive=True))}


@pytest.fixture(autouse=True)
def nobody_left(system: Cluster) -> Iterator[None]:
    """Workers of a test do not work for the next one."""
    yield
    for node in system.nodes:
        node.kill()


@contextlib.contextmanager
def closed_gate(system: Cluster) -> Iterator[Callable[[], object]]:
    """The first row of a batch cannot end until this is called."""
    with psycopg.connect(system.env["NOETL_DATABASE_URL"], autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        yield lambda: connection.execute("SELECT pg_advisory_unlock(%s)", (GATE,))


def ends(node: Node) -> None:
    wait_for(lambda: node.process.poll() is not None, f"{node.name} ends", SOON)
    node.ended = True


@pytest.mark.parametrize("kind", [pytest.param("worker", marks=pytest.mark.short), "prefork", "threads"])
def test_rows_at_work_end_and_the_others_are_handed_over_at_once(kind: str, system: Cluster) -> None:
    trial = Trial(system, "SIGTERM, rows end in time")
    nodes = two_of(system, kind, grace=120)
    with closed_gate(system) as open_gate:
        work = trial.submit(100, path="chaos/uneven", gate=GATE, lease=300)
        first = at_work(trial, nodes)
        first.process.send_signal(signal.SIGTERM)
        wait_for(lambda: trial.done(work) == work.rows - 1, "the others go on elsewhere, beside the one at work", SOON)
        assert first.process.poll() is None, "it is still at the long row"
        open_gate()
        ends(first)
    verdict = trial.check(within=SOON)
    assert (verdict.rerun, first.process.returncode) == (0, 0)


@pytest.mark.parametrize("kind", ["worker", "prefork", "threads"])
def test_rows_that_take_longer_are_handed_over_after_the_grace_time(kind: str, system: Cluster) -> None:
    trial = Trial(system, "SIGTERM, rows take longer than the grace time")
    nodes = two_of(system, kind, grace=2)
    with closed_gate(system):
        trial.submit(100, path="chaos/uneven", gate=GATE, lease=300)
        first = at_work(trial, nodes)
        first.process.send_signal(signal.SIGTERM)
        ends(first)
    verdict = trial.check(within=SOON)
    assert verdict.rerun == 1, "the long row"
    assert system.value("SELECT max(crashes) FROM noetl.row") == 0, "it is not the row's fault"


@pytest.mark.parametrize(
    ("kind", "signals"),
    [
        ("worker", ["SIGTERM", "SIGTERM"]),
        ("worker", ["SIGINT", "SIGINT"]),
        ("prefork", ["SIGQUIT"]),
        ("threads", ["SIGQUIT"]),
        ("prefork", ["SIGINT", "SIGINT"]),
        ("prefork", ["SIGTERM", "SIGQUIT"]),
    ],
)
def test_who_does_not_want_to_wait(kind: str, signals: list[str], system: Cluster) -> None:
    trial = Trial(system, "SIGQUIT, or a second SIGTERM or SIGINT")
    nodes = two_of(system, kind, grace=300)
    with closed_gate(system):
        trial.submit(100, path="chaos/uneven", gate=GATE, lease=300)
        first = at_work(trial, nodes)
        for name in signals:
            first.process.send_signal(signal.Signals[name])
            if name != signals[-1] or signals == [name, name]:
                wait_for(lambda: " shutdown" in first.text, "it was told")
        ends(first)
    assert 1 <= trial.check(within=SOON).rerun <= 2, "the long row, and perhaps the one beside it"


@pytest.mark.parametrize("seconds", LENGTHS[1:])
def test_rolling_restarts(seconds: float, system: Cluster) -> None:
    trial = Trial(system, "rolling restarts (SIGTERM, one worker after the other)")
    workers = [system.worker("r0", "-c", "1"), system.worker("r1", "-c", "1")]
    for number in trial.harm(seconds, every=4, pause=0.2, lease=300):
        old = workers[number % 2]
        old.process.send_signal(signal.SIGTERM)
        ends(old)
        workers[number % 2] = system.worker(old.name, "-c", "1")
    verdict = trial.check()
    assert verdict.rerun == 0, "every row had the time to end"
    assert verdict.stall < SOON
