"""``output``, ``output_select`` and ``inline_max_bytes`` of a step or task: how its result is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from noetl_celery.playbook.plan import ResultPlan

if TYPE_CHECKING:
    from noetl_celery.playbook.problems import Path
    from noetl_celery.playbook.values import ValueCompiler

_KEYS = ("output_select", "inline_max_bytes")
#: where else a result could be kept: every one of ours is kept in PostgreSQL
_HINTS = frozenset({"store", "scope"})


def result_plan(compiler: ValueCompiler, written: Mapping[str, Any], where: Path) -> ResultPlan | None:
    """What the keys of a step or task, as written at ``where``, say of its result; None if they say nothing."""
    given = {key: (written[key], (*where, key)) for key in _KEYS if written.get(key) is not None}
    output = written.get("output")
    if isinstance(output, Mapping):
        inside = (*where, "output")
        given = {key: (output[key], (*inside, key)) for key in _KEYS if output.get(key) is not None} | given
        for key in output.keys() - {*_KEYS, *_HINTS}:
            compiler._warn(f"`{key}` has no effect in `output`", (*inside, key), code="no-effect")
    elif output is not None:
        hint = "write `output: {output_select: [names], inline_max_bytes: 0}`"
        compiler._warn("`output` is no mapping: it has no effect", (*where, "output"), code="no-effect", hint=hint)
    select: tuple[tuple[str, ...], ...] = ()
    inline: int | None = None
    if "output_select" in given:
        raw, place = given["output_select"]
        if isinstance(raw, Mapping):
            inline = _threshold(compiler, raw, place)
        else:
            select = _names(compiler, raw, place)
    if "inline_max_bytes" in given:
        inline = _bytes(compiler, *given["inline_max_bytes"])
    return ResultPlan(inline, select) if given else None


def _names(compiler: ValueCompiler, raw: Any, where: Path) -> tuple[tuple[str, ...], ...]:
    names = [raw] if isinstance(raw, str) else raw
    wanted = "write names of fields, as `output_select: [status, meta.count]`"
    if not isinstance(names, list):
        compiler._error("`output_select` is a list of names", where, code="wrong-type", hint=wanted)
        return ()
    found = []
    for index, name in enumerate(names):
        parts = tuple(name.split(".")) if isinstance(name, str) else ()
        if not parts or not all(parts) or "{" in name or "[" in name:
            message = f"`output_select`: {name!r} is not a name or a dotted path of names"
            compiler._error(message, (*where, index), code="wrong-value", hint=wanted)
        else:
            found.append(parts)
    return tuple(found)


def _threshold(compiler: ValueCompiler, raw: Mapping[str, Any], where: Path) -> int | None:
    """``{strategy: size_threshold, threshold_kb: 100}``: what is larger is kept elsewhere, and seen as a whole."""
    if raw.get("threshold_kb") is None:
        hint = "write a list of names, or `threshold_kb`"
        compiler._warn("`output_select` without `threshold_kb` has no effect", where, code="no-effect", hint=hint)
        return None
    number = _bytes(compiler, raw["threshold_kb"], (*where, "threshold_kb"))
    return None if number is None else number * 1024


def _bytes(compiler: ValueCompiler, raw: Any, where: Path) -> int | None:
    number = int(raw) if isinstance(raw, str) and raw.strip().isdecimal() else raw
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        key = where[-1]
        compiler._error(f"`{key}` must be a whole number of at least 0, not {raw!r}", where, code="wrong-value")
        return None
    return number
