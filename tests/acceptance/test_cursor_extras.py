"""Re-claims, dead letters and aggregates on real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from nodes import PLAYBOOKS, Cluster, Node, cluster, wait_for

from noetl_celery.execution import Execution

pytestmark = pytest.mark.acceptance

ROWS = 20


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("extras"), NOETL_MAX_CRASHES="2") as made:
        made.q("CREATE TABLE public.reclaims (batch text)")
        made.q("CREATE TABLE public.dead (batch text, id int, kind text)")
        made.client.register(PLAYBOOKS / "extras.yaml")
        yield made


@pytest.fixture(scope="module")
def worker(system: Cluster) -> Node:
    return system.start("worker", "-P", "prefork", "-c", "2")


def submit(system: Cluster, batch: str, **workload: object) -> Execution:
    system.fill(batch, ROWS)
    return system.submit(batch, path="test/extras", **workload)


def output(execution: Execution) -> dict[str, object]:
    found: dict[str, object] = execution.report()["steps"]["start"]["output"]
    return found


def test_what_others_have_left_comes_free_while_a_long_row_is_at_work(system: Cluster, worker: Node) -> None:
    """The source is dry, and one row goes on: the re-claim brings the rows of a worker of another execution."""
    execution = submit(system, "reclaimed", pause=8)
    wait_for(lambda: system.done("reclaimed") == ROWS - 1, "the source is dry")
    system.q(
        "INSERT INTO public.work (batch, id, state) SELECT 'reclaimed', n, 'stale' FROM generate_series(101, 105) n"
    )
    wait_for(lambda: system.done("reclaimed") == ROWS + 4, "the stale rows are worked on")
    assert execution.status() == "RUNNING"
    at_work = system.q("SELECT status, error FROM noetl.row WHERE payload ->> 'id' = '1'")
    assert [row["status"] for row in at_work] == ["TAKEN"], at_work
    assert execution.wait(timeout=60) == "COMPLETED"
    found = output(execution)
    assert (found["processed"], found["ok"]) == (ROWS + 5, ROWS + 5)
    assert found["aggregate"] == {"total": sum(range(1, ROWS + 1)) + sum(range(101, 106))}
    assert system.done("reclaimed") == ROWS + 5, "each once"
    assert system.value("SELECT count(*) FROM public.reclaims WHERE batch = 'reclaimed'") >= 2


def test_a_row_that_failed_has_one_dead_letter(system: Cluster, worker: Node) -> None:
    execution = submit(system, "failing", bad=7)
    assert execution.wait(timeout=60) == "COMPLETED"
    found = output(execution)
    assert (found["ok"], found["failed"]) == (ROWS - 1, 1)
    assert found["aggregate"] == {"total": sum(range(1, ROWS + 1)) - 7}
    assert [row["id"] for row in system.q("SELECT id FROM public.dead WHERE batch = 'failing'")] == [7]


SLEEPING = "FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)%' AND pid <> pg_backend_pid()"
HOLDER = """
    SELECT w.pid FROM noetl.row r JOIN noetl.run u ON u.run_id = r.taken_by JOIN noetl.worker w USING (worker_id)
    JOIN noetl.frame f ON f.frame_id = r.frame_id
    WHERE r.status = 'TAKEN' AND r.payload ->> 'id' = '1' AND f.execution_id = %s
"""


def test_a_row_that_kills_its_workers_has_a_dead_letter_and_the_others_go_on(system: Cluster, worker: Node) -> None:
    """Row 1 is at work for long; whoever runs it is killed, twice."""
    execution = submit(system, "killing", pause=30)
    killed: list[int] = []
    orphans: set[int] = set()

    def sleeping() -> set[int]:
        return {row["pid"] for row in system.q(f"SELECT pid {SLEEPING}")} - orphans

    def holder() -> int | None:
        return next((row["pid"] for row in system.q(HOLDER, execution.id) if row["pid"] not in killed), None)

    while len(killed) < 2:
        wait_for(lambda: sleeping() and holder(), "row 1 is at work, for somebody who lives", 60)
        busy, session = holder(), sleeping()
        assert busy is not None
        os.kill(busy, signal.SIGKILL)
        killed.append(busy)
        # Its session sleeps on without it; the next one to take the row may be there at once.
        orphans |= session
        for pid in session:
            system.q("SELECT pg_terminate_backend(%s)", pid)
    assert execution.wait(timeout=60) == "COMPLETED"
    found = output(execution)
    assert (found["processed"], found["failed"]) == (ROWS, 1)
    assert system.q("SELECT id, kind FROM public.dead WHERE batch = 'killing'") == [{"id": 1, "kind": "worker_lost"}]
    assert len(killed) == 2
