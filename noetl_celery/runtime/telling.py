"""What lanes tell beside outcomes: events of retries and of the iterations of a loop over a collection, and what tasks
printed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

from noetl_celery.engine.decision import Event
from noetl_celery.engine.pipeline import Wait
from noetl_celery.playbook.plan import LoopPlan, TaskPlan
from noetl_celery.runtime.names import StageNames
from noetl_celery.store.lines import Line
from noetl_celery.store.rows import RowOutcome

#: retries named one by one in the event that tells of many
RETRIES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Retried:
    """A task of a row failed and is tried again; ``event`` is what it is told as."""

    row: int
    task: str
    event: str
    seconds: float
    meta: dict[str, Any]
    error: dict[str, Any]


def retried(row: int, task: TaskPlan, wait: Wait) -> Retried:
    """The note of one retry; its ``meta`` as tools that follow NoETL's events expect it."""
    meta = {
        "type": "on_error",
        "attempt_number": wait.attempt,
        "max_attempts": wait.attempts,
        "backoff_seconds": round(wait.seconds, 3),
        "scheduled_at": (datetime.now(UTC) + timedelta(seconds=wait.seconds)).isoformat(),
    }
    error = wait.error.as_dict() if wait.error is not None else {}
    return Retried(row, task.name, "retry_scheduled" if task.older else "task.retry", wait.seconds, meta, error)


@dataclass(frozen=True, slots=True)
class Told:
    """What is written with the next outcomes: events, and lines that tasks printed."""

    events: Sequence[Event] = ()
    lines: Sequence[Line] = ()


class Notes:
    """What the rows of a lane have to tell: they take notes, the lane writes them.

    Rows go on taking notes while a transaction (which may be run twice) writes those that were there when it began. A
    crash takes its notes along: they tell, and nothing hangs on them.
    """

    def __init__(self, stage: StageNames, items: int | None) -> None:
        """``items``: of a loop over a collection that has an event for each, how many there are."""
        self._stage, self._items = stage, items
        self._retried: deque[Retried] = deque()
        self._told: deque[Event] = deque()
        self._printed: deque[Line] = deque()
        self._taken: tuple[list[Retried], list[Event], list[Line]] = ([], [], [])

    def retried(self, note: Retried) -> None:
        self._retried.append(note)

    def tell(self, event: Event) -> None:
        self._told.append(event)

    def printed(self, line: Line) -> None:
        self._printed.append(line)

    def take(self) -> None:
        """From now on :meth:`told` is about the notes that there are."""
        self._taken = list(self._retried), list(self._told), list(self._printed)

    def drop(self) -> None:
        """What was taken is not to be written."""
        self._taken = [], [], []

    def written(self) -> None:
        """What was taken is committed."""
        retried, told, printed = self._taken
        for _ in retried:
            self._retried.popleft()
        for _ in told:
            self._told.popleft()
        for _ in printed:
            self._printed.popleft()
        self.drop()

    def told(self, outcomes: Sequence[RowOutcome]) -> Told:
        """What was taken, with the events of the rows that end with it."""
        stage, loop = self._stage, self._stage.step.loop
        together = loop is not None and loop.cursor is not None
        told = retry_events(self._taken[0], stage.step.name, stage.stage_id, together=together)
        told += self._taken[1]
        if loop is not None and self._items is not None:
            told += iteration_events(outcomes, stage.step.name, stage.stage_id, stage.execution_id, loop, self._items)
        return Told(told, self._taken[2])


def retry_events(notes: Sequence[Retried], step: str, stage_id: int, *, together: bool) -> list[Event]:
    """One event per retry; ``together``: one per task, that counts them and names the first."""
    if not together:
        return [
            Event(
                note.event,
                "RUNNING",
                step,
                stage_id,
                result={"row": note.row, "task": note.task, "error": note.error},
                meta={"retry": note.meta, "error": {"message": note.error.get("message")}},
                parent="step.enter",
            )
            for note in notes
        ]
    key = attrgetter("event", "task")
    told = []
    for (event, task), group in groupby(sorted(notes, key=key), key):
        same = list(group)
        first = [
            {"row": note.row, "attempt": note.meta["attempt_number"], "seconds": note.seconds, "error": note.error}
            for note in same[:RETRIES_SHOWN]
        ]
        result = {"task": task, "count": len(same), "rows": first}
        told.append(Event(event, "RUNNING", step, stage_id, result=result, meta={"retry": same[0].meta}))
    return told


def sequence_event(step: str, stage_id: int, task: str, calls: int, data: Any) -> Event:
    """The calls of an older ``retry`` on success have come to their end."""
    result = {"task": task, "total_attempts": calls, "aggregated_result": data}
    meta = {"retry": {"type": "on_success", "attempt_number": calls, "continuation": "pagination"}}
    return Event("retry_sequence_completed", "COMPLETED", step, stage_id, result=result, meta=meta, parent="step.enter")


def iteration_events(
    outcomes: Iterable[RowOutcome], step: str, stage_id: int, execution_id: int, loop: LoopPlan, total: int
) -> list[Event]:
    """``iteration_completed`` of each row of a collection."""
    return [
        Event(
            "iteration_completed",
            "COMPLETED" if outcome.ok else "FAILED",
            step,
            stage_id,
            result={"iteration_index": outcome.index, "status": "success" if outcome.ok else "failed"},
            meta={
                "iterator": {
                    "parent_execution_id": str(execution_id),
                    "iteration_index": outcome.index,
                    "total_iterations": total,
                    "iterator_name": loop.iterator,
                    "mode": loop.mode,
                }
            },
            parent="iterator_started",
        )
        for outcome in outcomes
    ]
