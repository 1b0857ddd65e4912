"""The tool kinds of this process: built in, or installed as entry points of the group ``noetl_celery.tools``."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.errors import InputError
from noetl_celery.tools.base import Tool
from noetl_celery.tools.keys import COMMON
from noetl_celery.tools.plugins import Plugins

GROUP = "noetl_celery.tools"
#: named here too, so that they work from a source tree and with the metadata of an older install
BUILT_IN: Mapping[str, str] = {
    "artifact": "noetl_celery.tools.artifact:ArtifactTool",
    "duckdb": "noetl_celery.tools.duckdb:DuckdbTool",
    "http": "noetl_celery.tools.http:HttpTool",
    "noop": "noetl_celery.tools.noop:NoopTool",
    "postgres": "noetl_celery.tools.postgres:PostgresTool",
    "python": "noetl_celery.tools.python:PythonTool",
    "shell": "noetl_celery.tools.shell:ShellTool",
    "transfer": "noetl_celery.tools.transfer:TransferTool",
}


class ToolRegistry:
    """Finds tools by kind. A kind is imported when it is first used, and has one instance per registry.

    A plugin may replace a built-in kind by an entry point of its name. Safe to use from several threads.
    """

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """``tools``: instances that come before anything installed (for tests and embedding)."""
        self._tools: dict[str, Tool] = {tool.kind: tool for tool in tools}
        self._plugins = Plugins(GROUP, BUILT_IN, "tool")
        self._lock = threading.Lock()

    def kinds(self) -> list[str]:
        """Every kind that :meth:`get` knows, sorted."""
        return sorted({*self._tools, *self._plugins.names()})

    def get(self, kind: str) -> Tool:
        """The tool of this kind. Raises ``InputError`` for an unknown kind and for a plugin that cannot be loaded."""
        tool = self._tools.get(kind)
        if tool is not None:
            return tool
        with self._lock:
            if kind not in self._tools:
                made = self._plugins.make(kind, self._tools)
                if not isinstance(made, Tool):
                    raise self._plugins.refused(kind, made)
                self._tools[kind] = made
            return self._tools[kind]

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        """What is wrong with a tool's keys as written; a tool that cannot be loaded is a complaint about ``kind``."""
        return self._plugins.checked(kind, lambda: self.get(kind).check(config))

    def raw_keys(self, kind: str) -> frozenset[str]:
        """The keys of this kind that are never rendered; none if it cannot be had, of which :meth:`check` complains."""
        try:
            return self.get(kind).raw_keys
        except InputError:
            return frozenset()

    def keys(self, kind: str) -> frozenset[str] | None:
        """The keys that this kind says it has, with those that every kind has; None if it does not say."""
        try:
            own = getattr(self.get(kind), "keys", None)
        except InputError:
            return None
        return frozenset(own) | COMMON if isinstance(own, frozenset) else None

    def close(self) -> None:
        """Closes every tool that was used; may be called twice, and the tools may be used again after it."""
        for tool in list(self._tools.values()):
            tool.close()
