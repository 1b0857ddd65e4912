"""The acceptance playbook against an API that neither throttles nor fails, beside the same work as a script."""

from __future__ import annotations

import json

import psycopg

from benchmarks.bench import RUN_SECONDS, Bench, BenchError
from benchmarks.model import OURS, Case, Contestant, Goal, Run, Values
from benchmarks.stub import pages_of
from benchmarks.systems import NOETL, straight_loop

STRAIGHT = "straight loop"


def workload(bench: Bench, types: int, patients: int) -> dict[str, object]:
    data_types = [f"type_{number}" for number in range(1, types + 1)]
    return {"api_url": bench.api_url(), "data_types": data_types, "patients": patients}


def ours(types: int) -> Run:
    def run(bench: Bench, rows: int) -> Values:
        wanted = workload(bench, types, rows // types)
        values, execution = bench.execute("examples/patient_flow", {**wanted, "pg_auth": "bench", "row_concurrency": 1})
        result = execution.outcome()
        if not result["all_passed"]:
            raise BenchError(f"incomplete: {result['missing']}")
        return {**values, "rows": float(rows), "pages": float(sum(row["pages"] for row in result["rows"]))}

    return run


def straight(types: int) -> Run:
    def run(bench: Bench, rows: int) -> Values:
        wanted = json.dumps(workload(bench, types, rows // types))
        with psycopg.connect(bench.services.database_url, autocommit=True) as listener:
            listener.execute("LISTEN bench_straight_done")
            began = bench.now()
            bench.services.q("SELECT pg_notify('bench_straight', %s)", wanted)
            for _ in listener.notifies(timeout=RUN_SECONDS, stop_after=1):
                break
            seconds = bench.now() - began
        saved = bench.services.value("SELECT count(*) FROM bench.straight_pages")
        expected = types * sum(pages_of(patient) for patient in range(1, rows // types + 1))
        if saved != expected:
            raise BenchError(f"{saved} pages of {expected}")
        return {"rows": float(rows), "seconds": seconds, "pages": float(saved)}

    return run


SMALL = Case(
    "acceptance",
    "acceptance playbook, 2 × 500 patients, row_concurrency 1",
    (Contestant(OURS, ours(2), NOETL), Contestant(STRAIGHT, straight(2), straight_loop())),
    rows=1_000,
    quick_rows=200,
    warm_rows=50,
    unit="patients/s",
    goals=(Goal("≥ 0.6 × the straight loop", OURS, "rate", STRAIGHT, least=0.6),),
    notes=("Two frames of 25 patients are open at once, one patient at a time in each: two processes beside one.",),
)

FULL = Case(
    "acceptance_full",
    "acceptance playbook, 10 × 1,000 patients, row_concurrency 1",
    (Contestant(OURS, ours(10), NOETL, repeat=1),),
    rows=10_000,
    quick_rows=0,
    warm_rows=100,
    unit="patients/s",
    more=(("rss_growth", "memory"), ("pages", "pages")),
    goals=(
        Goal("completes", OURS, "rows", least=10_000),
        Goal("memory at the end ≤ 1.1 × at the start", OURS, "rss_growth", most=1.1),
    ),
    counted=False,
)

CASES = (SMALL, FULL)
