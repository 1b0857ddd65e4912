"""Old executions are removed, and weeks of events dropped, beside running work: it goes on as if nothing were."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from harness import SECONDS, Trial
from nodes import Cluster
from weeks import give_past, make_old, weeks

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

PAST = 100
TABLES = ("execution", "stage", "claim", "frame", "result", "signal", "outbox")


@pytest.fixture(scope="module", autouse=True)
def workers(system: Cluster) -> None:
    give_past(system.q, PAST)
    for name in ("a", "b"):
        system.worker(name)


def prune(system: Cluster, older_than: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "noetl_celery", "prune", "--older-than", older_than]
    return subprocess.Popen(
        command, env=system.env, cwd=system.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def past_family(system: Cluster, name: str, weeks_ago: int) -> list[int]:
    """An execution and its children, with everything that they leave behind, of some weeks ago."""
    system.fill(name, 5)
    execution = system.client.submit("chaos/mixed", {"batch": name, "items": 3})
    assert execution.wait(timeout=120) == "COMPLETED"
    found = system.q(
        "SELECT execution_id FROM noetl.execution WHERE %s IN (execution_id, parent_execution_id)", execution.id
    )
    members = [row["execution_id"] for row in found]
    assert len(members) == 6
    make_old(system.q, members, days=7 * weeks_ago)
    return members


@pytest.mark.parametrize("seconds", [pytest.param(5.0, id="short", marks=pytest.mark.short), SECONDS])
def test_prune_beside_running_work(seconds: float, system: Cluster) -> None:
    """Again and again an old family is there, and two weeks more may go; some prunes are killed on their way."""
    trial = Trial(system, "prune beside running work, some killed on their way")
    past = [week for week in weeks(system.q) if week < min(weeks(system.q)[-10:])]
    ago = len(past)
    for moment in trial.harm(seconds, every=2):
        ago = max(2, ago - 2)
        members = past_family(system, f"old-{seconds:g}-{moment}", ago)
        if trial.random.random() < 0.5:
            killed = prune(system, f"{ago - 1}w")
            time.sleep(trial.random.uniform(0.5, 1.5))
            killed.kill()
            killed.communicate()
        process = prune(system, f"{ago - 1}w")
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        left = {
            table: system.value(f"SELECT count(*) FROM noetl.{table} WHERE execution_id = ANY(%s)", members)
            for table in TABLES
        }
        assert left == dict.fromkeys(TABLES, 0)
    there = weeks(system.q)
    gone = [week for week in past if week not in there]
    assert gone, "weeks of events are dropped while events are written"
    assert gone == past[: len(gone)], "the oldest go first"
    trial.check()
