"""dramatiq on Redis: a message per row, and one that claims 50 rows, sends their messages and then itself.

dramatiq benchmarks.baselines.dramatiq_actors --processes 2 --threads 8
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

from benchmarks.baselines import queue_table

broker = RedisBroker(url=os.environ["BENCH_DRAMATIQ_URL"])
dramatiq.set_broker(broker)
_thread = threading.local()


def connection() -> psycopg.Connection[Any]:
    """The connection of a worker thread."""
    if not hasattr(_thread, "connection"):
        _thread.connection = queue_table.connect()
    found: psycopg.Connection[Any] = _thread.connection
    return found


@dramatiq.actor
def claim(wait_seconds: float = 0.0) -> None:
    rows = queue_table.claim(connection())
    for number in rows:
        body.send(number, wait_seconds)
    if rows:
        claim.send(wait_seconds)


@dramatiq.actor
def body(number: int, wait_seconds: float = 0.0) -> None:
    if wait_seconds:
        time.sleep(wait_seconds)
    connection().execute(queue_table.DONE, (number,))


@dramatiq.actor
def claim_with_payload() -> None:
    rows = connection().execute(queue_table.CLAIM_WITH_PAYLOAD, (queue_table.FRAME_ROWS,)).fetchall()
    for number, payload in rows:
        body_with_payload.send(number, payload)
    if rows:
        claim_with_payload.send()


@dramatiq.actor
def body_with_payload(number: int, payload: str) -> None:
    connection().execute(queue_table.DONE_WITH_SIZE, (len(payload), number))
