"""Memory does not grow with the number of rows."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest
from nodes import Cluster, cluster

pytestmark = pytest.mark.chaos

ROWS = int(os.environ.get("NOETL_TEST_ROWS", "100000"))
FIRST = ROWS // 10
MOST_GROWTH = 50 * 2**20
SECONDS = 900


def resident(system: Cluster) -> dict[str, int]:
    """RSS of each process of the nodes, in bytes."""
    found = {}
    for node in system.nodes:
        for process in (psutil.Process(node.process.pid), *node.children()):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[f"{node.name} {process.pid}"] = process.memory_info().rss
    return found


@pytest.mark.timeout(SECONDS + 120)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defaults = {
        f"NOETL_{name}_SECONDS": value
        for name, value in {
            "HEARTBEAT": "5",
            "DEAD_AFTER": "10",
            "LEASE": "120",
            "REPUBLISH": "10",
            "SWEEP": "1",
        }.items()
    }
    with cluster(tmp_path, **defaults) as system:
        system.client.register(Path(__file__).parent / "memory.yaml")
        system.fill("memory", ROWS)
        system.q("VACUUM ANALYZE public.work")
        system.start("control", "-P", "threads", "-c", "8", queues="noetl.control")
        system.start("bodies", "-P", "prefork", "-c", "2", queues="noetl.body")
        begun = time.monotonic()
        execution = system.client.submit("test/memory")
        early: dict[str, int] = {}
        while execution.status() == "RUNNING" or not early:
            done = sum(step.done for step in execution.progress())
            if not early and done >= FIRST:
                early, early_at = resident(system), time.monotonic()
            assert time.monotonic() - begun < SECONDS, f"only {done} rows"
            time.sleep(0.5)
        late, seconds = resident(system), time.monotonic() - begun
        assert execution.report()["status"] == "COMPLETED", execution.report()
        output = execution.report()["steps"]["start"]["output"]
        assert (output["ok"], output["failed"]) == (ROWS, 0)
        with capsys.disabled():
            print(
                f"\n{ROWS} rows in {seconds:.1f} s: {ROWS / seconds:.0f} rows/s; the first {FIRST} took "
                f"{early_at - begun:.1f} s; {system.value('SELECT count(*) FROM noetl.event')} events"
            )
            for name, size in late.items():
                print(f"  {name}: {early.get(name, 0) / 2**20:.1f} MB, then {size / 2**20:.1f} MB")
        assert early.keys() == late.keys(), "no process was replaced"
        grown = {name: size - early[name] for name, size in late.items()}
        assert max(grown.values()) < MOST_GROWTH, grown
