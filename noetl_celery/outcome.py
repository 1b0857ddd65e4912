"""What a task returned, as policies, ``set`` and later tasks see it. Pure data, known to engine and tools alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_celery.errors import ErrorInfo


@dataclass(slots=True)
class Outcome:
    """What a task returned, as policies, ``set`` and later tasks see it under ``output`` and ``outcome``."""

    data: Any = None
    error: ErrorInfo | None = None
    http: Mapping[str, Any] = field(default_factory=dict)
    pg: Mapping[str, Any] = field(default_factory=dict)
    py: Mapping[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.error is None

    def envelope(self) -> dict[str, Any]:
        """The mapping that templates see; ``data`` = ``result`` = ``response``, ``error`` empty when ok."""
        return {
            "status": "ok" if self.ok else "error",
            "data": self.data,
            "result": self.data,
            "response": self.data,
            "error": self.error.as_dict() if self.error else {},
            "http": dict(self.http),
            "pg": dict(self.pg),
            "py": dict(self.py),
            "meta": self.meta,
        }
