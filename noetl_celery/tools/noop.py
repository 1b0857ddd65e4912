"""The tool that does nothing: its result is what the playbook wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.keys import Complaint, unknown_keys


class NoopTool:
    """Returns ``result``, rendered, or None."""

    kind = "noop"
    raw_keys: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset({"result"})

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Only unknown keys can be wrong here."""
        return unknown_keys(config, self.keys)

    def run(self, call: ToolCall) -> Any:
        """The value of ``result``."""
        return call.config.get("result")

    def close(self) -> None:
        """Nothing to end."""
