"""Chord and reclaim: claim 50 rows, a task for each, and when all have ended, claim again."""

from __future__ import annotations

from celery import chord

from benchmarks.baselines import queue_table
from benchmarks.baselines.celery_app import Database, app


@app.task(ignore_result=True)
def claim() -> None:
    rows = queue_table.claim(Database.connection)
    if rows:
        chord([body.s(number) for number in rows], app=app)(claim.si())


@app.task
def body(number: int) -> None:
    Database.connection.execute(queue_table.DONE, (number,))


@app.task(ignore_result=True)
def claim_with_payload() -> None:
    rows = Database.connection.execute(queue_table.CLAIM_WITH_PAYLOAD, (queue_table.FRAME_ROWS,)).fetchall()
    if rows:
        chord([body_with_payload.s(number, payload) for number, payload in rows], app=app)(claim_with_payload.si())


@app.task
def body_with_payload(number: int, payload: str) -> None:
    Database.connection.execute(queue_table.DONE_WITH_SIZE, (len(payload), number))
