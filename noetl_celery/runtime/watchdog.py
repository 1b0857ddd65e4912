"""Notices a node that takes nothing although messages wait and it is idle.

A consumer may stay connected to a restarted or reset Redis and never be handed a message again (celery issues 9054,
10205). Nothing raises then; only the backlog tells. Such a node shuts down with an exit code of its own, and whoever
supervises it (``noetl-celery worker``, a container) starts a fresh one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery.worker import state

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
#: looks in a row at which messages waited and nothing was taken
PATIENCE = 6
EXIT_CODE = 75


class Watchdog:
    """Counts such looks. ``taken``: messages received so far; ``active``: at work now; ``backlog``: waiting, or
    None if Redis cannot be asked; ``end``: called once the patience is over."""

    def __init__(
        self,
        taken: Callable[[], int],
        active: Callable[[], int],
        backlog: Callable[[], int | None],
        end: Callable[[], Any],
    ) -> None:
        self._taken, self._active, self._backlog, self._end = taken, active, backlog, end
        self._last = -1
        self._starved = 0

    def look(self) -> None:
        """One look; cheap while the node is busy."""
        taken = self._taken()
        idle = taken == self._last and not self._active()
        self._last = taken
        self._starved = self._starved + 1 if idle and self._backlog() else 0
        if self._starved >= PATIENCE:
            log.error("messages wait, but this node has been handed none for a while: it starts afresh")
            self._starved = 0
            self._end()


def watch(consumer: Any) -> None:
    """Lets a Celery consumer's own timer look after it, from ``worker_ready`` on."""
    queues = list(consumer.app.amqp.queues.consume_from)

    def backlog() -> int | None:
        try:
            with consumer.app.connection_for_read() as connection:
                client = connection.default_channel.client
                return sum(int(client.llen(queue)) for queue in queues)
        except Exception:
            return None  # Redis is away: Celery itself reconnects

    def end() -> None:
        state.should_stop = EXIT_CODE

    dog = Watchdog(
        taken=lambda: sum(state.total_count.values()),
        active=lambda: len(state.reserved_requests),
        backlog=backlog,
        end=end,
    )
    consumer.timer.call_repeatedly(LOOK_SECONDS, dog.look)
