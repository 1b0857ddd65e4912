"""The cursor loop beside those who drain the same table."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.cases import drains
from benchmarks.model import OURS, Case, Contestant, Goal, Run, Values
from benchmarks.systems import CELERY, NOETL, NOETL_WIDE, dramatiq, procrastinate, psycopg_limit

CHORD = "celery chord"
DRAMATIQ = "dramatiq"
PROCRASTINATE = "procrastinate"
PSYCOPG_OUTCOME = "psycopg, outcome per row"
PSYCOPG_ROW, PSYCOPG_BATCH = "psycopg, commit per row", "psycopg, commit per 50"
FRAMES = "noetl-celery, frames of 50"
WAIT_SECONDS = 0.02
AT_ONCE = 40


def fill_with_payload(bench: Bench, rows: int) -> None:
    bench.fill(rows, payload_bytes=5 * 1024)


def share_of_ideal(run: Run, at_once: int) -> Run:
    """With the part of what so many rows at once would reach if nothing but their waiting took time."""

    def measured(bench: Bench, rows: int) -> Values:
        values = run(bench, rows)
        return {**values, "ideal_share": values["rows"] / values["seconds"] / (at_once / WAIT_SECONDS)}

    return measured


UPDATE = Case(
    "cursor",
    "cursor loop, 1 UPDATE per row",
    (
        Contestant(OURS, drains.playbook(), NOETL),
        Contestant(CHORD, drains.celery("claim"), CELERY),
        Contestant(DRAMATIQ, drains.dramatiq("claim"), dramatiq()),
        Contestant(PROCRASTINATE, drains.procrastinate, procrastinate()),
        Contestant(PSYCOPG_OUTCOME, drains.psycopg("outcome"), psycopg_limit("outcome")),
        Contestant(PSYCOPG_ROW, drains.psycopg("row"), psycopg_limit("row")),
        Contestant(PSYCOPG_BATCH, drains.psycopg("batch"), psycopg_limit("batch")),
    ),
    rows=10_000,
    quick_rows=1_000,
    warm_rows=200,
    prepare=drains.fill,
    goals=(
        Goal("≥ 6 × celery chord", OURS, "rate", CHORD, least=6),
        Goal("≥ 1.5 × dramatiq", OURS, "rate", DRAMATIQ, least=1.5),
        Goal("≥ 0.45 × psycopg, a durable outcome per row", OURS, "rate", PSYCOPG_OUTCOME, least=0.45),
    ),
    notes=("Frames, chords and claims of 50 rows for all. Only ours and `psycopg, outcome per row` keep outcomes.",),
)

WAIT = Case(
    "cursor_wait",
    "cursor loop, 20 ms of waiting per row, 40 at once",
    (
        Contestant(OURS, share_of_ideal(drains.playbook("bench/cursor_wait"), AT_ONCE), NOETL_WIDE),
        Contestant(
            DRAMATIQ, share_of_ideal(drains.dramatiq("claim", WAIT_SECONDS), AT_ONCE), dramatiq(threads=AT_ONCE // 2)
        ),
    ),
    rows=20_000,
    quick_rows=2_000,
    warm_rows=400,
    prepare=drains.fill,
    more=(("ideal_share", "of the ideal"),),
    goals=(Goal("≥ 0.8 of 40 rows / 20 ms", OURS, "ideal_share", least=0.8),),
    notes=(
        "40 at once in two processes: NOETL_LANE_WIDTH is 32, for two lanes of 20; dramatiq has 20 threads in each.",
    ),
)

PAYLOAD = Case(
    "cursor_payload",
    "cursor loop, 5 KB of payload per row",
    (
        Contestant(OURS, drains.playbook("bench/cursor_payload"), NOETL),
        Contestant(CHORD, drains.celery("claim_with_payload"), CELERY),
        Contestant(DRAMATIQ, drains.dramatiq("claim_with_payload"), dramatiq()),
    ),
    rows=5_000,
    quick_rows=500,
    warm_rows=200,
    prepare=fill_with_payload,
)

OLDEST = Case(
    "cursor_oldest",
    "oldest form of a cursor loop: LIMIT 1, max_in_flight 100, no frame",
    (
        Contestant(OURS, drains.playbook("bench/cursor_oldest"), NOETL),
        Contestant(FRAMES, drains.playbook(), NOETL),
    ),
    rows=10_000,
    quick_rows=1_000,
    warm_rows=200,
    prepare=drains.fill,
    goals=(Goal("≥ 0.7 × our rate with frames of 50", OURS, "rate", FRAMES, least=0.7),),
)

CASES = (UPDATE, PAYLOAD, OLDEST)
