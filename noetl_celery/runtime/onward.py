"""What follows is done where the task before it ended, as long as that needs no other worker: no message in between.

The outbox has it all the same: should this process die over it, the sweep has it done elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from noetl_celery.runtime.lane import run_lane
from noetl_celery.runtime.orchestrate import orchestrate
from noetl_celery.runtime.process import Process, stop_announced
from noetl_celery.runtime.publish import Messages
from noetl_celery.store.outbox import Dispatch

#: then others get their turn, who have waited for a worker
ONWARD_SECONDS = 1.0


def run_on(process: Process, publisher: Messages, lane: Dispatch) -> None:
    """Runs a lane; when its frame ends with it, decides what is next, and goes on with that if it is one lane of the
    same queue. Safe to run any number of times, as each of its parts is."""
    until = time.monotonic() + ONWARD_SECONDS
    following: Dispatch | None = lane
    while following is not None:
        execution_id = run_lane(process, publisher, following.target, following.stage_id, following.lanes[0])
        if execution_id is None:
            return
        onward = _Onward(publisher, lane.queue if time.monotonic() < until and not stop_announced() else None)
        try:
            orchestrate(process, onward, execution_id)
        except BaseException:
            onward.let_go()
            raise
        following = onward.kept


class _Onward:
    """Messages, of which the first that is a single lane of this queue is kept."""

    def __init__(self, publisher: Messages, queue: str | None) -> None:
        self._publisher, self._queue = publisher, queue
        self.kept: Dispatch | None = None

    def dispatch(self, dispatches: Iterable[Dispatch]) -> bool:
        others = []
        for dispatch in dispatches:
            if self.kept is None and dispatch.queue == self._queue and len(dispatch.lanes) == 1:
                self.kept = dispatch
            else:
                others.append(dispatch)
        return self._publisher.dispatch(others)

    def orchestrate(self, execution_id: int) -> bool:
        return self._publisher.orchestrate(execution_id)

    def let_go(self) -> None:
        """Sends what was kept."""
        if self.kept is not None:
            self._publisher.dispatch([self.kept])
