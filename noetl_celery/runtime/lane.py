"""``noetl.body``: a lane. It takes rows of a frame, runs several at once on threads, and writes outcomes in batches.

Several lanes may work on one frame; each pulls rows as it gets through them, so a slow row holds up nobody else's
share. All writes name the lane's run; when the run is lost the lane stops, and nothing that it still does counts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from noetl_celery import faults
from noetl_celery.engine.assign import merge_paths
from noetl_celery.errors import LeaseLost, NoetlError, ServiceError
from noetl_celery.runtime.crew import Crew, Worked
from noetl_celery.runtime.holding import Back, Holding
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.process import Process, grace_over, pause, stop_announced
from noetl_celery.runtime.row import Called, CalledBack, Ended, RowEnd, RowRunner
from noetl_celery.runtime.sources import acknowledge, keep, source_of
from noetl_celery.runtime.telling import Notes
from noetl_celery.store.db import Connection
from noetl_celery.store.frames import FirstLane, NewFrame
from noetl_celery.store.outbox import Dispatch
from noetl_celery.store.rows import RowOutcome, TakenRow
from noetl_celery.telemetry import logs, watch

if TYPE_CHECKING:
    from noetl_celery.runtime.onward import After, Onward

log = logging.getLogger(__name__)

#: rows taken ahead are those that the lane gets through in about this time; the only lane of a frame leaves none there
AHEAD_SECONDS = 0.3
MOST_AHEAD = 100
#: rows are announced ahead of their beginning: those that begin within this time. So what a crash makes run again is
#: never counted too low, and at most by so much too high
BEGIN_AHEAD_SECONDS = 0.05
#: how often a lane that waits for its rows looks whether it should stop
LOOK_SECONDS = 0.5


class Lane:
    """One delivery's work on one frame."""

    stage: StageNames
    crew: Crew
    notes: Notes
    watch: watch.LaneWatch
    #: what its log lines are about
    about: Mapping[str, str]

    def __init__(self, process: Process, onward: Onward, lane: Dispatch) -> None:
        """``lane``: the first of those that are named there."""
        self.process, self.onward = process, onward
        self.settings = process.settings
        self.held = Holding(process, lane.target, lane.stage_id, lane.lanes[0])
        self.begun = time.monotonic()
        self.waiting: deque[TakenRow] = deque()
        self.air: set[int] = set()
        self.outcomes: list[RowOutcome] = []
        #: their payloads, where the source wants to know what is done
        self.done: list[Any] = []
        self.back: list[Back] = []
        #: on the monotonic clock: when the oldest unwritten outcome came, and when the database was last asked
        self.oldest, self.looked = 0.0, self.begun
        #: when the source is told next which rows are still at work: soon, if this takes longer than a moment
        self.keep_at = self.begun + LOOK_SECONDS
        self.suspect: int | None = None
        #: how long a row takes, as far as this process knows
        self.row_seconds = process.row_seconds.get(lane.stage_id)
        self.closing = threading.Event()
        #: both are told to rows that wait: by the pulse, by a look at the execution
        self.lost = self.cancelled = False
        #: the frame has ended with the last outcomes that were written here, and the lane with it: what follows
        self.over: After | None = None
        #: the node stops: what has not begun was handed over when so many rows were still ours
        self.left_with: int | None = None

    def start(self, connection: Connection) -> bool:
        """Takes the lane and its first rows, in the caller's transaction; :meth:`hold` and :meth:`run` come next. False
        if there is nothing to do here: it has another holder, or its frame has ended."""
        return self.held.start(connection, self._set_up)

    def take_first(self, stage: StageNames, frame: NewFrame) -> FirstLane:
        """The same as the first lane of a frame that the caller's transaction makes; when it has, :meth:`taken`."""
        return self.held.take_first(stage, frame, self._set_up)

    def taken(self) -> None:
        """Its first rows are here. Before the commit: nobody could ask for them after one whose reply is lost."""
        self.held.taken()

    def start_alone(self) -> bool:
        """The same in a transaction of its own. False also if that fails: then the lane is asked for again."""
        try:
            return self.process.db.run(self.start)
        except ServiceError as error:
            log.error("lane %s of frame %s cannot start: %s", self.held.number, self.held.frame_id, error)
            return False

    def hold(self) -> None:
        """The transaction that started it is committed: its lease is kept from now on."""
        self._hold()
        self.waiting.extend(self.held.started())
        faults.reached("lane.started")

    def run(self) -> None:
        """Works on the frame until nothing is left for this lane, or its time is over: then a fresh lane goes on.

        Whatever it raises, its rows are given back.
        """
        held = self.held
        logs.about(self.about)
        try:
            dispatches = self.work()
        except LeaseLost as lost:
            watch.lease_lost("lane")
            log.warning("lane %s of frame %s stops: %s", held.number, held.frame_id, lost)
            return
        except Exception as error:
            self.forfeit()
            if not isinstance(error, ServiceError):
                raise
            log.error("lane %s of frame %s gives up, its rows are run again: %s", held.number, held.frame_id, error)
            return
        finally:
            self.close()
        faults.reached("lane.finished")
        self.onward.dispatch(dispatches)
        if self.over is not None:
            self.over.go_on()

    def _hold(self) -> None:
        lease, heartbeat = self.stage.settings.lease_seconds, self.stage.settings.heartbeat_seconds
        self.process.pulse.hold(self.held.run_id, lease=lease, heartbeat=heartbeat, lost=self._lose)

    def _set_up(self) -> tuple[int, int]:
        stage, frame = self.held.stage, self.held.frame
        self.stage = stage
        self.fail_fast = frame["fail_fast"]
        loop = stage.step.loop
        # Further frames of a collection: it is too long for an event each.
        each = loop is not None and loop.cursor is None and frame["frame_index"] == 0
        few = frame["rows"] <= self.settings.iteration_events
        self.notes = Notes(stage, frame["rows"] if each and few else None)
        self.batch = 1 if loop is not None and loop.frame.ack == "row" else self.settings.outcome_batch_rows
        frame_id = frame["frame_id"]
        stage.extra = {
            "frame_id": frame_id,
            "__frame_max_rows": stage.settings.max_rows,
            "__frame_index": frame["frame_index"],
            "__cursor_frame": frame["frame_index"],
            "__worker_slot_id": f"{frame_id}:{self.held.number}",
            "__claim_token": str(frame["token"] or frame["claim_id"] or frame_id),
        }
        self.watch = watch.lane(stage, frame_id)
        self.about = {
            "execution_id": str(stage.execution_id),
            "step": stage.step.name,
            "frame_id": str(frame_id),
        }
        keep = loop is None or loop.cursor is None
        runner = RowRunner(
            self.process,
            stage,
            partial(pause, lambda: self.lost or self.cancelled),
            keep_results=keep,
            notes=self.notes,
            announce=self.onward.publisher.orchestrate,
            holds=lambda: not self.lost and self.held.holds(),
            watch=self.watch,
            about=self.about,
        )
        self.source = None
        if loop is not None and loop.cursor is not None and self.process.cursors.get(loop.cursor.kind).acknowledges:
            self.source = source_of(self.process, stage, stage.extra)
        self.lifetime = min(self.settings.lane_seconds, stage.settings.max_seconds or math.inf)
        self.crew = Crew(self.process.threads, runner.run, self._goes_on, self.batch)
        return self._wanted(), self._most()

    def work(self) -> list[Dispatch]:
        """Runs rows until there is nothing more to do here. Raises ``LeaseLost``, ``ServiceError``."""
        try:
            self._run_rows()
        except SystemExit:  # Celery ends its pool before we have looked whether we should stop
            with suppress(NoetlError):
                self._exchange(0)
                self.onward.publisher.dispatch(self._end())
            raise
        return self._end()

    def _run_rows(self) -> None:
        while self.over is None:
            if not self.closing.is_set() and self._should_close():
                self.closing.set()
            if self.closing.is_set():
                self._give_back()
            else:
                self._release()
            cut = grace_over()
            if cut or (not self.air and (self.closing.is_set() or not self.waiting)):
                self._exchange(0 if self.closing.is_set() else self._wanted())
                if cut or not self.waiting or self.closing.is_set():
                    break
                continue
            if stop_announced() and self.left_with != len(self.air) + len(self.outcomes):
                self._leave()
            self._collect()
            if self._due():
                self._exchange(self._wanted())

    def _end(self) -> list[Dispatch]:
        if self.over is not None:
            return []
        self.process.pulse.drop(self.held.run_id)  # before the run goes, or the pulse would take it for lost
        self.notes.take()
        return self.held.give_up(self.back, self.notes.told(self.outcomes), len(self.air))

    def _leave(self) -> None:
        """Hands over what has not begun, at once: another worker goes on beside the rows that are still in the air.

        Each of those that ends makes room for one more there.
        """
        self.left_with = len(self.air) + len(self.outcomes)
        self.onward.publisher.dispatch(self.held.leave(self.back))
        self.back.clear()

    def close(self) -> None:
        """Lets go of the lease's extension; rows still at work end by themselves and count for nothing."""
        self.closing.set()
        self.crew.withdraw()
        self.process.pulse.drop(self.held.run_id)
        self.process.remember_rows(self.held.stage_id, self.row_seconds)

    def forfeit(self) -> None:
        """Something went wrong that no row is to blame for: its rows at work end first, then all are run again."""
        self._lose()
        self._withdraw()
        while self.air:
            self.air.difference_update([worked.row.index for worked in self.crew.collect(LOOK_SECONDS, patient=False)])
        self.process.pulse.forfeit(self.held.run_id)

    def _lose(self) -> None:
        self.lost = True
        self.closing.set()

    def _should_close(self) -> bool:
        # Where parked rows hold all places nothing can start: rows that were taken ahead go back, and so does the slot.
        full = self.held.places <= 0 and len(self.air) == self.crew.released
        return full or stop_announced() or time.monotonic() - self.begun >= self.lifetime

    def _release(self) -> None:
        """Lets as many rows begin as may, once the database has confirmed that they are still ours."""
        release: list[TakenRow] = []
        late = bool(self.crew.released) and time.monotonic() >= self.held.sure_until
        if late:  # nobody came to them: rows take longer than it seemed, or this process stood still
            self._withdraw()
            self.row_seconds = None
        most = self._most()
        while self.waiting and len(self.air) < most:
            suspect = self.held.careful and self.waiting[0].crashes > 0
            if self.air and (suspect or self.suspect in self.air):
                break  # a suspect waits until it is alone, and the others until it has ended
            row = self.waiting.popleft()
            self.suspect = row.index if suspect else None
            self.air.add(row.index)
            release.append(row)
        if release or late:
            starting = [row.index for row in release]
            try:
                self.held.begin(starting, self._open())
            except BaseException:
                self.air.difference_update(starting)
                raise
            self.crew.release(release, self.held.sure_until)
        if release:
            faults.reached("lane.begun")
        self.crew.start(self.held.places)

    def _open(self) -> list[int]:
        """The rows that have begun, or may, and are not written yet."""
        called_back = [index for index, position, _ in self.back if position is not None]
        return [*self.air, *(outcome.index for outcome in self.outcomes), *called_back]

    def _most(self) -> int:
        """How many rows may have begun: one for each place, and those that begin in the next moment, unless they are
        counted one by one."""
        places = self.held.places
        if self.batch == 1 or self.held.careful or self.row_seconds is None:
            return places
        return int(places * (1 + BEGIN_AHEAD_SECONDS / max(self.row_seconds, 0.001)))

    def _goes_on(self, end: RowEnd) -> bool:
        """In the row's thread, before it takes another one: what that has to know. False: first the lane has to."""
        if not isinstance(end, Ended):
            return False
        if self.fail_fast and not end.outcome.ok:
            self.closing.set()  # no further row starts; the write tells the other lanes
        if self.held.ordered:
            merge_paths(self.stage.ctx, end.ctx)
        return not (self.closing.is_set() or stop_announced())

    def _collect(self) -> None:
        """Waits for rows to end: for the first one, then until it is time to write."""
        until = self.oldest + self.settings.outcome_batch_seconds if self.outcomes else time.monotonic() + LOOK_SECONDS
        for worked in self.crew.collect(max(0.0, until - time.monotonic()), patient=bool(self.outcomes)):
            self._note(worked)

    def _note(self, worked: Worked) -> None:
        row, end, retries = worked.row, worked.end, worked.retries
        self.air.discard(row.index)
        known = self.row_seconds
        self.row_seconds = worked.seconds if known is None else 0.8 * known + 0.2 * worked.seconds
        self.watch.row(row, end.outcome if isinstance(end, Ended) else None, retries, worked.seconds, worked.at)
        if isinstance(end, Ended):
            faults.reached("lane.row_done")
            if not self.outcomes:
                self.oldest = time.monotonic()
            self.outcomes.append(end.outcome)
            if self.source is not None:
                self.done.append(self.stage.opener.open(row.payload))
        elif isinstance(end, CalledBack):
            self.back.append((row.index, end.position.document(), retries))
        elif isinstance(end, Called):
            self._start_child(row, end, retries)
        else:
            self.held.park(row.index, end, retries)
            self._in_order()

    def _start_child(self, row: TakenRow, end: Called, retries: int) -> None:
        if not self.held.start_child(row.index, end, retries):
            self.back.append((row.index, end.position.document() | {"child": None}, retries))
            return
        faults.reached("lane.child_started")
        self.onward.publisher.orchestrate(end.child.execution_id, end.child.queue)
        self._in_order()

    def _in_order(self) -> None:
        if self.held.ordered and self.held.parked:
            self.closing.set()  # what comes after it has to wait for it

    def _give_back(self) -> None:
        self._withdraw()
        self.back += [(row.index, None, row.retries) for row in self.waiting]
        self.waiting.clear()

    def _withdraw(self) -> None:
        """What has not begun does not begin."""
        withdrawn = self.crew.withdraw()
        self.air.difference_update(row.index for row in withdrawn)
        self.waiting.extendleft(reversed(withdrawn))

    def _due(self) -> bool:
        if self.outcomes and (
            len(self.outcomes) >= self.batch
            or time.monotonic() - self.oldest >= self.settings.outcome_batch_seconds
            or not (self.air or self.waiting)
        ):
            return True
        low = not self.waiting and len(self.air) < self.held.places
        return (low and not self.held.exhausted) or time.monotonic() - self.looked >= LOOK_SECONDS

    def _wanted(self) -> int:
        """How many rows to take now."""
        ahead = free = self.held.places
        if self.closing.is_set() or free <= 0:
            return 0
        if self.batch > 1 and self.held.alone:
            ahead = max(free, MOST_AHEAD)
        elif self.batch > 1 and self.row_seconds is not None:
            ahead = min(MOST_AHEAD, max(free, math.ceil(free * AHEAD_SECONDS / max(self.row_seconds, 0.001))))
        if self.held.careful:
            ahead = 1 if self.held.ordered else free
        return max(0, ahead - len(self.waiting) - (len(self.air) if ahead == free else 0))

    def _exchange(self, want: int) -> None:
        """Writes the outcomes there are and takes up to ``want`` rows, in one transaction."""
        self.looked = time.monotonic()
        if self.lost:
            raise LeaseLost(f"frame {self.held.frame_id}: run {self.held.run_id} lost its lease")
        written, idle = len(self.outcomes), not (self.air or self.waiting or self.back)
        if idle:
            self.process.pulse.drop(self.held.run_id)  # the run may end with this
        after = self.onward.after() if idle else None
        self.notes.take()
        done = self.held.exchange(self.outcomes, self.notes.told(self.outcomes), want, after)
        if done.over:
            self.over = after
        elif idle:
            self._hold()
        if done.stop:
            self.closing.set()
            if self.air:  # they end by themselves, but for those that only wait
                self.cancelled = self.held.cancelled()
        self.waiting.extend(done.taken)
        self.notes.written()
        self.watch.written(self.outcomes[:written], done.frame)
        del self.outcomes[:written]
        if written:
            faults.reached("lane.flushed")
            if self.source is not None:
                acknowledge(self.source, self.done)
                self.done.clear()
        if self.source is not None and self.over is None and self.looked >= self.keep_at:
            at_work = self.held.open_payloads()
            self.keep_at = self.looked + keep(self.process, self.source, self.held.execution_id, at_work)
