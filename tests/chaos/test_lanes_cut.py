"""Lanes and decisions that stand still past their lease, at each point; what a crash of a lane makes run again."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Trial
from nodes import Cluster, Node, wait_for

from noetl_celery.faults import POINTS
from noetl_celery.settings import CONTROL_QUEUE

pytestmark = pytest.mark.chaos

ROWS = 30
LEASE = 3
#: no sweep: frozen inside one it would keep its locks until PostgreSQL ends the session
QUIET = {"NOETL_SWEEP_SECONDS": "3600"}
#: the points that a lane passes, and a decision
POINTS_HERE = sorted(point for point in POINTS if point.startswith(("lane.", "orchestrate.")))


SETTINGS = {"NOETL_SHORT_WAIT_SECONDS": "5"}


@pytest.fixture(scope="module")
def healthy(system: Cluster) -> Node:
    """A worker that lives through all tests; a test may tell it to take no messages for a while."""
    return system.start("healthy", "-P", "prefork", "-c", "2")


def everything(system: Cluster, execution: int) -> dict[str, list[dict[str, Any]]]:
    """All that belongs to an execution and its children, and what its bodies have done."""
    family = (
        "WITH RECURSIVE f AS (SELECT %s::bigint AS id UNION ALL SELECT e.execution_id FROM noetl.execution e "
        "JOIN f ON e.parent_execution_id = f.id) "
    )
    tables = ("execution", "stage", "claim", "frame", "run", "signal", "outbox", "event", "result")
    of_frame = "frame_id IN (SELECT frame_id FROM noetl.frame WHERE execution_id IN (SELECT id FROM f))"
    return {
        **{
            table: system.q(
                f"{family} SELECT * FROM noetl.{table} t WHERE execution_id IN (SELECT id FROM f) ORDER BY t::text",
                execution,
            )
            for table in tables
        },
        **{
            table: system.q(f"{family} SELECT * FROM noetl.{table} t WHERE {of_frame} ORDER BY t::text", execution)
            for table in ("row", "wakeup")
        },
        "ledger": system.q("SELECT * FROM public.ledger t ORDER BY t::text"),
        "effects": system.q("SELECT * FROM public.effects t ORDER BY t::text"),
    }


def open_things(system: Cluster, execution: int) -> list[dict[str, Any]]:
    of_frame = "SELECT frame_id FROM noetl.frame WHERE execution_id = %s"
    return system.q(
        f"SELECT 'run' AS what FROM noetl.run WHERE execution_id = {execution} "
        f"UNION ALL SELECT 'signal' FROM noetl.signal WHERE execution_id = {execution} "
        f"UNION ALL SELECT 'outbox' FROM noetl.outbox WHERE execution_id = {execution} "
        f"UNION ALL SELECT 'frame' FROM noetl.frame WHERE execution_id = {execution} AND status <> 'COMPLETED' "
        f"UNION ALL SELECT 'wakeup' FROM noetl.wakeup WHERE frame_id IN ({of_frame})",
        execution,
    )


def idle(node: Node) -> bool:
    """Every task that the node was given has ended."""
    told = re.findall(r"Task noetl\.\w+\[.*?\] (received|succeeded|raised|retry)", node.text)
    return told.count("received") > 0 and 2 * told.count("received") == len(told)


@pytest.mark.timeout(180)
@pytest.mark.short
def test_what_had_begun_is_run_again_and_nothing_else(
    system: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Eight rows that have left their mark stand still when the worker dies; others were taken ahead, or not at all."""
    trial = Trial(system, "SIGKILL with rows in the air and rows taken ahead")
    stuck = list(range(17, 41))
    once = (
        f"import os, time\nmark = '{tmp_path}/' + str(id)\n"
        "if not os.path.exists(mark):\n    open(mark, 'w').close()\n    time.sleep(600)"
    )
    doomed = system.start("doomed", "-P", "prefork", "-c", "1")
    doomed.ended = True
    work = trial.submit(40, path="chaos/still", still=stuck, code=once)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 8, "eight rows stand still", 60)
    standing = {int(path.name) for path in tmp_path.iterdir()}
    rows = "SELECT (payload ->> 'id')::int AS id FROM noetl.row WHERE"
    begun = f"{rows} status = 'TAKEN' AND row_index = ANY((SELECT begun FROM noetl.run)::int[])"
    wait_for(lambda: {row["id"] for row in system.q(begun)} == standing, "what has begun is known, the rest is written")
    doomed.kill()
    for row in set(stuck) - standing:  # those that had not begun stand still nowhere else
        (tmp_path / str(row)).touch()
    request.getfixturevalue("healthy")
    wait_for(lambda: system.value("SELECT max(crashes) FROM noetl.row"), "the crash is counted", 60)
    assert {row["id"] for row in system.q(f"{rows} crashes > 0")} == standing
    assert trial.check().rerun == 8
    extra = "SELECT id FROM public.ledger WHERE batch = %s GROUP BY id HAVING count(*) > 1"
    assert {row["id"] for row in system.q(extra, work.batch)} == standing


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", POINTS_HERE)
def test_whoever_stands_still_past_his_lease_changes_nothing(point: str, system: Cluster, healthy: Node) -> None:
    calls = point == "lane.child_started"
    trial = Trial(system, "SIGSTOP past the lease")
    system.consume(healthy, False)
    try:
        fault = f"{point}:stop:2" if point.startswith("orchestrate") else f"{point}:stop"
        frozen = system.start(f"frozen-{point}", "-P", "threads", "-c", "4", **QUIET, NOETL_FAULT=fault)
        frozen.ended = True
        if calls:
            system.fill(point, 5)
            execution = system.submit(point, path="test/recovery_child", lease=LEASE)
        else:
            execution = trial.submit(rows=ROWS, max_rows=5, lease=LEASE).execution
        wait_for(lambda: psutil.Process(frozen.process.pid).status() == psutil.STATUS_STOPPED, "it stands still")
        in_the_air = "FROM noetl.row r JOIN noetl.run n USING (frame_id) WHERE r.row_index = ANY(n.begun)"
        begun = {row["id"] for row in system.q(f"SELECT (r.payload ->> 'id')::int AS id {in_the_air}")}
    finally:
        system.consume(healthy, True)
    # Whoever stands still inside a transaction holds its locks until PostgreSQL ends the session.
    assert execution.wait(timeout=90) == "COMPLETED"
    wait_for(lambda: not open_things(system, execution.id), "all is decided")
    system.consume(healthy, False)  # what the other one publishes when it wakes up is for itself
    try:
        before = everything(system, execution.id)
        frozen.process.send_signal(signal.SIGCONT)
        wait_for(lambda: idle(frozen), "its tasks come to an end")
        frozen.kill()
        after = everything(system, execution.id)
    finally:
        system.consume(healthy, True)
    # A body that had begun may come to its end: that is the body's affair. No other one begins.
    outside = ("ledger", "effects")
    assert {name: after[name] for name in after if name not in outside} == {
        name: before[name] for name in before if name not in outside
    }
    if not calls:
        assert {line["id"] for line in after["ledger"] if line not in before["ledger"]} <= begun
    if calls:
        system.assert_whole(execution, point, 5, again=5)
    else:
        trial.check(again=ROWS)


