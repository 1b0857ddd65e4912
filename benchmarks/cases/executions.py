"""Many small executions: one after the other, all at once, and as children of another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bench import RUN_SECONDS, Bench, BenchError
from benchmarks.figures import percentile
from benchmarks.model import OURS, Case, Contestant, Goal, Values
from benchmarks.systems import CELERY, NOETL

TASK = "celery task"
GROUP = "celery group of tasks"
SUBMITTERS = 4


def latencies(seconds: Sequence[float]) -> Values:
    found = {f"p{share}_ms": 1000 * percentile(seconds, share / 100) for share in (50, 99)}
    return {**found, "rows": float(len(seconds)), "seconds": sum(seconds)}


def hello_world(bench: Bench, count: int) -> Values:
    """Submitted, waited for, and the next one. Done is what PostgreSQL says; seen is when ``wait`` returned."""
    done, seen, events = [], [], 0.0
    for _ in range(count):
        began = time.monotonic()
        values, _ = bench.execute("bench/hello_world", {})
        seen.append(time.monotonic() - began)
        done.append(values["seconds"])
        events += values["events"]
    return {**latencies(done), "seen_p50_ms": 1000 * percentile(seen, 0.5), "events": events}


def celery_task(bench: Bench, count: int) -> Values:
    """Sent, and its result waited for."""
    from benchmarks.baselines import celery_chain

    done = []
    for _ in range(count):
        began = time.monotonic()
        celery_chain.hello.delay().get()
        done.append(time.monotonic() - began)
    return latencies(done)


def at_once(bench: Bench, count: int) -> Values:
    """All submitted as fast as a client can; then how long each took from its submission to its end."""
    began = bench.now()
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        executions = list(pool.map(lambda _: bench.client.submit("bench/three_steps"), range(count)))
    for execution in executions:
        if execution.wait(RUN_SECONDS) != "COMPLETED":
            raise BenchError(f"execution {execution.id} is {execution.status()}")
    rows = [execution.row() for execution in executions]
    waits = [(row["finished_at"] - row["created_at"]).total_seconds() for row in rows]
    seconds = max(row["finished_at"] for row in rows).timestamp() - began
    found = latencies(waits)
    return {**found, "seconds": seconds, "worst_ms": 1000 * max(waits), "worst": 1000 * max(waits) / found["p50_ms"]}


def children(bench: Bench, count: int) -> Values:
    values, _ = bench.execute("bench/children", {"rows": count})
    return {**values, "rows": float(count)}


def group_of_tasks(bench: Bench, count: int) -> Values:
    from benchmarks.baselines import celery_group

    began = bench.now()
    celery_group.gather(celery_group.small, count)
    return {"rows": float(count), "seconds": bench.now() - began}


HELLO = Case(
    "hello_world",
    "hello_world, submit to done",
    (Contestant(OURS, hello_world, NOETL), Contestant(TASK, celery_task, CELERY)),
    rows=200,
    quick_rows=30,
    warm_rows=10,
    figure="p50_ms",
    unit="ms (p50)",
    more=(("p99_ms", "p99"), ("seen_p50_ms", "seen by wait")),
    goals=(Goal("p50 ≤ 8 × round trip of a celery task", OURS, "p50_ms", TASK, most=8),),
    notes=("Done is when the execution ended; `wait` is told by PostgreSQL then.",),
)

AT_ONCE = Case(
    "at_once",
    "200 executions at once, three steps each",
    (Contestant(OURS, at_once, NOETL),),
    rows=200,
    quick_rows=50,
    warm_rows=5,
    more=(("p50_ms", "median ms"), ("worst_ms", "longest ms"), ("worst", "longest / median")),
    unit="executions/s",
    goals=(Goal("none takes more than 5 × the median", OURS, "worst", most=5),),
)

CHILDREN = Case(
    "children",
    "fan-out of 1,000 child playbooks",
    (Contestant(OURS, children, NOETL), Contestant(GROUP, group_of_tasks, CELERY)),
    rows=1_000,
    quick_rows=100,
    warm_rows=20,
    unit="children/s",
    notes=("A child is an execution with books of its own, a task of the group is a message.",),
)

CASES = (HELLO, AT_ONCE, CHILDREN)
