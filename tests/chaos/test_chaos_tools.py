"""Tasks that kill, fill or outlive the process that they are worked in; and what they started, when that dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Trial, Work
from nodes import Cluster, Worker, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
#: a pool process that was killed by a row; nobody else ends
BY_ITSELF = (r"Process '.*' pid:\d+ exited with 'signal 9 \(SIGKILL\)'",)


@pytest.fixture(scope="module")
def worker(system: Cluster) -> Worker:
    return system.worker("tools")


def failures(system: Cluster, work: Work) -> dict[int, Any]:
    """Rows of the loop that have failed, with their errors."""
    rows = system.q(
        "SELECT (r.payload ->> 'id')::int AS id, r.error FROM noetl.row r JOIN noetl.frame f USING (frame_id) "
        "WHERE f.execution_id = %s AND r.status = 'FAILED'",
        work.execution.id,
    )
    return {row["id"]: row["error"] for row in rows}


@pytest.mark.short
def test_a_row_that_kills_its_worker_fails_and_its_neighbours_do_not(system: Cluster, worker: Worker) -> None:
    """As the kernel does when memory is short: the process is gone, with all rows in it."""
    trial = Trial(system, "SIGKILL (out of memory) by a row's own code")
    work = trial.submit(60, path="chaos/guilty", guilty=[13], harm=KILL, failed=1)
    trial.check(allowed=BY_ITSELF)
    assert {id_: error["kind"] for id_, error in failures(system, work).items()} == {13: "worker_lost"}


def test_several_guilty_rows_in_one_frame(system: Cluster, worker: Worker) -> None:
    trial = Trial(system, "SIGKILL by several rows of one frame")
    work = trial.submit(60, path="chaos/guilty", guilty=[3, 4, 5, 44], harm=KILL, failed=4)
    trial.check(allowed=BY_ITSELF)
    assert {error["kind"] for error in failures(system, work).values()} == {"worker_lost"}


def whole(worker: Worker) -> list[psutil.Process]:
    """The processes for bodies, once those that a test before this one has killed are replaced."""
    wait_for(lambda: len(pool := worker.pool()) == 2 and all(map(_runs, pool)), "the pool is whole")
    return worker.pool()


@pytest.mark.parametrize(
    ("harm", "timeout", "kind", "says"),
    [
        (KILL, 60, "python", "killed by signal 9 (out of memory?)"),
        ("x = []\nwhile True: x.append(bytearray(2**20))", 60, "python", "MemoryError"),
        ("while True:\n    try: time.sleep(600)\n    except BaseException: pass", 3, "timeout", "did not end in time"),
        ("sum(range(10**12))", 3, "timeout", "did not end in time"),
    ],
    ids=["killed", "memory", "endless", "busy in C"],
)
def test_with_a_timeout_it_is_the_row_alone(
    system: Cluster, worker: Worker, harm: str, timeout: int, kind: str, says: str
) -> None:
    trial = Trial(system, f"a python task with a timeout that is {'killed' if kind == 'python' else 'endless'}")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))\n" + harm
    before = whole(worker)
    work = trial.submit(40, path="chaos/guilty", guilty=[2, 13], harm=limited, timeout=timeout, failed=2)
    # A process that a test before this one has killed may still be reported.
    assert trial.check(allowed=BY_ITSELF).rerun == 0
    errors = failures(system, work)
    assert {id_: (error["kind"], says in error["message"]) for id_, error in errors.items()} == {
        2: (kind, True),
        13: (kind, True),
    }
    assert worker.pool() == before, "no process was replaced"


def test_no_memory_in_the_worker_itself_is_an_error_of_the_row(system: Cluster, worker: Worker) -> None:
    trial = Trial(system, "MemoryError in a row's own code")
    work = trial.submit(40, path="chaos/guilty", guilty=[7], harm="bytearray(10**15)", failed=1)
    assert trial.check().rerun == 0
    assert failures(system, work)[7]["code"] == "MemoryError"


def test_commands_do_not_outlive_their_worker(system: Cluster, worker: Worker, tmp_path: Path) -> None:
    """Rows whose commands and code run when their processes are killed are run again, and only again."""
    trial = Trial(system, "SIGKILL of processes whose rows run commands")
    work = trial.submit(20, path="chaos/guilty", folder=str(tmp_path), pause=1, timeout=60)
    wait_for(lambda: len(list(tmp_path.iterdir())) >= 4, "commands are at work")
    pool = worker.pool()
    started = [process for one in pool for process in one.children(recursive=True)]
    assert len(started) >= 4
    for process in pool:
        system.kill(process)
    wait_for(lambda: not any(map(_runs, started)), "what they had started is gone")
    trial.check()
    assert work.execution.status() == "COMPLETED"


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
