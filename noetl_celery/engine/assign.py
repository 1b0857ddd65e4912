"""Writing to dotted paths of ``ctx`` and ``iter``, and only what can be kept as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_celery.errors import TemplateError
from noetl_celery.template import jsonable


def storable(value: Any, what: str) -> Any:
    """``value`` as JSON data. ``TemplateError``: it has no such form, and a store that tried would fail for ever."""
    try:
        return jsonable(value)
    except TypeError as error:
        raise TemplateError(f"{what} cannot be kept: {error}") from None


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