@pytest.mark.timeout(300)
def test_a_row_that_kills_its_process_among_two_hundred(system: Cluster, healthy: Node) -> None:
    """As when memory runs out: it fails, and all the others complete; those beside it run alone meanwhile."""
    trial = Trial(system, "a row that kills its process, among 200")
    work = trial.submit(
        200, path="chaos/guilty", guilty=[77], harm="os.kill(os.getpid(), signal.SIGKILL)", pause=0.01, failed=1
    )
    verdict = trial.check(within=200, allowed=(r"exited with .signal 9 \(SIGKILL\)",))
    (failed,) = system.q(
        "SELECT r.payload ->> 'id' AS id, r.error ->> 'kind' AS kind, r.crashes FROM noetl.row r "
        "JOIN noetl.frame f USING (frame_id) WHERE f.execution_id = %s AND r.status = 'FAILED'",
        work.execution.id,
    )
    assert failed == {"id": "77", "kind": "worker_lost", "crashes": 3}
    # The first time it has up to seven others beside it, with a batch of outcomes; then it is alone.
    assert verdict.rerun <= 2 + 7 + 20


@pytest.mark.parametrize("wait", [pytest.param(4.9, marks=pytest.mark.short), 60.0], ids=["in the lane", "parked"])
def test_cancel_does_not_wait_for_rows_that_wait(wait: float, system: Cluster, healthy: Node) -> None:
    """Neither for those that wait in their lane for the next attempt, nor for parked ones."""
    control = system.start(f"control-{wait:g}", "-P", "threads", "-c", "2", queues=CONTROL_QUEUE)
    batch = f"cancel-{wait}"
    system.fill(batch, 40)
    execution = system.client.submit("chaos/refused", {"batch": batch, "seconds": wait})
    begun = "SELECT count(*) FROM public.ledger WHERE batch = %s"
    wait_for(lambda: system.value(begun, batch) >= 8, "rows wait for their next attempt")
    told = time.monotonic()
    execution.cancel()
    assert execution.wait(timeout=20) == "CANCELLED"
    assert time.monotonic() - told < 4, "sooner than any of them would have tried again"
    wait_for(lambda: not open_things(system, execution.id), "nothing is left open", 5)
    rows = system.q(
        "SELECT DISTINCT r.status FROM noetl.row r JOIN noetl.frame f USING (frame_id) WHERE f.execution_id = %s",
        execution.id,
    )
    assert rows == [{"status": "SKIPPED"}]
    control.kill()
