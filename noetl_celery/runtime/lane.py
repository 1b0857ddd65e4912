"""``noetl.body``: a lane. It takes rows of a frame, runs several at once on threads, and writes outcomes in batches.

Several lanes may work on one frame; each pulls rows as it gets through them, so a slow row holds up nobody else's
share. All writes name the lane's run; when the run is lost the lane stops, and nothing that it still does counts.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from noetl_celery import faults
from noetl_celery.engine.assign import merge_paths
from noetl_celery.errors import LeaseLost, NoetlError, ServiceError
from noetl_celery.ids import new_id
from noetl_celery.runtime.lanes import lane_again
from noetl_celery.runtime.names import StageNames, load_stage
from noetl_celery.runtime.process import Process, abandon_rows, grace_over, pause, stop_announced
from noetl_celery.runtime.publish import Publisher
from noetl_celery.runtime.row import Called, CalledBack, Ended, Parked, RowEnd, RowRunner
from noetl_celery.runtime.sources import acknowledge, keep, source_of
from noetl_celery.runtime.telling import Notes
from noetl_celery.store import children, crashes, events, executions, frames, rows, runs, stages
from noetl_celery.store.outbox import Dispatch
from noetl_celery.store.rows import RowOutcome, TakenRow

log = logging.getLogger(__name__)

#: rows taken ahead are those that the lane gets through in about this time
AHEAD_SECONDS = 0.3
MOST_AHEAD = 100
#: how often a lane that waits for its rows looks whether it should stop
LOOK_SECONDS = 0.5

Back = tuple[int, Mapping[str, Any] | None, int]


def run_lane(process: Process, publisher: Publisher, frame_id: int, stage_id: int, number: int) -> None:
    """Works on a frame until nothing is left for this lane, or its time is over: then a fresh lane goes on.

    Safe to run any number of times, also at once: a lane has one holder, and a frame that has ended none. Whatever it
    raises, its rows are given back.
    """
    lane = Lane(process, publisher, frame_id, stage_id, number)
    try:
        if not lane.start():
            return
        dispatches = lane.work()
    except LeaseLost as lost:
        log.warning("lane %s of frame %s stops: %s", number, frame_id, lost)
        return
    except Exception as error:
        lane.forfeit()
        if not isinstance(error, ServiceError):
            raise
        log.error("lane %s of frame %s gives up, its rows are run again: %s", number, frame_id, error)
        return
    finally:
        lane.close()
    faults.reached("lane.finished")
    publisher.dispatch(dispatches)
    if lane.unneeded_lanes:
        # The chord waits for lanes that have nothing left to start; its callback is not awaited.
        publisher.orchestrate(lane.execution_id)


class Lane:
    """One delivery's work on one frame."""

    stage: StageNames
    runner: RowRunner
    notes: Notes

    def __init__(self, process: Process, publisher: Publisher, frame_id: int, stage_id: int, number: int) -> None:
        self.process, self.publisher = process, publisher
        self.frame_id, self.stage_id, self.number = frame_id, stage_id, number
        self.settings = process.settings
        self.run_id = new_id()
        self.execution_id = 0
        self.begun = time.monotonic()
        self.waiting: deque[TakenRow] = deque()
        self.air: set[int] = set()
        self.ended: queue.SimpleQueue[tuple[TakenRow, RowEnd, int, float]] = queue.SimpleQueue()
        self.outcomes: list[RowOutcome] = []
        #: their payloads, where the source wants to know what is done
        self.done: list[Any] = []
        self.back: list[Back] = []
        #: on the monotonic clock: when the oldest unwritten outcome came, and when the database was last asked
        self.oldest = self.looked = 0.0
        #: when the source is told next which rows are still at work: soon, if this takes longer than a moment
        self.keep_at = self.begun + LOOK_SECONDS
        self.parked = 0
        #: rows of this lane have been parked: those that woke come before rows that were never begun
        self.parks = False
        self.suspect: int | None = None
        self.floor = 0
        self.row_seconds: float | None = None
        self.exhausted = self.unneeded_lanes = False
        self.closing = threading.Event()
        #: both are told to rows that wait: by the pulse, by a look at the execution
        self.lost = self.cancelled = False
        #: the node stops: what has not begun was handed over when so many rows were still ours
        self.left_with: int | None = None
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> bool:
        """Takes the lane and its first rows. False if there is nothing to do here."""
        taken = self.process.db.run(self._take_lane)
        if taken is None:
            return False
        self._accept(taken, self.width)
        faults.reached("lane.started")
        lease, heartbeat = self.stage.settings.lease_seconds, self.stage.settings.heartbeat_seconds
        self.process.pulse.hold(self.run_id, lease=lease, heartbeat=heartbeat, lost=self._lose)
        self._pool = ThreadPoolExecutor(self.width, thread_name_prefix=f"row-{self.number}")
        return True

    def _take_lane(self, connection: Connection) -> list[TakenRow] | None:
        stage = load_stage(self.process, connection, self.stage_id)
        if stage is None:
            return None
        settings = stage.settings
        if not runs.start_lane(
            connection,
            self.run_id,
            self.process.worker_id,
            self.frame_id,
            self.number,
            lease=settings.lease_seconds,
            heartbeat=settings.heartbeat_seconds,
        ):
            return None
        frame = frames.load(connection, self.frame_id)
        assert frame is not None
        self._set_up(connection, stage, frame)
        # Rows that their target sent away keep their places, also for the lane that comes after; and in a sequence
        # nothing overtakes them.
        self.parked = rows.places_taken(connection, self.frame_id, self.number)
        self.parks = self.parked > 0
        return self._take(connection, self.width - self.parked)

    def _set_up(self, connection: Connection, stage: StageNames, frame: Mapping[str, Any]) -> None:
        self.stage, self.execution_id = stage, stage.execution_id
        self.width = frames.lane_width(frame["row_concurrency"], frame["lanes"], self.number)
        self.ordered = frame["row_concurrency"] == 1
        #: somebody died over this frame: suspects run alone from now on
        self.careful = frame["attempt"] > 1
        self.several = frame["lanes"] > 1
        self.fail_fast = frame["fail_fast"]
        loop = stage.step.loop
        # Further frames of a collection: it is too long for an event each.
        each = loop is not None and loop.cursor is None and frame["frame_index"] == 0
        few = frame["rows"] <= self.settings.iteration_events
        self.notes = Notes(stage, frame["rows"] if each and few else None)
        self.batch = 1 if loop is not None and loop.frame.ack == "row" else self.settings.outcome_batch_rows
        self.stage.extra = {
            "frame_id": self.frame_id,
            "__frame_max_rows": stage.settings.max_rows,
            "__frame_index": frame["frame_index"],
            "__cursor_frame": frame["frame_index"],
            "__worker_slot_id": f"{self.frame_id}:{self.number}",
            "__claim_token": str(frame["token"] or frame["claim_id"] or frame["frame_id"]),
        }
        keep = loop is None or loop.cursor is None
        self.runner = RowRunner(
            self.process,
            stage,
            partial(pause, lambda: self.lost or self.cancelled),
            keep_results=keep,
            notes=self.notes,
            announce=self.publisher.orchestrate,
            holds=self._holds,
        )
        self.source = None
        if loop is not None and loop.cursor is not None and self.process.cursors.get(loop.cursor.kind).acknowledges:
            self.source = source_of(self.process, stage, stage.extra)
        self.lifetime = min(self.settings.lane_seconds, stage.settings.max_seconds or math.inf)
        if self.ordered:
            # What earlier rows of the frame wrote is there for the next one, before the frame ends.
            for writes in stages.frame_ctx(connection, self.frame_id):
                merge_paths(self.stage.ctx, writes)

    def work(self) -> list[Dispatch]:
        """Runs rows until there is nothing more to do here. Raises ``LeaseLost``, ``ServiceError``."""
        try:
            self._run_rows()
        except SystemExit:  # Celery ends its pool before we have looked whether we should stop
            with suppress(NoetlError):
                self._exchange(0)
                self.publisher.dispatch(self._end())
            raise
        return self._end()

    def _run_rows(self) -> None:
        while True:
            if not self.closing.is_set() and self._should_close():
                self.closing.set()
            if self.closing.is_set():
                self._give_back()
            else:
                self._start_rows()
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
        self.process.pulse.drop(self.run_id)  # before the run goes, or the pulse would take it for lost
        self.notes.take()
        return self.process.db.run(self.give_up)

    def _leave(self) -> None:
        """Hands over what has not begun, at once: another worker goes on beside the rows that are still in the air.

        Each of those that ends makes room for one more there.
        """
        self.left_with = len(self.air) + len(self.outcomes)
        self.publisher.dispatch(self._checked(self._hand_over))
        self.back.clear()

    def _hand_over(self, connection: Connection) -> list[Dispatch]:
        rows.release(connection, self.frame_id, self.run_id, self.back)
        frame = runs.leave_lane(connection, self.run_id, self.frame_id)
        return [] if frame is None else self._lane_again(connection, frame)

    def close(self) -> None:
        """Lets go of threads and the lease's extension; rows still at work end by themselves and count for nothing."""
        self.closing.set()
        self.process.pulse.drop(self.run_id)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def forfeit(self) -> None:
        """Something went wrong that no row is to blame for: its rows at work end first, then all are run again."""
        self._lose()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self.process.pulse.forfeit(self.run_id)

    def _lose(self) -> None:
        self.lost = True
        self.closing.set()

    def _holds(self) -> bool:
        try:
            return not self.lost and bool(self._checked(lambda connection: runs.held(connection, self.run_id)))
        except ServiceError:
            return False  # away for as long as the lease

    def _should_close(self) -> bool:
        # Where parked rows hold all places nothing can start: rows that were taken ahead go back, and so does the slot.
        full = not self.air and self.parked >= self.width
        return full or stop_announced() or time.monotonic() - self.begun >= self.lifetime

    def _start_rows(self) -> None:
        """Begins as many rows as there are places for, once the database has confirmed that they are still ours."""
        begin: list[TakenRow] = []
        while self.waiting and len(self.air) < self.width - self.parked:
            suspect = self.careful and self.waiting[0].crashes > 0
            if self.air and (suspect or self.suspect in self.air):
                break  # a suspect waits until it is alone, and the others until it has ended
            row = self.waiting.popleft()
            self.suspect = row.index if suspect else None
            self.air.add(row.index)
            begin.append(row)
        if not begin:
            return
        unwritten = [outcome.index for outcome in self.outcomes]
        unwritten += [index for index, position, _ in self.back if position is not None]
        self.process.beginnings.begin(self.run_id, [*unwritten, *self.air], seconds=self.stage.settings.lease_seconds)
        faults.reached("lane.begun")
        assert self._pool is not None
        for row in begin:
            self._pool.submit(self._run_row, row)

    def _run_row(self, row: TakenRow) -> None:
        begun = time.monotonic()
        end, retries = self.runner.run(row)
        self.ended.put((row, end, retries, time.monotonic() - begun))

    def _collect(self) -> None:
        """Waits for rows to end: for the first one, then takes all that have ended."""
        until = self.oldest + self.settings.outcome_batch_seconds if self.outcomes else time.monotonic() + LOOK_SECONDS
        try:
            item = self.ended.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        while True:
            self._note(*item)
            try:
                item = self.ended.get_nowait()
            except queue.Empty:
                return

    def _note(self, row: TakenRow, end: RowEnd, retries: int, seconds: float) -> None:
        self.air.discard(row.index)
        self.row_seconds = seconds if self.row_seconds is None else 0.8 * self.row_seconds + 0.2 * seconds
        if isinstance(end, Ended):
            faults.reached("lane.row_done")
            if not self.outcomes:
                self.oldest = time.monotonic()
            self.outcomes.append(end.outcome)
            if self.source is not None:
                self.done.append(self.stage.opener.open(row.payload))
            if self.fail_fast and not end.outcome.ok:
                self.closing.set()  # no further row starts; the write tells the other lanes
            if self.ordered:
                merge_paths(self.stage.ctx, end.ctx)
        elif isinstance(end, CalledBack):
            self.back.append((row.index, end.position.document(), retries))
        elif isinstance(end, Called):
            self._start_child(row, end, retries)
        else:
            self._park(row, end, retries)

    def _park(self, row: TakenRow, end: Parked, retries: int) -> None:
        counts = end.throttled or self.ordered
        self._checked(
            lambda connection: rows.park(
                connection,
                self.frame_id,
                self.run_id,
                row.index,
                end.position.document(),
                seconds=end.seconds,
                retries=retries,
                counts=counts,
                waits_for=end.child,
            )
        )
        if counts:
            self._parked_one()

    def _start_child(self, row: TakenRow, end: Called, retries: int) -> None:
        """Starts a child and parks its row; the child counts against the lane's width, but holds no slot."""
        place = children.Place(
            self.execution_id, self.stage_id, self.stage.step.name, self.frame_id, self.run_id, row.index
        )
        again = self.settings.republish_seconds
        position = end.position.document()
        started = self._checked(
            lambda connection: children.start(
                connection, place, end.child, position, retries=retries, republish_seconds=again
            )
        )
        if not started:
            self.back.append((row.index, position | {"child": None}, retries))
            return
        faults.reached("lane.child_started")
        self.publisher.orchestrate(end.child.execution_id)
        self._parked_one()

    def _parked_one(self) -> None:
        self.parked += 1
        self.parks = True
        if self.ordered:
            self.closing.set()  # what comes after it has to wait for it

    def _give_back(self) -> None:
        self.back += [(row.index, None, row.retries) for row in self.waiting]
        self.waiting.clear()

    def _due(self) -> bool:
        if self.outcomes and (
            len(self.outcomes) >= self.batch
            or time.monotonic() - self.oldest >= self.settings.outcome_batch_seconds
            or not self.air
        ):
            return True
        low = not self.waiting and len(self.air) < self.width - self.parked
        return (low and not self.exhausted) or time.monotonic() - self.looked >= LOOK_SECONDS

    def _wanted(self) -> int:
        """How many rows to take now."""
        ahead = free = self.width - self.parked
        if self.closing.is_set() or free <= 0:
            return 0
        if self.batch > 1 and not self.careful and self.row_seconds is not None:
            ahead = min(MOST_AHEAD, max(free, math.ceil(free * AHEAD_SECONDS / max(self.row_seconds, 0.001))))
        if self.careful:
            ahead = 1 if self.ordered else free
        return max(0, ahead - len(self.waiting) - (len(self.air) if ahead == free else 0))

    def _exchange(self, want: int) -> None:
        """Writes the outcomes there are and takes up to ``want`` rows, in one transaction."""
        self.looked = time.monotonic()
        if self.lost:
            raise LeaseLost(f"frame {self.frame_id}: run {self.run_id} lost its lease")
        written = len(self.outcomes)
        self.notes.take()
        # Only what was committed counts: after a lost connection the transaction is run again, and takes them again.
        stop, taken = self._checked(lambda connection: self._write_and_take(connection, want))
        if stop:
            self.closing.set()
            if self.air:  # they end by themselves, but for those that only wait
                self.cancelled = self._checked(lambda connection: executions.cancelling(connection, self.execution_id))
        elif want:
            self._accept(taken, want)
        self.notes.written()
        del self.outcomes[:written]
        if written:
            faults.reached("lane.flushed")
            if self.source is not None:
                acknowledge(self.source, self.done)
                self.done.clear()
        if self.source is not None and self.looked >= self.keep_at:
            payloads = self._checked(lambda connection: rows.open_payloads(connection, self.frame_id))
            at_work = [self.stage.opener.open(payload) for payload in payloads]
            self.keep_at = self.looked + keep(self.process, self.source, self.execution_id, at_work)

    def _write_and_take(self, connection: Connection, want: int) -> tuple[bool, list[TakenRow]]:
        self._write_events(connection)
        if self.outcomes:
            end = rows.finish(
                connection,
                self.frame_id,
                self.run_id,
                self.outcomes,
                republish_seconds=self.settings.republish_seconds,
            )
            if end.ended:
                self.unneeded_lanes = self.several
            if end.ended or end.stopping:
                return True, []
        elif frames.stopping(connection, self.frame_id):
            return True, []
        if self.parked:
            self.parked = rows.places_taken(connection, self.frame_id, self.number)
        return False, self._take(connection, want)

    def _write_events(self, connection: Connection) -> None:
        told = self.notes.events(self.outcomes)
        if told and runs.held(connection, self.run_id):
            events.append(connection, self.execution_id, told, frame_id=self.frame_id)

    def _take(self, connection: Connection, want: int) -> list[TakenRow]:
        if want <= 0:
            return []
        take = partial(rows.take, connection, self.frame_id, self.run_id, self.number)
        floor = 0 if self.parks else self.floor
        taken = take(floor=floor, limit=want, suspects=self.ordered)
        if not taken and floor:
            taken = take(floor=0, limit=want, suspects=self.ordered)
        if not taken and self.careful and not self.ordered and not self.air and not self.waiting:
            taken = take(floor=0, limit=1, suspects=True)
        return taken

    def _accept(self, taken: list[TakenRow], want: int) -> None:
        self.exhausted = len(taken) < want
        self.floor = taken[-1].index + 1 if taken and not self.ordered else 0
        self.waiting.extend(taken)

    def _checked(self, work: Any) -> Any:
        """Runs a write while our lease may still hold; waits for PostgreSQL as long as that."""
        return self.process.db.run(work, patience_seconds=self.stage.settings.lease_seconds)

    def give_up(self, connection: Connection) -> list[Dispatch]:
        """Gives the lane up; rows that are left over get a fresh one."""
        self._write_events(connection)
        rows.release(connection, self.frame_id, self.run_id, self.back)
        frame = runs.finish_lane(connection, self.run_id, self.frame_id)
        if frame is None or frame["status"] != "RUNNING":
            return []
        if self.air:  # the grace time is over, and our process ends: they begin again elsewhere
            abandon_rows()
            place = (self.stage.step.name, self.stage_id, self.frame_id)
            crashes.hand_over(connection, self.execution_id, *place, self.number, len(self.air))
        again = self.settings.republish_seconds
        if frame["stopping"] and frames.skip_unstarted(connection, self.frame_id) == 0:
            frames.end(connection, self.frame_id, republish_seconds=again)
            return []
        return self._lane_again(connection, frame)

    def _lane_again(self, connection: Connection, frame: Mapping[str, Any]) -> list[Dispatch]:
        # Rows may have woken since the lane last looked: their own message was refused, as we held the lane.
        ready = rows.ready(connection, self.frame_id)
        taken = rows.places_taken(connection, self.frame_id, self.number)
        if not ready or (self.ordered and frame["parked"]) or taken >= self.width:
            return []
        place = {"execution_id": self.execution_id, "stage_id": self.stage_id, "frame_id": self.frame_id}
        again = {**place, "lane": self.number, "step_name": self.stage.step.name}
        return [lane_again(self.process, connection, again)]
