"""How each contestant drains the table of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from benchmarks.bench import Bench
from benchmarks.model import Run, Values


def fill(bench: Bench, rows: int) -> None:
    bench.fill(rows)


def playbook(path: str = "bench/cursor", **workload: Any) -> Run:
    """A cursor loop of ours over the table."""

    return lambda bench, rows: _executed(bench, rows, path, workload)


def collection(path: str) -> Run:
    """A loop of ours over the numbers of the rows."""
    return lambda bench, rows: _executed(bench, rows, path, {"rows": rows})


def _executed(bench: Bench, rows: int, path: str, workload: Mapping[str, Any]) -> Values:
    values, _ = bench.execute(path, workload)
    bench.work_done(0.0)
    return {**values, "rows": float(rows)}


def celery(task: str) -> Run:
    """Starts a task of celery_chord that claims until nothing is left."""

    def run(bench: Bench, _rows: int) -> Values:
        from benchmarks.baselines import celery_chord

        values = bench.drained(getattr(celery_chord, task).delay)
        settle_celery(bench)
        return values

    return run


def settle_celery(bench: Bench) -> None:
    """Waits until no message is left: a claim that comes late would drain the next table as well."""
    with redis.Redis.from_url(bench.services.redis_url("celery")) as client:
        bench.wait_for(lambda: not client.llen("bench") and not client.hlen("unacked"), "Celery has no messages")


def dramatiq(actor: str, *arguments: Any) -> Run:
    def run(bench: Bench, _rows: int) -> Values:
        from benchmarks.baselines import dramatiq_actors

        values = bench.drained(lambda: getattr(dramatiq_actors, actor).send(*arguments))
        with redis.Redis.from_url(bench.services.redis_url("dramatiq")) as client:
            bench.wait_for(lambda: not client.hlen("dramatiq:default.msgs"), "dramatiq has no messages")
        return values

    return run


def procrastinate(bench: Bench, _rows: int) -> Values:
    from benchmarks.baselines import procrastinate_jobs

    values = bench.drained(procrastinate_jobs.start)
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    bench.wait_for(lambda: not bench.services.value(waiting), "procrastinate has no jobs")
    return values


def psycopg(mode: str) -> Run:
    def run(bench: Bench, _rows: int) -> Values:
        return bench.drained(lambda: bench.services.q("SELECT pg_notify('bench_go', %s)", mode))

    return run
