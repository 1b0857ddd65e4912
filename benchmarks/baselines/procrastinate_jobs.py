"""procrastinate, with its jobs in the same PostgreSQL: a job per row, and one that claims 50 rows and defers theirs.

python -m benchmarks.baselines.procrastinate_jobs
"""

from __future__ import annotations

import asyncio
import logging
import os

import procrastinate
import psycopg_pool

from benchmarks.baselines import queue_table

CONCURRENCY = 8

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_DATABASE_URL"]))
sync_app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=os.environ["BENCH_DATABASE_URL"]))


class Database:
    """The connections of a worker process."""

    pool: psycopg_pool.AsyncConnectionPool


@app.task(name="claim")
async def claim() -> None:
    async with Database.pool.connection() as connection:
        found = await connection.execute(queue_table.CLAIM, (queue_table.FRAME_ROWS,))
        rows = [number for (number,) in await found.fetchall()]
    if rows:
        await body.batch_defer_async(*({"number": number} for number in rows))
        await claim.defer_async()


@app.task(name="body")
async def body(number: int) -> None:
    async with Database.pool.connection() as connection:
        await connection.execute(queue_table.DONE, (number,))


def install() -> None:
    """Makes its tables; for whoever hands in the first job."""
    with sync_app.open():
        sync_app.schema_manager.apply_schema()


def start() -> None:
    """Hands in the first claim."""
    with sync_app.open():
        sync_app.configure_task("claim").defer()


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    options = {"autocommit": True}
    async with (
        psycopg_pool.AsyncConnectionPool(
            os.environ["BENCH_DATABASE_URL"], min_size=CONCURRENCY, max_size=CONCURRENCY, kwargs=options, open=False
        ) as Database.pool,
        app.open_async(),
    ):
        print("worker is ready", flush=True)
        await app.run_worker_async(concurrency=CONCURRENCY, wait=True)


if __name__ == "__main__":
    asyncio.run(main())
