"""Which queues workers take now, for pages that cannot wait until all of them have answered."""

from __future__ import annotations

import threading
import time

from noetl_celery.client import Noetl

#: so old may an answer be
FRESH_SECONDS = 10.0


class Listening:
    """Remembers what the workers said last, and asks them again in the background whenever that is old.

    Safe to share between threads. Nobody is asked while nobody wants to know.
    """

    def __init__(self, client: Noetl) -> None:
        self._client = client
        self._known: frozenset[str] | None = None
        self._asked_at = -FRESH_SECONDS
        self._lock = threading.Lock()

    def queues(self) -> frozenset[str] | None:
        """The queues; None if nobody knows: it was never asked, or Redis is away. Returns at once."""
        with self._lock:
            now = time.monotonic()
            if now - self._asked_at >= FRESH_SECONDS:
                self._asked_at = now
                threading.Thread(target=self._ask, name="listening", daemon=True).start()
            return self._known

    def _ask(self) -> None:
        self._known = self._client.queues()
