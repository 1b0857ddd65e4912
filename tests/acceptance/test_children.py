"""Children on real workers: each is started once, whatever dies; cancelled with their caller; no slot waits for one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Cluster, Node, cluster, wait_for

pytestmark = pytest.mark.acceptance

CHILDREN = 60
NESTED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: test/{name}}}
workload: {{batch: none}}
workflow:
  - step: call
    tool: {{kind: playbook, path: test/{callee}, input: {{batch: "{{{{ workload.batch }}}}"}}}}
    next: []
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("children")) as made:
        yield made


@pytest.fixture
def worker(system: Cluster) -> Iterator[Node]:
    node = system.start("worker", "-P", "prefork", "-c", "2")
    yield node
    node.kill()


def register(system: Cluster, name: str, text: str) -> None:
    file: Path = system.folder / f"{name}.yaml"
    file.write_text(text)
    system.client.register(file)


def assert_each_once(system: Cluster, batch: str, execution: int, children: int) -> None:
    """As many children as rows, all completed, each with one effect that counts; nothing left open anywhere."""
    statuses = "SELECT status, count(*)::int AS n FROM noetl.execution WHERE parent_execution_id = %s GROUP BY 1"
    assert system.q(statuses, execution) == [{"status": "COMPLETED", "n": children}]
    assert system.value("SELECT count(*) FROM public.once WHERE batch = %s", batch) == children
    assert system.value("SELECT count(DISTINCT id) FROM public.effects WHERE batch = %s", batch) == children
    wait_for(lambda: not system.q("SELECT FROM noetl.signal"), "all is decided")
    for table in ("run", "outbox", "wakeup"):
        assert system.q(f"SELECT * FROM noetl.{table}") == []


def most_at_once(system: Cluster, execution: int) -> int:
    """The largest number of children of an execution that were alive together."""
    return int(
        system.value(
            """
            SELECT max((SELECT count(*) FROM noetl.execution o WHERE o.parent_execution_id = %s
                        AND o.created_at <= c.created_at AND o.finished_at > c.created_at))
            FROM noetl.execution c WHERE c.parent_execution_id = %s
            """,
            execution,
            execution,
        )
    )


def test_a_loop_over_children(system: Cluster, worker: Node) -> None:
    execution = system.submit("many", path="test/family", children=CHILDREN)
    assert execution.wait(timeout=90) == "COMPLETED"
    assert_each_once(system, "many", execution.id, CHILDREN)
    assert system.done("many") == CHILDREN
    assert most_at_once(system, execution.id) <= 8


def test_a_worker_killed_in_mid_loop(system: Cluster, worker: Node) -> None:
    doomed = system.start("doomed", "-P", "prefork", "-c", "2")
    execution = system.submit("killed", path="test/family", children=CHILDREN, pause=0.05)
    wait_for(lambda: system.done("killed") > 15, "children are at work")
    doomed.kill()
    assert execution.wait(timeout=90) == "COMPLETED"
    assert_each_once(system, "killed", execution.id, CHILDREN)
    assert most_at_once(system, execution.id) <= 8


def test_the_only_worker_killed_and_started_again(system: Cluster) -> None:
    first = system.start("first", "-P", "prefork", "-c", "2")
    execution = system.submit("only", path="test/family", children=20, pause=0.05)
    wait_for(lambda: system.done("only") > 5, "children are at work")
    first.kill()
    second = system.start("second", "-P", "prefork", "-c", "2", wait=False)
    assert execution.wait(timeout=90) == "COMPLETED"
    assert_each_once(system, "only", execution.id, 20)
    second.kill()


def test_cancel_ends_the_children_first(system: Cluster, worker: Node) -> None:
    execution = system.submit("cancelled", path="test/family", children=CHILDREN, pause=0.5, in_flight=4)
    wait_for(lambda: system.done("cancelled") > 3, "children are at work")
    command = [sys.executable, "-m", "noetl_celery", "cancel", str(execution.id)]
    done = subprocess.run(command, env=system.env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert execution.wait(timeout=60) == "CANCELLED"
    children = "SELECT status, finished_at FROM noetl.execution WHERE parent_execution_id = %s"
    ended = system.q(children, execution.id)
    assert {row["status"] for row in ended} <= {"COMPLETED", "CANCELLED"}
    parent = system.value("SELECT finished_at FROM noetl.execution WHERE execution_id = %s", execution.id)
    assert max(row["finished_at"] for row in ended) <= parent
    assert len(ended) < CHILDREN
    assert system.done("cancelled") <= len(ended)


def test_one_slot_is_enough_for_a_family(system: Cluster) -> None:
    """A caller that waited in its slot would leave none for its child."""
    register(system, "grandparent", NESTED.format(name="grandparent", callee="parent"))
    register(system, "parent", NESTED.format(name="parent", callee="effect"))
    node = system.start("single", "-P", "prefork", "-c", "1")
    execution = system.client.submit("test/grandparent", {"batch": "nested"})
    assert execution.wait(timeout=60) == "COMPLETED"
    assert system.done("nested") == 1
    assert system.q("SELECT DISTINCT depth FROM noetl.execution ORDER BY 1 DESC LIMIT 1") == [{"depth": 2}]
    node.kill()
