"""What follows from a transaction is decided in it, and begun with it, as far as nothing stands in the way.

Whoever tells an execution something (a frame has ended, a claim is answered) decides at once what comes of it, unless
somebody else holds the execution just now; and a worker for bodies starts the lane that is next with the same commit.
Then it goes on with that lane, or with the claim that is next: one commit for each step of a chain, two for each frame,
and no message in between. The outbox has it all the same: should this process die over it, the sweep has it done
elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import psycopg

from noetl_celery import faults
from noetl_celery.runtime.claim import run_claim
from noetl_celery.runtime.decide import decide
from noetl_celery.runtime.lane import Lane
from noetl_celery.runtime.names import StageNames
from noetl_celery.runtime.process import Process, stop_announced
from noetl_celery.runtime.publish import Messages
from noetl_celery.store import signals
from noetl_celery.store.db import Connection, Reply
from noetl_celery.store.frames import FirstLane, NewFrame
from noetl_celery.store.outbox import Dispatch
from noetl_celery.telemetry import logs

log = logging.getLogger(__name__)

T = TypeVar("T")

#: a worker goes on by itself for so long; then others get their turn, who have waited for one
ONWARD_SECONDS = 1.0


class Onward:
    """What one task leads to. A worker for bodies keeps what is next if it may do it itself; all else is published."""

    def __init__(self, process: Process, publisher: Messages, queue: str | None = None) -> None:
        """``queue``: the one whose lanes may be taken; None: nothing is kept."""
        self.process, self.publisher = process, publisher
        self._queue = queue
        self._until = time.monotonic() + ONWARD_SECONDS
        self._next: Lane | Dispatch | None = None

    def after(self) -> After:
        """What follows from the next transaction."""
        return After(self)

    def orchestrate(self, execution_id: int) -> int:
        """Decides on everything that waits for this execution; returns how many decisions were made.

        Whoever finds the execution locked leaves at once: its signal is committed, and the holder asks again after its
        own commit. After a bounded number of passes the rest is left to a fresh message. Safe to run any number of
        times.
        """
        passes = self.process.settings.orchestrate_passes
        for done in range(passes):
            after = After(self, insists=True)
            if not after.run(partial(after.decide, execution_id=execution_id)):
                return done
            after.publish()
            if not after.pending(execution_id):
                return done + 1
        self.publisher.orchestrate(execution_id)
        return passes

    def pending(self, execution_id: int) -> bool:
        """Has the execution been told something that nobody has decided on?"""
        return self.process.db.read(lambda connection: signals.pending(connection, execution_id)())

    def start(self, connection: Connection, dispatches: list[Dispatch]) -> Lane | None:
        """Starts the first lane that this worker may go on with, in the caller's transaction; it leaves the list."""
        for place, dispatch in enumerate(dispatches):
            if dispatch.kind == "lanes" and self.may_keep(dispatch.queue):
                lane = Lane(self.process, self, dispatch)
                if lane.start(connection):
                    rest = dispatch.lanes[1:]
                    dispatches[place : place + 1] = [replace(dispatch, lanes=rest)] if rest else []
                    return lane
        return None

    def keep(self, lane: Lane) -> None:
        """The transaction that has started this lane is committed."""
        lane.hold()
        self._next = lane

    def dispatch(self, dispatches: Iterable[Dispatch]) -> bool:
        """Publishes what cannot be done here. False: something could not be sent, the sweep will."""
        others = []
        for dispatch in dispatches:
            if dispatch.kind == "claim" and self.may_keep():
                self._next = dispatch
            else:
                others.append(dispatch)
        return self.publisher.dispatch(others)

    def taken(self) -> Lane | Dispatch | None:
        """What is next here."""
        following, self._next = self._next, None
        return following

    def let_go(self) -> None:
        """Somebody else does what was kept."""
        match self.taken():
            case Lane() as lane:
                lane.forfeit()
            case Dispatch() as dispatch:
                self.publisher.dispatch([dispatch])

    def may_keep(self, queue: str | None = None) -> bool:
        """May this worker go on by itself with what comes next (with a lane: of this ``queue``)?"""
        late = time.monotonic() >= self._until or stop_announced()
        return self._queue is not None and queue in (None, self._queue) and self._next is None and not late


