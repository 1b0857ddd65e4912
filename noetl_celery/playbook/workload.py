"""The values that a run brings, over those that its playbook has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def deep_merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``; mappings on both sides are merged, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = deep_merged(before, value) if both else value  # type: ignore[arg-type]
    return result
