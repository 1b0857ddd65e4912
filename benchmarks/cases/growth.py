"""How time, memory, events and tables grow with the rows; and what more workers and more lanes bring."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.cases import drains
from benchmarks.cases.cursor import share_of_ideal
from benchmarks.model import Case, Contestant, Goal, Values
from benchmarks.systems import NOETL, NOETL_WIDE, noetl

FRAME_ROWS = 500
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
LANES = (1, 2, 4, 8, 16, 32, 64)
QUICK_SIZES, QUICK_LANES = (100, 1_000, 5_000), (1, 8, 64)
LARGEST = f"{SIZES[-1]:,} rows"
ONE_WORKER, TWO_WORKERS = "1 worker", "2 workers"
TABLES = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relnamespace = 'noetl'::regnamespace"

_drain = drains.playbook(max_rows=FRAME_ROWS)


def drain(bench: Bench, rows: int) -> Values:
    before = float(bench.services.value(f"{TABLES} AND relkind = 'r'"))
    values = _drain(bench, rows)
    tables = float(bench.services.value(f"{TABLES} AND relkind = 'r'")) - before
    tenths = bench.services.value(
        "SELECT array_agg(extract(epoch FROM at)::float8) FROM unnest("
        "(SELECT percentile_disc(ARRAY[0.1, 0.2, 0.9, 1.0]) WITHIN GROUP (ORDER BY done_at) FROM bench.work)) AS at"
    )
    start, end = tenths[1] - tenths[0], tenths[3] - tenths[2]
    return {**values, "table_bytes_per_row": tables / rows, **({"steady": start / end} if end else {})}


def sizes() -> tuple[Contestant, ...]:
    return tuple(
        Contestant(
            f"{rows:,} rows",
            drain,
            NOETL,
            rows=0 if rows not in SIZES else rows,
            quick_rows=rows if rows in QUICK_SIZES else 0,
            at=rows,
            repeat=1 if rows > 10_000 else None,
        )
        for rows in sorted({*SIZES, *QUICK_SIZES})
    )


def lanes() -> tuple[Contestant, ...]:
    return tuple(
        Contestant(
            f"row_concurrency {count}",
            share_of_ideal(
                drains.playbook("bench/cursor_wait", row_concurrency=count, max_in_flight=1, max_rows=2_000), count
            ),
            NOETL_WIDE,
            rows=100 * count,
            quick_rows=40 * count if count in QUICK_LANES else 0,
            at=count,
        )
        for count in LANES
    )


GROWTH = Case(
    "growth",
    "cursor loop, 100 to 1,000,000 rows",
    sizes(),
    rows=0,
    quick_rows=0,
    warm_rows=100,
    prepare=drains.fill,
    axis="rows",
    more=(
        ("steady", "end/start"),
        ("rss_growth", "memory"),
        ("table_bytes_per_row", "tables B/row"),
        ("messages_per_frame", "msgs/frame"),
    ),
    goals=(
        Goal("rows/s at the end ≥ 0.9 × at the start", LARGEST, "steady", least=0.9),
        Goal("memory at the end ≤ 1.1 × at the start", LARGEST, "rss_growth", most=1.1),
        Goal("≤ 0.1 event per row", LARGEST, "events_per_row", most=0.1),
        Goal("≤ 0.2 own SQL statements per row", LARGEST, "own_statements_per_row", most=0.2),
        Goal("≤ 4 Celery messages per frame", LARGEST, "messages_per_frame", most=4),
    ),
    notes=(
        f"Frames of {FRAME_ROWS} rows. end/start: rows/s of the last tenth of the rows beside the second tenth;",
        "memory: the same of the worker processes, by tenths of the time; tables: how much ours grew.",
        "Statements are counted on 10,000 rows at most.",
    ),
)

WORKERS = Case(
    "workers",
    "cursor loop, 1 and 2 workers with one process for bodies each",
    (
        Contestant(ONE_WORKER, drains.playbook(), noetl(processes=1), at=1),
        Contestant(TWO_WORKERS, drains.playbook(), noetl(processes=1, workers=2), at=2),
    ),
    rows=10_000,
    quick_rows=1_000,
    warm_rows=200,
    prepare=drains.fill,
    counted=False,
)

LANE_COUNT = Case(
    "lanes",
    "cursor loop, 20 ms of waiting per row, 1 to 64 rows at once",
    lanes(),
    rows=0,
    quick_rows=0,
    warm_rows=40,
    prepare=drains.fill,
    axis="rows at once",
    more=(("ideal_share", "of the ideal"),),
    counted=False,
    notes=("Two processes, NOETL_LANE_WIDTH is 32: one lane up to 32 rows at once, two for 64.",),
)

CASES = (GROWTH,)
#: with workers of their own
SCALE = (LANE_COUNT, WORKERS)
