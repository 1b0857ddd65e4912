"""What a lane holds in the database: its run, and rows of its frame. Every exchange with it is one transaction.

All writes name the run; one that has lost its lease changes nothing and raises ``LeaseLost``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from noetl_celery.engine.assign import merge_paths
from noetl_celery.errors import ServiceError
from noetl_celery.ids import new_id
from noetl_celery.runtime.lanes import lane_again
from noetl_celery.runtime.names import StageNames, load_stage
from noetl_celery.runtime.process import Process, abandon_rows
from noetl_celery.runtime.row import Called, Parked
from noetl_celery.runtime.telling import Told
from noetl_celery.store import children, crashes, events, executions, frames, lines, rows, runs, stages
from noetl_celery.store.db import Connection
from noetl_celery.store.frames import FirstLane, NewFrame
from noetl_celery.store.outbox import Dispatch
from noetl_celery.store.rows import RowOutcome, TakenRow
from noetl_celery.telemetry import watch

if TYPE_CHECKING:
    from noetl_celery.runtime.onward import After

T = TypeVar("T")

#: a row that goes back: its index, the position that it reached (None: as it was), its retries so far
Back = tuple[int, Mapping[str, Any] | None, int]

#: rows announced ahead may begin for so long; a worker that stood still for longer asks again
SURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What came of an exchange: rows that were taken; ``stop``: no further row starts; ``over``: the frame has ended,
    and the lane with it; ``frame``: what :func:`frames.ending` says of the one that has."""

    taken: Sequence[TakenRow] = ()
    stop: bool = False
    over: bool = False
    frame: Mapping[str, Any] | None = None


