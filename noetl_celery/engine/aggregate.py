"""``loop.aggregate``: reductions over the rows of a loop, folded frame by frame, so that no list of rows is ever held.

The state of each is a small JSON value kept with the open stage; ``finished`` turns it into what people see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from noetl_celery.playbook.plan import Reduction

#: numbers that are added up stay below this, so that no sum of them overflows a float
_LARGEST = 1e200


def fold(state: dict[str, Any], reductions: Iterable[Reduction], rows: Iterable[Mapping[str, Any]]) -> None:
    """Takes the values of a frame's rows, in row order, into ``state``. Null is no value, but for ``sample``."""
    by_name = {reduction.name: reduction for reduction in reductions}
    for values in rows:
        for name, value in values.items():
            reduction = by_name.get(name)
            if reduction is not None:
                state[name] = _next(reduction, state.get(name), value)


def finished(state: Mapping[str, Any], reductions: Iterable[Reduction]) -> dict[str, Any]:
    """Name → value; of no values: 0 for ``count`` and ``sum``, [] for ``sample``, else null."""
    return {reduction.name: _finish(reduction, state.get(reduction.name)) for reduction in reductions}


def _next(reduction: Reduction, before: Any, value: Any) -> Any:
    if reduction.op == "sample":
        kept = list(before or ())
        return [*kept, value] if len(kept) < reduction.limit else kept
    if value is None:
        return before
    match reduction.op:
        case "count":
            return (before or 0) + bool(value)
        case "sum":
            return (before or 0) + _number(reduction, value)
        case "mean":
            total, number = before or (0, 0)
            return [total + _number(reduction, value), number + 1]
        case "min":
            return value if before is None else min(before, value, key=_order)
        case "max":
            return value if before is None else max(before, value, key=_order)
        case "first":
            return [value] if before is None else before
        case _:
            return [value]


def _finish(reduction: Reduction, state: Any) -> Any:
    match reduction.op:
        case "count" | "sum":
            return 0 if state is None else state
        case "mean":
            return None if state is None else state[0] / state[1]
        case "first" | "last":
            return None if state is None else state[0]
        case "sample":
            return state or []
        case _:
            return state


def checked(reduction: Reduction, value: Any) -> Any:
    """``value`` if ``reduction`` can use it. Raises ``TypeError`` saying what it needs."""
    if reduction.op in ("sum", "mean") and value is not None:
        _number(reduction, value)
    return value


def _number(reduction: Reduction, value: Any) -> int | float:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value) if any(char in value for char in ".eE") else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`{reduction.op}` needs a number, not {value!r:.60}")
    if not -_LARGEST < value < _LARGEST:
        raise TypeError(f"`{reduction.op}` needs a number below {_LARGEST:g}, not {str(value)[:60]}")
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Numbers before text before the rest, so that any two values compare."""
    if isinstance(value, int | float):
        return (0, value)
    return (1, value) if isinstance(value, str) else (2, repr(value))
