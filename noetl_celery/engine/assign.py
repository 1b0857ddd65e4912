"""Writing to dotted paths of ``ctx`` and ``iter``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def assign(target: dict[str, Any], path: str, value: Any) -> None:
    """Sets ``target[a][b] = value`` for the path ``a.b``, making mappings on the way and replacing what is none."""
    *parents, last = path.split(".")
    for name in parents:
        inner = target.get(name)
        # A copy on the way down: the mapping may be shared with a result that somebody else still reads.
        target[name] = target = dict(inner) if isinstance(inner, Mapping) else {}
    target[last] = value


def merge_paths(target: dict[str, Any], writes: Mapping[str, Any]) -> None:
    """Applies ``{path: value}`` writes in their order."""
    for path, value in writes.items():
        assign(target, path, value)