class Holding:
    """One delivery's hold on a lane of a frame."""

    stage: StageNames
    frame: Mapping[str, Any]

    def __init__(self, process: Process, frame_id: int, stage_id: int, number: int) -> None:
        self._process = process
        self.frame_id, self.stage_id, self.number = frame_id, stage_id, number
        self.run_id = new_id()
        self.execution_id = 0
        #: rows that it may work on at once
        self.width = 0
        #: rows begin in their order, one after the other
        self.ordered = False
        #: no other lane works on the frame
        self.alone = False
        #: somebody died over this frame: suspects run alone from now on
        self.careful = False
        #: places that rows outside hold: their target sent them away, or they wait for a child
        self.parked = 0
        #: rows of this lane have been parked: those that woke come before rows that were never begun
        self.parks = False
        #: the last time that rows were asked for, there were not enough
        self.exhausted = False
        #: rows that were at work when the grace time was over
        self._handed_over = 0
        self._floor = 0
        #: what was taken when it started, how many were wanted, how many of them may begin, and when that was
        self._first: tuple[Sequence[TakenRow], int, int] = (), 0, 0
        self._asked = 0.0
        self._made: FirstLane | None = None
        #: rows that were announced: those that have not begun may until then, on the monotonic clock
        self._announced: frozenset[int] = frozenset()
        self.sure_until = 0.0

    # -- taking ----------------------------------------------------------------------------------------------------

    @property
    def places(self) -> int:
        """How many rows may be at work at once, besides those that are parked."""
        return self.width - self.parked

    def start(self, connection: Connection, prepare: Callable[[], tuple[int, int]]) -> bool:
        """Takes the lane and its first rows, in the caller's transaction; False if there is nothing to do here.

        ``prepare`` is called when stage and frame are loaded, and says how many rows are wanted, and how many of them
        may begin at once. May be called again when its transaction was undone.
        """
        self._asked = time.monotonic()
        stage = load_stage(self._process, connection, self.stage_id)
        if stage is None:
            return False
        lease, heartbeat = stage.settings.lease_seconds, stage.settings.heartbeat_seconds
        place = (self._process.worker_id, self.frame_id, self.number)
        frame = runs.start_lane(connection, self.run_id, *place, lease=lease, heartbeat=heartbeat)
        if frame is None:
            return False
        self._set_up(stage, frame)
        self.careful = frame["attempt"] > 1
        # Rows that their target sent away keep their places, also for the lane that comes after; and in a sequence
        # nothing overtakes them.
        self.parked = frame["places_taken"]
        self.parks = self.parked > 0
        if self.ordered and frame["has_ctx"]:
            # What earlier rows of the frame wrote is there for the next one, before the frame ends.
            for writes in stages.frame_ctx(connection, self.frame_id):
                merge_paths(stage.ctx, writes)
        want, begin = prepare()
        taken = self._take(connection, want, begin=0 if self.careful else begin)
        self._first = taken, want, begin
        return True

    def take_first(self, stage: StageNames, frame: NewFrame, prepare: Callable[[], tuple[int, int]]) -> FirstLane:
        """The same for a frame that the caller's transaction makes, with this as its first lane."""
        self._asked = time.monotonic()
        self._set_up(stage, frame.known())
        want, begin = prepare()
        lease, heartbeat = stage.settings.lease_seconds, stage.settings.heartbeat_seconds
        self._made = FirstLane(self.run_id, self._process.worker_id, want, begin, lease, heartbeat)
        return self._made

    def taken(self) -> None:
        """Looks at what :meth:`take_first` has brought, in its transaction."""
        if self._made is not None:
            rows = [TakenRow(index, payload, None, 0, 0) for index, payload in self._made.taken()]
            self._first = rows, self._made.rows, self._made.begin

    def _set_up(self, stage: StageNames, frame: Mapping[str, Any]) -> None:
        self.stage, self.execution_id, self.frame = stage, stage.execution_id, frame
        self.width = frames.lane_width(frame["row_concurrency"], frame["lanes"], self.number)
        self.ordered = frame["row_concurrency"] == 1
        self.alone = frame["lanes"] == 1

    def started(self) -> Sequence[TakenRow]:
        """After the commit: the first rows."""
        taken, want, begin = self._first
        if not self.careful:
            self._sure(self._asked, [row.index for row in taken[:begin]])
        return self._accepted(taken, want)

    def _take(self, connection: Connection, want: int, *, idle: bool = True, begin: int = 0) -> list[TakenRow]:
        if want <= 0:
            return []
        take = partial(rows.take, connection, self.frame_id, self.run_id, self.number, begin=begin)
        floor = 0 if self.parks else self._floor
        taken = take(floor=floor, limit=want, suspects=self.ordered)
        if not taken and floor:
            taken = take(floor=0, limit=want, suspects=self.ordered)
        if not taken and self.careful and not self.ordered and idle:
            taken = take(floor=0, limit=1, suspects=True)
        return taken

    def _accepted(self, taken: Sequence[TakenRow], want: int) -> Sequence[TakenRow]:
        self.exhausted = len(taken) < want
        self._floor = taken[-1].index + 1 if taken and not self.ordered else 0
        return taken

    def begin(self, starting: Sequence[int], open_: Sequence[int]) -> None:
        """Before rows begin: the database confirms that they are still ours, and knows that they have begun.

        ``open_`` have begun, or may (these among them), and are not written yet. If nobody begins one of them soon, it
        has to be asked again. Raises ``LeaseLost``, ``Unreachable``.
        """
        if time.monotonic() < self.sure_until and self._announced.issuperset(starting):
            return
        asked = time.monotonic()
        self._process.beginnings.begin(self.run_id, open_, seconds=self.stage.settings.lease_seconds)
        self._sure(asked, open_)

    def _sure(self, asked: float, announced: Sequence[int]) -> None:
        self._announced = frozenset(announced)
        settings = self._process.settings
        sure = min(SURE_SECONDS, self.stage.settings.lease_seconds / 4, settings.dead_after_seconds / 4)
        # At least for a moment from now: where every answer took longer than that, none would ever begin.
        self.sure_until = max(asked + sure, time.monotonic() + sure / 10)

    # -- exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, outcomes: Sequence[RowOutcome], told: Told, want: int, after: After | None) -> Exchanged:
        """Writes outcomes and what there is to tell, and takes up to ``want`` rows. ``after``: nothing else is at work
        or waits, and that is what follows if the frame ends with this."""
        done = self.write(partial(self._exchange, outcomes, told, want, after), after)
        if want and not done.stop:
            self._accepted(done.taken, want)
        return done

    def _exchange(
        self,
        outcomes: Sequence[RowOutcome],
        told: Told,
        want: int,
        after: After | None,
        connection: Connection,
    ) -> Exchanged:
        self._tell(connection, told)
        if outcomes:
            again = self._process.settings.republish_seconds
            last = after is not None
            end = rows.finish(connection, self.frame_id, self.run_id, outcomes, republish_seconds=again, last=last)
            if end.ended and after is not None:
                after.decide(connection, self.execution_id)
                return Exchanged(stop=True, over=True, frame=end.frame)
            if end.ended or end.stopping:
                return Exchanged(stop=True, frame=end.frame)
        elif frames.stopping(connection, self.frame_id):
            return Exchanged(stop=True)
        if self.parked:
            self.parked = runs.places_taken(connection, self.frame_id, self.number)
        return Exchanged(self._take(connection, want, idle=after is not None))

    def _tell(self, connection: Connection, told: Told) -> None:
        if told.lines:
            place = self.execution_id, self.stage_id, self.frame_id
            limit = self._process.settings.log_bytes
            lines.write(connection, place, self.run_id, told.lines, limit_bytes=limit)
        if told.events and runs.held(connection, self.run_id):
            events.append(connection, self.execution_id, told.events, frame_id=self.frame_id)

    def write(self, work: Callable[[Connection], T], after: After | None = None) -> T:
        """Runs a write (with what follows, ``after``) while our lease may still hold; waits for PostgreSQL as long as
        that."""
        return (after or self._process.db).run(work, patience_seconds=self.stage.settings.lease_seconds)

    def read(self, look: Callable[[Connection], T]) -> T:
        """Reads with the same patience."""
        return self._process.db.read(look, patience_seconds=self.stage.settings.lease_seconds)

    def cancelled(self) -> bool:
        """Has the execution been told to end?"""
        return self.read(lambda connection: executions.cancelling(connection, self.execution_id))

    def open_payloads(self) -> list[Any]:
        """What the rows of the frame that have not ended were claimed as."""
        payloads = self.read(lambda connection: rows.open_payloads(connection, self.frame_id))
        return [self.stage.opener.open(payload) for payload in payloads]

    def holds(self) -> bool:
        """Are the rows still the lane's? Not if the database is away for as long as the lease."""
        try:
            return self.read(lambda connection: runs.held(connection, self.run_id))
        except ServiceError:
            return False

    # -- rows that wait elsewhere ----------------------------------------------------------------------------------

    def park(self, index: int, end: Parked, retries: int) -> None:
        """The row waits outside the lane; where its target asked for that, or rows are in order, it keeps its place."""
        counts = end.throttled or self.ordered
        self.write(
            lambda connection: rows.park(
                connection,
                self.frame_id,
                self.run_id,
                index,
                end.position.document(),
                seconds=end.seconds,
                retries=retries,
                counts=counts,
                waits_for=end.child,
            )
        )
        if counts:
            self._parked_one()

    def start_child(self, index: int, end: Called, retries: int) -> bool:
        """Starts a child and parks its row; it counts against the lane's width, but holds no slot. False if the
        execution starts nothing any more."""
        place = children.Place(
            self.execution_id, self.stage_id, self.stage.step.name, self.frame_id, self.run_id, index
        )
        again = self._process.settings.republish_seconds
        position = end.position.document()
        started = self.write(
            lambda connection: children.start(
                connection, place, end.child, position, retries=retries, republish_seconds=again
            )
        )
        if started:
            self._parked_one()
        return started

    def _parked_one(self) -> None:
        self.parked += 1
        self.parks = True

    # -- giving back -----------------------------------------------------------------------------------------------

    def leave(self, back: Sequence[Back]) -> list[Dispatch]:
        """Hands over what has not begun; another holder may work beside the rows that are still in the air here."""
        return self.write(partial(self._leave, back))

    def _leave(self, back: Sequence[Back], connection: Connection) -> list[Dispatch]:
        rows.release(connection, self.frame_id, self.run_id, back)
        frame = runs.leave_lane(connection, self.run_id, self.frame_id)
        return [] if frame is None else self._lane_again(connection, frame)

    def give_up(self, back: Sequence[Back], told: Told, at_work: int) -> list[Dispatch]:
        """Gives the lane up; rows that are left over get a fresh one. ``at_work``: rows that had no time to end."""
        dispatches = self._process.db.run(partial(self._give_up, back, told, at_work))
        watch.rows_again(self._handed_over)
        return dispatches

    def _give_up(self, back: Sequence[Back], told: Told, at_work: int, connection: Connection) -> list[Dispatch]:
        self._tell(connection, told)
        rows.release(connection, self.frame_id, self.run_id, back)
        frame = runs.finish_lane(connection, self.run_id, self.frame_id)
        if frame is None or frame["status"] != "RUNNING":
            return []
        if at_work:  # the grace time is over, and our process ends: they begin again elsewhere
            abandon_rows()
            place = (self.stage.step.name, self.stage_id, self.frame_id)
            crashes.hand_over(connection, self.execution_id, *place, self.number, at_work)
            self._handed_over = at_work
        if frame["stopping"] and frames.skip_unstarted(connection, self.frame_id) == 0:
            frames.end(connection, self.frame_id, republish_seconds=self._process.settings.republish_seconds)
            return [Dispatch("orchestrate", self.execution_id)]
        return self._lane_again(connection, frame)

    def _lane_again(self, connection: Connection, frame: Mapping[str, Any]) -> list[Dispatch]:
        # Rows may have woken since the lane last looked: their own message was refused, as we held the lane.
        if (self.ordered and frame["parked"]) or not rows.ready(connection, self.frame_id):
            return []
        if runs.places_taken(connection, self.frame_id, self.number) >= self.width:
            return []
        place = {"execution_id": self.execution_id, "stage_id": self.stage_id, "frame_id": self.frame_id}
        again = {**place, "lane": self.number, "step_name": self.stage.step.name}
        return [lane_again(self._process, connection, again)]
