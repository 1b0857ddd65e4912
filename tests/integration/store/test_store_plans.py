"""What people ask of an execution that runs is answered out of what is open, however long it has been running and
however much there is beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from world import World

from noetl_celery.store import db, executions, situation
from noetl_celery.store.db import Connection, Rows

pytestmark = pytest.mark.integration

#: one execution with a long past and a little at work, among many others
EXECUTION, STAGE, OTHERS, FRAMES = 1, 11, 200, 20_000
FILL = f"""
INSERT INTO noetl.execution (execution_id, catalog_id, path, status, workload, ctx, state)
  SELECT n, 1, 'p', 'RUNNING', '{{}}', '{{}}', '{{}}' FROM generate_series(1, {OTHERS}) AS n;
INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings, ok_rows, failed_rows, frames,
                         retries, total)
  SELECT 10 * n + k, n, 's' || k, 1, 'cursor', CASE k WHEN 1 THEN 'OPEN' ELSE 'COMPLETED' END,
         '{{"max_in_flight": 4, "paced": true}}', 10, 1, 4, 3, 99
  FROM generate_series(1, {OTHERS}) AS n, generate_series(0, 2) AS k;
UPDATE noetl.stage SET ok_rows = 39000, failed_rows = 996, retries = 7, frames = 19998, total = 50000
  WHERE stage_id = {STAGE};
-- {FRAMES} frames of the one, that have ended but for the last three; ten open ones of each other execution
INSERT INTO noetl.frame (frame_id, stage_id, execution_id, claim_id, status, frame_index, rows, open_rows, ok_rows,
                         row_concurrency, retries)
  SELECT n, {STAGE}, {EXECUTION}, n, CASE WHEN n > {FRAMES - 3} THEN 'RUNNING' ELSE 'COMPLETED' END, n, 2,
         CASE WHEN n > {FRAMES - 3} THEN 2 ELSE 0 END, CASE WHEN n > {FRAMES - 3} THEN 0 ELSE 2 END, 4, 1
  FROM generate_series(1, {FRAMES}) AS n
  UNION ALL
  SELECT 100000 * n + k, 10 * n + 1, n, NULL, 'RUNNING', k, 2, 2, 0, 4, 0
  FROM generate_series(2, {OTHERS}) AS n, generate_series(1, 10) AS k;
INSERT INTO noetl.row (frame_id, row_index, status, taken_by, lane, finished_at)
  SELECT frame_id, k, CASE WHEN f.status = 'COMPLETED' THEN 'OK' WHEN k = 0 THEN 'TAKEN' ELSE 'PARKED' END,
         CASE WHEN f.status = 'RUNNING' AND k = 0 THEN frame_id END, 0, clock_timestamp()
  FROM noetl.frame f, generate_series(0, 1) AS k;
INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, lease_seconds, lease_until, heartbeat_seconds, begun)
  SELECT frame_id, 1, execution_id, frame_id, 60, clock_timestamp(), 5, '{{0}}'
  FROM noetl.frame WHERE status = 'RUNNING';
INSERT INTO noetl.outbox (execution_id, stage_id, frame_id, lane, queue, publish_at)
  SELECT execution_id, stage_id, frame_id, 1, 'q', clock_timestamp() FROM noetl.frame WHERE status = 'RUNNING';
INSERT INTO noetl.wakeup (frame_id, row_index, due_at)
  SELECT frame_id, 1, clock_timestamp() + interval '9 s' FROM noetl.frame WHERE status = 'RUNNING';
INSERT INTO noetl.claim (claim_id, stage_id, execution_id, status, frame_index, sole, more)
  SELECT n, {STAGE}, {EXECUTION}, CASE WHEN n > {FRAMES - 2} THEN 'OPEN' ELSE 'FILLED' END, n, false, false
  FROM generate_series(1, {FRAMES}) AS n;
INSERT INTO noetl.signal (execution_id, type, data)
  SELECT n, 'frame.done', json_build_object('stage', 10 * n + 1, 'ok', 4, 'failed', 1, 'retries', 2)
  FROM generate_series(1, {OTHERS}) AS n, generate_series(1, 5) AS k;
INSERT INTO noetl.event (execution_id, event_type, stage_id, frame_id)
  SELECT execution_id, 'frame.committed', stage_id, frame_id FROM noetl.frame, generate_series(1, 2);
INSERT INTO noetl.worker (worker_id, name, host, pid) VALUES (1, 'w', 'h', 1)
"""
#: what is open of the one execution, and a little more
FEW = 100


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in plan or "Index Name" in plan:
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part)


class Explained:
    """Stands in for :func:`every` and :func:`one`: explains each statement, and keeps how much it looked at."""

    def __init__(self) -> None:
        self.scans: list[dict[str, Any]] = []

    def every(self, connection: Connection, sql: str, **values: Any) -> Rows:
        (row,) = db.every(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", **values)
        self.scans += scans(row["QUERY PLAN"][0]["Plan"])
        return db.every(connection, sql, **values)

    def one(self, connection: Connection, sql: str, **values: Any) -> dict[str, Any] | None:
        return next(iter(self.every(connection, sql, **values)), None)

    def looked_at(self) -> dict[str, int]:
        """Rows that were read, by table or index, with those that were read in vain."""
        found: dict[str, int] = {}
        for scan in self.scans:
            removed = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
            name = scan.get("Relation Name") or scan["Index Name"]
            found[name] = found.get(name, 0) + int((scan["Actual Rows"] + removed) * scan["Actual Loops"])
        return found


@pytest.fixture
def explained(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Explained]:
    world.q(FILL)
    world.q("ANALYZE")

    def explain(module: Any, work: Callable[..., Any], *arguments: Any, **options: Any) -> Explained:
        seen = Explained()
        monkeypatch.setattr(module, "every", seen.every)
        monkeypatch.setattr(module, "one", seen.one)
        world.process.db.read(lambda connection: work(connection, *arguments, **options))
        monkeypatch.undo()
        return seen

    return explain


def test_how_far_it_is_and_what_it_waits_for(world: World, explained: Callable[..., Explained]) -> None:
    for seen in (
        explained(executions, executions.progress, EXECUTION),
        explained(situation, situation.of, EXECUTION, dead_after_seconds=10.0),
    ):
        whole = {scan["Relation Name"] for scan in seen.scans if scan["Node Type"] == "Seq Scan"}
        assert whole <= {"worker"}, "there are few of them"
        looked_at = seen.looked_at()
        assert {"frame", "run", "outbox", "wakeup", "signal"} <= looked_at.keys()
        assert {table: rows for table, rows in looked_at.items() if rows > FEW} == {}
    (step,) = world.do(executions.progress, EXECUTION)
    assert (step["ok"], step["failed"], step["retries"]) == (39_020, 1_001, 20)
    assert (step["frames"], step["open_frames"], step["open_rows"], step["total"]) == (19_998, 3, 6, 50_000)
    assert (step["at_work"], step["waiting"], step["parked"], step["throttled"]) == (3, 3, 3, 3)
    assert (step["max_in_flight"], step["paced"]) == (4, True)
    assert 0 < step["next"] <= 9
