"""The cursor loop beside those who drain the same table."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.model import OURS, Case, Contestant, Goal, Run, Values
from benchmarks.systems import CELERY, NOETL, psycopg_limit

CHORD = "celery chord"
PSYCOPG_ROW, PSYCOPG_BATCH = "psycopg, commit per row", "psycopg, commit per 50"


def fill(bench: Bench, rows: int) -> None:
    bench.fill(rows)


def ours(path: str = "bench/cursor", **workload: int) -> Run:
    def run(bench: Bench, rows: int) -> Values:
        values, _ = bench.execute(path, workload)
        bench.work_done(0.0)
        return {**values, "rows": float(rows)}

    return run


def chord(bench: Bench, _rows: int) -> Values:
    from benchmarks.baselines import celery_chord

    return bench.drained(celery_chord.claim.delay)


def limit(mode: str) -> Run:
    def run(bench: Bench, _rows: int) -> Values:
        return bench.drained(lambda: bench.services.q("SELECT pg_notify('bench_go', %s)", mode))

    return run


CASES = (
    Case(
        "cursor",
        "cursor loop, 1 UPDATE per row",
        (
            Contestant(OURS, ours(), NOETL),
            Contestant(CHORD, chord, CELERY),
            Contestant(PSYCOPG_ROW, limit("row"), psycopg_limit("row")),
            Contestant(PSYCOPG_BATCH, limit("batch"), psycopg_limit("batch")),
        ),
        rows=10_000,
        quick_rows=1_000,
        warm_rows=200,
        prepare=fill,
        goals=(
            Goal("≥ 6 × celery chord", OURS, "rate", CHORD, least=6),
            Goal("≥ 0.45 × psycopg, commit per row", OURS, "rate", PSYCOPG_ROW, least=0.45),
        ),
    ),
)
