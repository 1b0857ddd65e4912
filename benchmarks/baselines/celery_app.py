"""A Celery app on Redis as one sets it up for work that must not be lost: acknowledged late, results for chords.

celery -A benchmarks.baselines.celery_app worker -c 2 --without-gossip --without-mingle --loglevel WARNING
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
from celery import Celery
from celery.signals import worker_process_init, worker_ready

from benchmarks.baselines import queue_table

app = Celery(
    "bench",
    broker=os.environ["BENCH_CELERY_URL"],
    backend=os.environ["BENCH_CELERY_URL"],
    include=[f"benchmarks.baselines.{name}" for name in ("celery_chord", "celery_group", "celery_chain")],
    set_as_current=False,
)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    task_default_queue="bench",
    result_expires=3600,
    broker_connection_retry_on_startup=True,
)


class Database:
    """The connection of a pool process."""

    connection: psycopg.Connection[Any]


@worker_process_init.connect
def _connect(**_: Any) -> None:
    Database.connection = queue_table.connect()


@worker_ready.connect
def _ready(**_: Any) -> None:
    print("worker is ready", flush=True)
