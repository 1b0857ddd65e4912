"""``python -m benchmarks.pages``: how long each page of the console takes, over a database that has seen much.

10,000 executions of 20 playbooks, and one with a loop of 1,000,000 rows in 20,000 frames and as many events a frame as
a real one has; made with SQL, so that a minute is enough. No baseline: what counts is whether a person waits.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psycopg

from noetl_celery import Noetl
from noetl_celery.cli.embedded import EmbeddedServices
from noetl_celery.settings import load
from noetl_celery.store import migrate

EXECUTIONS, FRAMES, FRAME_ROWS = 10_000, 20_000, 50
#: of the execution with the loop
ID = 777
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p{number}, path: bench/p{number}}}
workload: {{rows: 5}}
workflow:
  - step: start
    tool: {{kind: noop}}
    next: {{arcs: [{{step: drain}}]}}
  - step: drain
    loop:
      cursor: {{kind: postgres, auth: pg, claim: "UPDATE t SET s = 1 RETURNING id"}}
      iterator: item
      spec: {{mode: cursor, frame: {{max_rows: 50}}}}
    tool: {{kind: noop}}
"""
FILL = f"""
INSERT INTO noetl.execution (execution_id, catalog_id, path, status, workload, ctx, state, created_at, finished_at,
                             error)
SELECT 1000000 + i, c.catalog_id, c.path, CASE WHEN i % 50 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, '{{"rows": 5}}',
       '{{}}', '{{}}', now() - i * interval '1 min', now() - i * interval '1 min' + interval '7 s',
       CASE WHEN i % 50 = 0 THEN '{{"kind": "http", "message": "503 Service Unavailable", "step": "drain"}}'::json END
FROM generate_series(1, {EXECUTIONS}) i JOIN noetl.catalog c ON c.path = 'bench/p' || (i % 20);
INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings, frames, opened_at, closed_at)
SELECT 2000000 + i * 2 + s, 1000000 + i, (ARRAY['start', 'drain'])[s + 1], 1, 'single', 'COMPLETED', '{{}}', 1,
       now() - i * interval '1 min', now() - i * interval '1 min' + interval '2 s'
FROM generate_series(1, {EXECUTIONS}) i, generate_series(0, 1) s;
INSERT INTO noetl.execution (execution_id, catalog_id, path, status, workload, ctx, state, created_at)
SELECT {ID}, catalog_id, path, 'RUNNING', '{{}}', '{{}}', '{{}}', now() - interval '20 min'
FROM noetl.catalog WHERE path = 'bench/p0';
INSERT INTO noetl.stage (stage_id, execution_id, step_name, visit, kind, status, settings, ok_rows, failed_rows, frames,
                         total, opened_at)
VALUES ({ID}, {ID}, 'drain', 1, 'cursor', 'OPEN', '{{}}', 999500, 500, {FRAMES}, 1200000, now() - interval '20 min');
INSERT INTO noetl.claim (claim_id, stage_id, execution_id, status, frame_index, sole, more, created_at)
SELECT i, {ID}, {ID}, 'FILLED', i, false, false, now() - interval '20 min' + i * interval '45 ms'
FROM generate_series(1, {FRAMES}) i;
INSERT INTO noetl.frame (frame_id, stage_id, execution_id, claim_id, status, frame_index, rows, ok_rows, failed_rows,
                         retries, created_at, completed_at)
SELECT i, {ID}, {ID}, i, 'COMPLETED', i, {FRAME_ROWS}, {FRAME_ROWS} - (i % 40 = 0)::int, (i % 40 = 0)::int, i % 7,
       now() - interval '20 min' + i * interval '45 ms' + interval '10 ms',
       now() - interval '20 min' + i * interval '45 ms' + interval '90 ms'
FROM generate_series(1, {FRAMES}) i;
INSERT INTO noetl.row (frame_id, row_index, status, payload, error, finished_at)
SELECT i, r, CASE WHEN i % 40 = 0 AND r = 7 THEN 'FAILED' ELSE 'OK' END, json_build_object('id', i * 50 + r),
       CASE WHEN i % 40 = 0 AND r = 7 THEN '{{"kind": "http", "message": "404 Not Found"}}'::json END, now()
FROM generate_series(1, {FRAMES}) i, generate_series(0, {FRAME_ROWS} - 1) r;
INSERT INTO noetl.event (execution_id, event_type, node_name, stage_id, frame_id, status, result)
SELECT {ID}, (ARRAY['frame.claimed', 'frame.committed', 'task.retry'])[1 + k], 'drain', {ID}, i, 'DONE',
       '{{"rows": 50}}'
FROM generate_series(1, {FRAMES}) i, generate_series(0, 2) k;
INSERT INTO noetl.log (execution_id, stage_id, frame_id, row_index, task, text, total, printed_at)
SELECT {ID}, {ID}, i, 0, 'drain', 'a line', i * 100, now() FROM generate_series(1, {FRAMES}) i;
ANALYZE;
"""
PAGES = (
    "/",
    "/?status=FAILED",
    "/?path=bench/p7&status=COMPLETED",
    "/playbooks",
    "/start?path=bench/p7",
    f"/executions/{ID}",
    f"/executions/{ID}/timeline",
    f"/executions/{ID}/timeline?stage={ID}&before=10000",
    f"/executions/{ID}/rows?step=drain",
    f"/executions/{ID}/rows?step=drain&failed=yes",
    f"/executions/{ID}/rows?step=drain&after=15000.15000.3",
    f"/executions/{ID}/logs",
    f"/executions/{ID}/events",
    f"/executions/{ID}/events?before=30000",
    f"/executions/{ID}/playbook",
)


def main() -> None:
    """Fills a database, asks for every page, prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=20, help="how often each page is asked for")
    repeat = parser.parse_args().repeat
    with EmbeddedServices(fresh=True) as services:
        settings = load(database_url=services.database_url, broker_url=services.broker_url)
        migrate.upgrade(settings)
        with Noetl(settings) as client:
            for number in range(20):
                client.register(f"p{number}.yaml", text=PLAYBOOK.format(number=number))
        with psycopg.connect(settings.libpq_url, autocommit=True) as connection:
            connection.execute(FILL)
        with _console(settings.database_url, settings.broker_url) as url:
            took = _measured(url, repeat)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; milliseconds of {repeat} requests\n")
    print("| page | median | slowest |\n|---|---|---|")
    for path, times in took.items():
        print(f"| `{path}` | {statistics.median(times):.0f} | {max(times):.0f} |")


def _measured(url: str, repeat: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {path: [] for path in PAGES}
    with httpx.Client(base_url=url, headers={"Accept": "text/html"}, timeout=60) as browser:
        browser.get("/playbooks")  # the first one connects
        for _ in range(repeat):
            for path in PAGES:
                begun = time.perf_counter()
                browser.get(path).raise_for_status()
                took[path].append(1000 * (time.perf_counter() - begun))
    return took


@contextmanager
def _console(database_url: str, broker_url: str) -> Iterator[str]:
    environment = {**os.environ, "NOETL_DATABASE_URL": database_url, "NOETL_BROKER_URL": broker_url}
    command = [sys.executable, "-m", "noetl_celery", "console", "--no-token", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        found = re.search(r"http://[\d.:]+", process.stderr.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
