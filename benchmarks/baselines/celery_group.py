"""A task for each item, all at once; and the same for those who wait for the results."""

from __future__ import annotations

from typing import Any

from celery import Task, group

from benchmarks.baselines import queue_table
from benchmarks.baselines.celery_app import Database, app


@app.task(ignore_result=True)
def body(number: int) -> None:
    Database.connection.execute(queue_table.DONE, (number,))


@app.task
def body_with_result(number: int) -> int:
    return Database.connection.execute(queue_table.DONE, (number,)).rowcount


@app.task
def small(number: int) -> int:
    return number + 1


def send(rows: int) -> None:
    group([body.s(number) for number in range(1, rows + 1)], app=app).apply_async()


def gather(task: Task, rows: int) -> list[Any]:
    """``task``: ``body_with_result`` or ``small``."""
    result: list[Any] = group([task.s(number) for number in range(1, rows + 1)], app=app)().get()
    return result
