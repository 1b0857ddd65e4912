"""One task after the other: a row each, or 100 small steps that hand a number on; and one task alone."""

from __future__ import annotations

from typing import Any

from celery import chain

from benchmarks.baselines import queue_table
from benchmarks.baselines.celery_app import Database, app


@app.task
def body(number: int) -> int:
    return Database.connection.execute(queue_table.DONE, (number,)).rowcount


@app.task
def step(number: int) -> int:
    return number + 1


@app.task
def hello() -> str:
    return "hello world"


def rows_in_order(rows: int) -> Any:
    return chain(*[body.si(number) for number in range(1, rows + 1)], app=app)().get()


def steps(count: int) -> Any:
    return chain(step.s(0), *[step.s() for _ in range(count - 1)], app=app)().get()
