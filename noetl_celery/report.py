"""What an execution looks like from outside: progress, snapshots, the report. No connection is needed for any of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noetl_celery.engine.state import FINAL

if TYPE_CHECKING:
    from noetl_celery.store.ledger import Books

#: what a report says of a step's rows
_OF_ROWS = ("claimed", "ok", "failed", "released", "parked", "ready", "taken", "reruns", "retries", "differences")


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far an open step is: rows that ended (``ok``, ``failed``), rows and frames under way, its age in seconds.

    ``total``: how many rows there are: of a list its length, of a cursor what its source had when the loop began, where
    ``loop.cursor.count`` says so.
    """

    stage_id: int
    step: str
    visit: int
    kind: str
    ok: int
    failed: int
    frames: int
    open_frames: int
    open_rows: int
    seconds: float
    total: int | None = None
    #: attempts of ended rows that failed and were made again
    retries: int = 0
    #: rows that have begun and are not written, as many as may be at once
    at_work: int = 0
    #: rows that wait for their next attempt outside of a lane (``more_parked``: there may be more of them), those of
    #: them that their target has sent away, and the seconds until the first one goes on
    parked: int = 0
    more_parked: bool = False
    throttled: int = 0
    next_seconds: float | None = None
    #: lanes that wait for a worker
    waiting: int = 0
    #: frames (of a list: rows) that may be open at once; whether the pace of requests is found (``auto``)
    max_in_flight: int | None = None
    paced: bool = False

    @property
    def done(self) -> int:
        """Rows that have their final outcome."""
        return self.ok + self.failed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at an execution. ``away`` says why PostgreSQL could not be asked; the rest is then as last seen."""

    status: str
    steps: tuple[StepProgress, ...] = ()
    away: str | None = None

    @property
    def final(self) -> bool:
        return self.status in FINAL


@dataclass(frozen=True, slots=True)
class Summary:
    """What an execution came to. Rows are those of its loops; ``rows`` is None if it had no loop.

    ``seconds`` are those from its submission to its end (or now), ``slowest_seconds`` those of the step that took
    longest, over all of its visits."""

    seconds: float
    ok: int
    failed: int
    retries: int
    loops: int
    slowest: str | None = None
    slowest_seconds: float = 0.0

    @property
    def rows(self) -> int | None:
        """Rows with an outcome."""
        return self.ok + self.failed if self.loops else None

    @property
    def per_second(self) -> float | None:
        """Rows per second, over all of its time."""
        return (self.ok + self.failed) / self.seconds if self.loops and self.seconds > 0 else None


def build_report(
    row: Mapping[str, Any], steps: list[dict[str, Any]], seconds: float, books: Iterable[Books] = ()
) -> dict[str, Any]:
    """The object that ``run --json`` prints: the execution's record, the last visits of its steps, and the books."""
    rows = {of_stage.stage_id: of_stage.document() for of_stage in books}
    return {
        "execution_id": str(row["execution_id"]),
        "status": row["status"],
        "error": brief_error(row["error"]),
        "steps": {
            step["step_name"]: {
                "status": step["status"],
                "output": step["result"],
                "rows": {name: rows[step["stage_id"]][name] for name in _OF_ROWS} if step["stage_id"] in rows else None,
            }
            for step in steps
        },
        "duration_seconds": round(float(seconds), 3),
    }


def brief_error(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An execution's error as people see it: what, in which step and task."""
    return {key: error.get(key) for key in ("kind", "message", "step", "task")} if error else None


def step_progress(row: Mapping[str, Any]) -> StepProgress:
    """A row of ``executions.progress`` as people see it."""
    return StepProgress(
        stage_id=int(row["stage_id"]),
        step=row["step_name"],
        visit=int(row["visit"]),
        kind=row["kind"],
        ok=int(row["ok"]),
        failed=int(row["failed"]),
        frames=int(row["frames"]),
        open_frames=int(row["open_frames"]),
        open_rows=int(row["open_rows"]),
        seconds=float(row["seconds"]),
        total=row["total"],
        retries=int(row["retries"]),
        at_work=int(row["at_work"]),
        parked=int(row["parked"]),
        more_parked=bool(row["more_parked"]),
        throttled=int(row["throttled"]),
        next_seconds=row["next"],
        waiting=int(row["waiting"]),
        max_in_flight=row["max_in_flight"],
        paced=bool(row["paced"]),
    )
