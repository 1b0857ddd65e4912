"""The SQL that all baselines share: the same claim and the same UPDATE as in our playbooks."""

from __future__ import annotations

import os
from typing import Any

import psycopg

CLAIM = """
UPDATE bench.work SET state = 'claimed'
WHERE id IN (SELECT id FROM bench.work WHERE state = 'open' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id
"""
CLAIM_WITH_PAYLOAD = f"{CLAIM.rstrip()}, payload"
DONE = "UPDATE bench.work SET state = 'done', done_at = clock_timestamp(), runs = runs + 1 WHERE id = %s"
DONE_WITH_SIZE = (
    "UPDATE bench.work SET state = 'done', done_at = clock_timestamp(), runs = runs + 1, size = %s WHERE id = %s"
)
#: the same, and what came of it, as who wants to know afterwards would keep it
DONE_WITH_OUTCOME = f"""
WITH done AS ({DONE} RETURNING id)
INSERT INTO bench.outcome (id, ok, result, finished_at) SELECT id, true, %s, clock_timestamp() FROM done
"""
FRAME_ROWS = 50


def connect() -> psycopg.Connection[Any]:
    """A connection on which every statement is a transaction of its own."""
    return psycopg.connect(os.environ["BENCH_DATABASE_URL"], autocommit=True)


def claim(connection: psycopg.Connection[Any], rows: int = FRAME_ROWS) -> list[int]:
    return [number for (number,) in connection.execute(CLAIM, (rows,))]
