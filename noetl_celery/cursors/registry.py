"""The cursor kinds of this process: built in, or installed as entry points of the group ``noetl_celery.cursors``."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.cursors.base import Cursor
from noetl_celery.tools.plugins import Plugins

GROUP = "noetl_celery.cursors"
#: named here too, so that they work from a source tree and with the metadata of an older install
BUILT_IN: Mapping[str, str] = {
    "postgres": "noetl_celery.cursors.postgres:PostgresCursor",
    "redis_stream": "noetl_celery.cursors.redis_stream:RedisStreamCursor",
}


class CursorRegistry:
    """Finds cursor drivers by kind. A kind is imported when it is first used, and has one instance per registry.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._plugins = Plugins(GROUP, BUILT_IN, "cursor")
        self._cursors: dict[str, Cursor] = {}
        self._lock = threading.Lock()

    def kinds(self) -> list[str]:
        """Every kind that :meth:`get` knows, sorted."""
        return self._plugins.names()

    def get(self, kind: str) -> Cursor:
        """The driver of this kind. Raises ``InputError`` for an unknown kind and for a plugin that cannot be loaded."""
        driver = self._cursors.get(kind)
        if driver is not None:
            return driver
        with self._lock:
            if kind not in self._cursors:
                made = self._plugins.make(kind)
                if not isinstance(made, Cursor):
                    raise self._plugins.refused(kind, made)
                self._cursors[kind] = made
            return self._cursors[kind]

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        """What is wrong with a cursor as written; one that cannot be loaded is a complaint about ``kind``."""
        return self._plugins.checked(kind, lambda: self.get(kind).check(config))
