"""Named fault points: places between a commit and what follows it, where a process may die.

A point costs one dictionary look-up. Tests arm it through ``NOETL_FAULT`` (``point:action[:nth]``, comma
separated) in the environment of the process that is to suffer: ``kill`` sends SIGKILL, ``stop`` SIGSTOP, ``error``
raises. ``nth`` (from 1) is the visit at which it happens; by default the first.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

#: every point, with what has just been made durable there
POINTS = {
    "orchestrate.before_commit": "decided and written, not committed",
    "orchestrate.committed": "decided and committed, not published",
    "claim.taken": "a ticket is taken for a source elsewhere, nothing is claimed",
    "claim.claimed": "rows claimed in an open transaction",
    "claim.recorded": "a tentative frame is durable, the source's claim is not",
    "claim.source_committed": "claim and tentative frame are durable, not confirmed",
    "claim.committed": "frame and claim committed, lanes not published",
    "lane.started": "a lane and its first rows are taken",
    "lane.begun": "rows are noted as begun, none of them has",
    "lane.row_done": "a row's tasks have run, its outcome is not written",
    "lane.child_started": "a child and the row that waits for it are durable, the child is not announced",
    "lane.flushed": "a batch of outcomes is committed",
    "lane.finished": "the lane is given up, the callback not published",
    "submit.committed": "an execution is committed, not published",
}

_lock = threading.Lock()
_visits: Counter[str] = Counter()
_armed: dict[str, tuple[str, int]] | None = None


class FaultInjected(BaseException):
    """Raised at a point armed with ``error``. Nobody catches it: it stands for the end of the process."""


def reached(point: str) -> None:
    """Marks a fault point; does nothing unless it is armed."""
    armed = _load()
    if point not in armed:
        return
    action, nth = armed[point]
    with _lock:
        _visits[point] += 1
        if _visits[point] != nth:
            return
    if action == "error":
        raise FaultInjected(point)
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)


def _load() -> dict[str, tuple[str, int]]:
    global _armed
    if _armed is None:
        armed = {}
        for item in filter(None, os.environ.get("NOETL_FAULT", "").split(",")):
            point, action, *nth = item.split(":")
            if point not in POINTS or action not in {"kill", "stop", "error"}:
                raise ValueError(f"NOETL_FAULT: no such point or action: {item!r}")
            armed[point] = (action, int(nth[0]) if nth else 1)
        _armed = armed
    return _armed
