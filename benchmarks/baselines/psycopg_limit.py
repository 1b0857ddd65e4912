"""As fast as it gets: processes with a few threads that claim 50 rows and update them, with nothing in between.

    python -m benchmarks.baselines.psycopg_limit row|outcome|batch

``row``: a transaction per row. ``outcome``: in the same statement what came of it. ``batch``: a transaction per claim.
A process that dies leaves its claims behind. Waits for NOTIFY, drains the table, and waits again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.baselines import queue_table

THREADS = 4

Work = Callable[[psycopg.Connection[Any], list[int]], None]


def each_row(connection: psycopg.Connection[Any], rows: list[int]) -> None:
    for number in rows:
        connection.execute(queue_table.DONE, (number,))


def each_outcome(connection: psycopg.Connection[Any], rows: list[int]) -> None:
    for number in rows:
        connection.execute(queue_table.DONE_WITH_OUTCOME, (number, '{"row_count": 1}'))


def all_rows(connection: psycopg.Connection[Any], rows: list[int]) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(queue_table.DONE, [(number,) for number in rows])


def drain(connection: psycopg.Connection[Any], work: Work) -> None:
    while rows := queue_table.claim(connection):
        work(connection, rows)


def serve(connections: list[psycopg.Connection[Any]], work: Work) -> None:
    threads = [threading.Thread(target=drain, args=(connection, work)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(mode: str) -> None:
    work = {"row": each_row, "outcome": each_outcome, "batch": all_rows}[mode]
    connections = [queue_table.connect() for _ in range(THREADS)]
    listener = queue_table.connect()
    listener.execute("LISTEN bench_go")
    print("worker is ready", flush=True)
    for notice in listener.notifies():
        if notice.payload == mode:
            serve(connections, work)


if __name__ == "__main__":
    main(sys.argv[1])
