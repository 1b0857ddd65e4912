"""Why an execution that one waits for does not get on, if somebody has to do something about it."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING

from noetl_celery.cli.console import warn
from noetl_celery.errors import ServiceError

if TYPE_CHECKING:
    from noetl_celery.execution import Execution
    from noetl_celery.report import Snapshot

#: so long nothing may change; then it is asked why, and again after twice the time
QUIET_SECONDS = 4.0


class Waiting:
    """Told of every look at an execution, it says what :meth:`Execution.explain` wants done first: each thing once."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._last: Hashable = None
        self._since, self._quiet = time.monotonic(), QUIET_SECONDS
        self._said: set[str] = set()

    def look(self, snapshot: Snapshot) -> None:
        """Takes note of a look; what is wrong goes to stderr."""
        key = (snapshot.status, tuple((step.stage_id, step.done, step.frames) for step in snapshot.steps))
        now = time.monotonic()
        if key != self._last or snapshot.away or snapshot.final:
            self._last, self._since, self._quiet = key, now, QUIET_SECONDS
        elif now - self._since >= self._quiet:
            self._quiet *= 2
            self._explain()

    def _explain(self) -> None:
        try:
            reasons = self._execution.explain()
        except ServiceError:
            return
        reason = next((reason for reason in reasons if reason.todo), None)
        if reason is not None and reason.todo not in self._said:
            self._said.add(reason.todo)
            warn(f"{f'{reason.step}: ' if reason.step else ''}{reason.text} → {reason.todo}")
