"""The tool kinds of this process: built in, or installed as entry points of the group ``noetl_celery.tools``."""

from __future__ import annotations

import difflib
import importlib
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from noetl_celery.errors import InputError
from noetl_celery.tools.base import Tool

GROUP = "noetl_celery.tools"
#: named here too, so that they work from a source tree and with the metadata of an older install
BUILT_IN: Mapping[str, str] = {
    "http": "noetl_celery.tools.http:HttpTool",
    "noop": "noetl_celery.tools.noop:NoopTool",
    "postgres": "noetl_celery.tools.postgres:PostgresTool",
    "python": "noetl_celery.tools.python:PythonTool",
}


class ToolRegistry:
    """Finds tools by kind. A kind is imported when it is first used, and has one instance per registry.

    A plugin may replace a built-in kind by an entry point of its name. Safe to use from several threads.
    """

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """``tools``: instances that come before anything installed (for tests and embedding)."""
        self._tools: dict[str, Tool] = {tool.kind: tool for tool in tools}
        self._lock = threading.Lock()
        self._sources: dict[str, EntryPoint] | None = None

    def kinds(self) -> list[str]:
        """Every kind that :meth:`get` knows, sorted."""
        return sorted({*self._tools, *BUILT_IN, *self._entry_points()})

    def get(self, kind: str) -> Tool:
        """The tool of this kind. Raises ``InputError`` for an unknown kind and for a plugin that cannot be loaded."""
        tool = self._tools.get(kind)
        if tool is not None:
            return tool
        with self._lock:
            if kind not in self._tools:
                self._tools[kind] = self._load(kind)
            return self._tools[kind]

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        """What is wrong with a tool's keys as written; an unknown kind is a complaint about ``kind``."""
        try:
            tool = self.get(kind)
        except InputError as error:
            return [("kind", str(error))]
        return tool.check(config)

    def raw_keys(self, kind: str) -> frozenset[str]:
        """The keys of this kind that are never rendered. Raises ``InputError`` for an unknown kind."""
        return self.get(kind).raw_keys

    def close(self) -> None:
        """Closes every tool that was used; may be called twice, and the tools may be used again after it."""
        for tool in list(self._tools.values()):
            tool.close()

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._sources is None:
            self._sources = {point.name: point for point in entry_points(group=GROUP)}
        return self._sources

    def _load(self, kind: str) -> Tool:
        point = self._entry_points().get(kind)
        if point is None and kind not in BUILT_IN:
            near = difflib.get_close_matches(str(kind), self.kinds(), n=1)
            hint = f"did you mean `{near[0]}`?" if near else "known kinds: " + ", ".join(self.kinds())
            raise InputError(f"unknown tool kind `{kind}`", hint=hint)
        try:
            made = point.load()() if point is not None else _built_in(kind)
        except Exception as error:
            raise InputError(f"the tool kind `{kind}` cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(made, Tool):
            raise InputError(f"the plugin of tool kind `{kind}` is not a tool: {type(made).__name__}")
        return made


def _built_in(kind: str) -> Any:
    module, _, name = BUILT_IN[kind].partition(":")
    return getattr(importlib.import_module(module), name)()
