"""What an execution looks like from outside: progress, snapshots, the report. No connection is needed for any of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noetl_celery.engine.state import FINAL

if TYPE_CHECKING:
    from noetl_celery.store.ledger import Books

#: what a report says of a step's rows
_OF_ROWS = ("claimed", "ok", "failed", "released", "parked", "ready", "taken", "reruns", "differences")


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far an open step is: rows that ended (``ok``, ``failed``), rows and frames under way, its age in seconds.

    ``total``: the rows that the source had when the loop began, where ``loop.cursor.count`` says so.
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
    )


def seconds_text(seconds: float) -> str:
    """``3.2 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
