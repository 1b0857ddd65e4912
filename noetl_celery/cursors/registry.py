"""The cursor kinds of this process: built in, or installed as entry points of the group ``noetl_celery.cursors``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from noetl_celery.cursors.base import Cursor
from noetl_celery.cursors.postgres import PostgresCursor
from noetl_celery.errors import InputError

GROUP = "noetl_celery.cursors"


class CursorRegistry:
    """Finds cursor drivers by kind; one instance per kind."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {"postgres": PostgresCursor()}
        self._sources: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}

    def kinds(self) -> list[str]:
        return sorted({*self._cursors, *self._sources})

    def get(self, kind: str) -> Cursor:
        """The driver of this kind. Raises ``InputError`` for an unknown one."""
        if kind not in self._cursors:
            if kind not in self._sources:
                raise InputError(f"unknown cursor kind `{kind}`", hint="known kinds: " + ", ".join(self.kinds()))
            driver = self._sources[kind].load()()
            if not isinstance(driver, Cursor):
                raise InputError(f"the plugin of cursor kind `{kind}` is not a cursor driver")
            self._cursors[kind] = driver
        return self._cursors[kind]

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        """What is wrong with a cursor as written."""
        return self.get(kind).check(config)
