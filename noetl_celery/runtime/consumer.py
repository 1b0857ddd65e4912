"""Celery's consumer of messages, for a broker that may go away and come back at any moment."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

log = logging.getLogger(__name__)

#: Celery's own waits between two attempts to connect grow to 30 s: so long nobody would work after a long outage
RECONNECT_SECONDS = 5.0


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Connects again after whatever befell its connection, and tries at least every ``RECONNECT_SECONDS``.

    Celery takes a broken connection apart, and kombu then stumbles over what is missing (AttributeError) when it closes
    it with messages in hand, or acknowledges one. Celery's own consumer would end the node for that.
    """

    connection_errors: tuple[type[BaseException], ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (*self.connection_errors, AttributeError)

    def ensure_connected(self, conn: Any) -> Any:
        """Waits until the connection is there, and returns it."""
        conn.ensure_connection = partial(conn.ensure_connection, interval_max=RECONNECT_SECONDS)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Lets go of a connection that broke. Messages in hand are nothing to save: the outbox has them."""
        try:
            super().on_connection_error_after_connected(exc)
        except AttributeError as error:
            log.debug("what was left of the broken connection could not be closed: %r", error)
