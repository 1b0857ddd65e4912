"""Every metric, once: what it is called, what it means, what it is split by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """``name`` is what queries use; seconds are seconds. Labels hold few values: never an id."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    #: of a histogram: upper bounds, in seconds
    buckets: tuple[float, ...] = ()
    #: of a counter with one label: its values, all of them
    known: tuple[str, ...] = ()


_STEP = ("path", "step")
_ROW_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_FRAME_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)

# Counted by the processes of workers, where things happen

ROWS = Metric("noetl_rows_total", "counter", "Rows whose outcome is written.", (*_STEP, "kind", "outcome"))
ROW_SECONDS = Metric(
    "noetl_row_seconds",
    "histogram",
    "Time that a row was at work in a lane, each time until it ended, was parked or was given back.",
    _STEP,
    _ROW_SECONDS,
)
RETRIES = Metric("noetl_retries_total", "counter", "Tasks of rows that failed and are tried again.", _STEP)
FRAMES = Metric("noetl_frames_total", "counter", "Frames that have ended.", (*_STEP, "kind"))
FRAME_SECONDS = Metric(
    "noetl_frame_seconds", "histogram", "Time from the claim of a frame to its end.", _STEP, _FRAME_SECONDS
)
CLAIMS = Metric("noetl_claims_total", "counter", "Claims by what came of them.", (*_STEP, "result"))
CLAIM_SECONDS = Metric(
    "noetl_claim_seconds", "histogram", "Time that a claim took which was filled or empty.", _STEP, _CLAIM_SECONDS
)
CLAIM_RETRIES = Metric(
    "noetl_claim_retries_total", "counter", "Claims that failed for a passing reason and are tried again.", _STEP
)
EXECUTIONS = Metric("noetl_executions_total", "counter", "Executions that have ended.", ("path", "status"))
LEASES_LOST = Metric(
    "noetl_leases_lost_total",
    "counter",
    "Lanes and claims that found their work with another holder.",
    ("kind",),
    known=("lane", "claim"),
)
RUNS_DIED = Metric(
    "noetl_runs_died_total",
    "counter",
    "Lanes and claims whose process died, or stood still past its lease.",
    ("kind",),
    known=("lane", "claim"),
)
RERUNS = Metric(
    "noetl_reruns_total",
    "counter",
    "Rows that had begun and begin again, as their process died or was told to stop.",
    ("reason",),
    known=("crash", "stop"),
)
REPUBLISHED = Metric(
    "noetl_republished_total",
    "counter",
    "Messages that nobody took in time and that were published again.",
    ("kind",),
    known=("claim", "lanes", "orchestrate"),
)

COUNTED = (
    *(ROWS, ROW_SECONDS, RETRIES, FRAMES, FRAME_SECONDS, CLAIMS, CLAIM_SECONDS, CLAIM_RETRIES, EXECUTIONS),
    *(LEASES_LOST, RUNS_DIED, RERUNS, REPUBLISHED),
)

# Asked of PostgreSQL and Redis when somebody looks

UP = Metric("noetl_up", "gauge", "Whether the service answered: 1 or 0.", ("service",))
OPEN_EXECUTIONS = Metric("noetl_open_executions", "gauge", "Executions that have not ended.", ("status",))
OPEN_FRAMES = Metric("noetl_open_frames", "gauge", "Frames that have not ended.")
OPEN_ROWS = Metric("noetl_open_rows", "gauge", "Rows of open frames that have no outcome.")
ROWS_AT_WORK = Metric("noetl_rows_at_work", "gauge", "Rows that have begun and whose outcome is not written.")
PARKED_ROWS = Metric("noetl_parked_rows", "gauge", "Rows that wait outside of lanes.", ("waiting_for",))
OUTBOX = Metric("noetl_outbox_dispatches", "gauge", "Claims and lanes that nobody has taken yet.", ("queue",))
OUTBOX_OLDEST = Metric(
    "noetl_outbox_oldest_seconds",
    "gauge",
    "Time for which the oldest of them has been asked for; it begins anew when Redis has lost its messages.",
    ("queue",),
)
SIGNALS = Metric("noetl_signals", "gauge", "Signals to executions that are due and that nobody has read.")
SIGNALS_OLDEST = Metric("noetl_signals_oldest_seconds", "gauge", "Time for which the oldest of them has been due.")
QUEUE = Metric("noetl_queue_messages", "gauge", "Messages that wait in Redis.", ("queue",))
WORKERS = Metric("noetl_worker_processes", "gauge", "Processes of workers that are registered.", ("state",))
LEASES_OVERDUE = Metric("noetl_leases_overdue", "gauge", "Leases that are over and that no sweep has taken back yet.")
LOCK_WAITS = Metric("noetl_lock_waits", "gauge", "Sessions of NoETL-Celery that wait for a lock.")
SWEEP_AGE = Metric("noetl_sweep_age_seconds", "gauge", "Time since the last sweep; not there if there never was one.")

ASKED = (
    *(UP, OPEN_EXECUTIONS, OPEN_FRAMES, OPEN_ROWS, ROWS_AT_WORK, PARKED_ROWS, OUTBOX, OUTBOX_OLDEST, SIGNALS),
    *(SIGNALS_OLDEST, QUEUE, WORKERS, LEASES_OVERDUE, LOCK_WAITS, SWEEP_AGE),
)
ALL = COUNTED + ASKED
