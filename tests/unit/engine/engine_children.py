"""Children of the simulated world: each is an end that comes some time later, and a row that waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_tables import MAX_CRASHES, Frame, Row, Tables

from noetl_celery.errors import ErrorInfo
from noetl_celery.outcome import Outcome


@dataclass
class Child:
    child_id: int
    row: Row
    outcome: Outcome
    #: its caller has told it to end
    told: bool = False
    ended: bool = False

    def look(self) -> Outcome | None:
        """What its caller sees: its outcome once it has ended."""
        if not self.ended:
            return None
        return Outcome(error=ErrorInfo("cancelled", "its caller ended")) if self.told else self.outcome


class Children:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.all: dict[int, Child] = {}
        self.calls: set[tuple[Any, ...]] = set()

    @property
    def alive(self) -> list[Child]:
        return [child for child in self.all.values() if not child.ended]

    def start(
        self, frame: Frame, run: int, index: int, position: Mapping[str, Any], child_id: int, outcome: Outcome
    ) -> bool:
        """Starts a child and parks the row for it, in one transaction. False: the frame starts nothing more."""
        row = self.tables.held_row(frame, run, index)
        if frame.stopping:
            return False
        self.tables.park(frame, run, index, position, None, counts=True, waits_for=child_id)
        call = (frame.frame_id, index, position["task"], position["attempt"], position["jumps"])
        assert call not in self.calls, "a child is started twice for one attempt"
        self.calls.add(call)
        assert not any(child.row is row for child in self.alive), "a row waits for two children"
        self.all[child_id] = Child(child_id, row, outcome)
        beside = [child for child in self.alive if child.row.frame_id == frame.frame_id and not child.row.crashes]
        assert len(beside) <= frame.row_concurrency, "more children than rows may be at work"
        return True

    def end(self, child: Child) -> list[tuple[Any, ...]]:
        """A child ends, and wakes the row that waits for it; the lane messages to send."""
        child.ended = True
        return self.wake(child)

    def wake(self, child: Child) -> list[tuple[Any, ...]]:
        """Wakes the row that waits for a child; also before its end, for nothing."""
        row, frame = child.row, self.tables.frames[child.row.frame_id]
        if row.status != "PARKED" or row.waits_for != child.child_id:
            return []
        row.status, row.due = "READY", None
        self.tables.send_lanes(frame, [row.lane or 0])
        return [("lane", frame.frame_id, row.lane or 0)]

    def cancel_all(self, stage_id: int) -> None:
        for frame in self.tables.frames_of(stage_id, "RUNNING"):
            for row in frame.rows:
                if row.waits_for is not None and row.status in ("PARKED", "READY", "TAKEN"):
                    child = self.all[row.waits_for]
                    child.told |= not child.ended

    def at_end(self) -> None:
        """No child outlives the row that waits for it, but for one whose workers died."""
        for child in self.alive:
            assert child.row.status == "FAILED"
            assert child.row.crashes >= MAX_CRASHES
