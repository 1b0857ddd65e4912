"""Celery's Redis backend, for chords alone."""

from __future__ import annotations

import logging
from typing import Any

from celery.backends.redis import RedisBackend
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


class ChordBackend(RedisBackend):  # type: ignore[misc]
    """Keeps what chords count with, and subscribes to nothing.

    Whoever publishes a task here never waits for its result. The stock backend subscribes to a channel per task
    (and per member of a chord) all the same, and keeps the subscriptions: a leak in a process that publishes for
    days, and a wait of 20 seconds when Redis is away.
    """

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """A task was published: nothing to listen to."""

    def add_pending_result(self, result: Any, weak: bool = False, start_drainer: bool = True) -> Any:
        """A chord knows its members' results: nothing to listen to."""
        return result

    def mark_as_done(self, task_id: str, *args: Any, **kwargs: Any) -> None:
        """A member of a chord has ended. Its outcomes are in PostgreSQL, and so is the signal that the callback would
        only tell sooner: a Redis that is away is no failure of the member."""
        try:
            super().mark_as_done(task_id, *args, **kwargs)
        except (RedisError, OSError) as error:
            log.warning("Redis is away, the sweep says what task %s has done: %s", task_id, error)