class After:
    """What follows from one transaction: made before it, told in it, gone on with after it."""

    def __init__(self, onward: Onward, *, insists: bool = False) -> None:
        """``insists``: the transaction is there for its decision, and is nothing without it."""
        self._onward, self._insists = onward, insists
        self._attempts = 0
        #: on the monotonic clock
        self.begun = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._execution_id: int | None = None
        self._dispatches: list[Dispatch] = []
        self._decided = False
        self._lane: Lane | None = None
        #: the execution's inbox after the commit
        self._pending: Reply[bool] | None = None
        #: what is told of the transaction when it is committed
        self._notes: list[Callable[[], None]] = []

    def run(self, work: Callable[[Connection], T], **options: Any) -> T:
        """Runs the transaction as :meth:`Database.run` does, and raises what that does.

        What follows does not keep it from being committed: where it goes wrong, the transaction is run without it.
        """

        def attempt(connection: Connection) -> T:
            self._clear()
            self._attempts += 1
            return work(connection)

        try:
            return self._onward.process.db.run(attempt, then=self._look, **options)
        except (psycopg.Error, _Failed) as error:
            if self._attempts != 1:
                raise
            log.warning("what follows is not done together with what led to it: %s", error, exc_info=error)
            return self._onward.process.db.run(attempt, **options)

    def _look(self, connection: Connection) -> None:
        if self._decided and self._execution_id is not None:
            self._pending = signals.pending(connection, self._execution_id)

    def note(self, tell: Callable[[], None]) -> None:
        """In the transaction: something to be called when it is committed, if it is."""
        self._notes.append(tell)

    def decide(
        self, connection: Connection, execution_id: int, dispatches: Iterable[Dispatch] = (), *, told: bool = True
    ) -> bool:
        """In the transaction: one pass over the execution, and the start of the lane that comes of it. True if there
        was a decision.

        ``dispatches`` come of the transaction itself; ``told``: it has told the execution something.
        """
        self._execution_id = execution_id if told else None
        self._dispatches += dispatches
        with _following():
            if told and (self._attempts == 1 or self._insists):
                decided = decide(self._onward.process, connection, execution_id, self.take_first, self.note)
                self._decided = decided is not None
                self._dispatches += decided or ()
            if self._lane is not None:
                self._lane.taken()
            elif self._attempts == 1:
                self._lane = self._onward.start(connection, self._dispatches)
        return self._decided

    def take_first(self, names: Callable[[], StageNames | None], frame: NewFrame, queue: str) -> FirstLane | None:
        """In the transaction that makes a frame, before :meth:`decide`: its first lane, if this worker may go on with
        it."""
        if self._attempts != 1 or self._lane is not None or not self._onward.may_keep(queue):
            return None
        with _following():
            stage = names()
            if stage is None:
                return None
            self._lane = Lane(self._onward.process, self._onward, frame.lanes_of(queue))
            return self._lane.take_first(stage, frame)

    def publish(self) -> None:
        """After the commit: holds the lane that was started, has the rest done."""
        for tell in self._notes:
            tell()
        if self._lane is not None:
            self._onward.keep(self._lane)
        if self._decided:
            faults.reached("orchestrate.committed")
        self._onward.dispatch(self._dispatches)

    def go_on(self) -> None:
        """After the commit: the same, and what others have told the execution meanwhile."""
        self.publish()
        if self._execution_id is not None and (not self._decided or self.pending(self._execution_id)):
            self._onward.orchestrate(self._execution_id)

    def pending(self, execution_id: int) -> bool:
        """Has somebody told the execution something that this decision did not see?"""
        if self._pending is not None:
            with suppress(psycopg.Error):  # the reply was lost
                return self._pending()
        return self._onward.pending(execution_id)


class _Failed(Exception):
    """What follows from a transaction could not be decided or begun."""


@contextmanager
def _following() -> Iterator[None]:
    try:
        yield
    except psycopg.Error:
        raise
    except Exception as error:
        raise _Failed(f"{type(error).__name__}: {error}") from error


def run_on(process: Process, publisher: Messages, message: Dispatch) -> None:
    """Does what a message asks for, then what follows; ``message.queue`` is that of a worker for bodies, or empty.

    Safe to run any number of times, as its parts are.
    """
    onward = Onward(process, publisher, message.queue or None)
    following: Lane | Dispatch | None = message
    try:
        with logs.apart():
            while following is not None:
                _do(process, onward, following)
                following = onward.taken()
    except BaseException:
        onward.let_go()
        raise


def _do(process: Process, onward: Onward, following: Lane | Dispatch) -> None:
    if isinstance(following, Lane):
        following.run()
        return
    logs.about({"execution_id": following.execution_id})
    match following.kind:
        case "lanes":
            lane = Lane(process, onward, following)
            if lane.start_alone():
                onward.keep(lane)
        case "claim":
            run_claim(process, onward, following.target)
        case _:
            onward.orchestrate(following.execution_id)
