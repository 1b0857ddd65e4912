"""Errors of templates in words: which expression, where, what is missing in which value, and what is near it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, UndefinedError

from noetl_celery.errors import TemplateError
from noetl_celery.hiding import hidden
from noetl_celery.template.expressions import ENVIRONMENT, Expression, Statements
from noetl_celery.template.lazy import TooLarge
from noetl_celery.template.missing import NO_OWNER, Missing, MissingUsed, close_names, kind_of

if TYPE_CHECKING:
    from noetl_celery.template.environment import Names

_LONGEST = 160


def expression_error(
    error: Exception, expression: Expression, names: Names, *, place: str, line: int | None
) -> TemplateError:
    """The :class:`TemplateError` for what an expression raised."""
    where = _where(place, line)
    reason = _reason(error, expression.tree, names)
    return _error(f"{{{{ {expression.source} }}}}", reason, where)


def statements_error(
    error: Exception, statements: Statements, names: Names, *, place: str, line: int | None
) -> TemplateError:
    """The :class:`TemplateError` for what a template with ``{% … %}`` raised; shows the line of it."""
    within = _line_within(error, statements)
    lines = statements.source.splitlines() or [""]
    shown = lines[min(within, len(lines) - 1)].strip()
    where = _where(place, None if line is None else line + within)
    return _error(shown, _reason(error, None, names), where)


def _error(shown: str, reason: str, where: str) -> TemplateError:
    shown = hidden(" ".join(shown.split()))
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    return TemplateError(f"{shown} in {where}: {reason}", expression=shown, place=where)


def _where(place: str, line: int | None) -> str:
    return place if line is None else f"{place}, line {line}"


def _reason(error: Exception, tree: nodes.Expr | None, names: Names) -> str:
    if isinstance(error, MissingUsed):
        return explain(error.value, tree, names)
    if isinstance(error, SecurityError):
        return f"not allowed in a template: {error}"
    if isinstance(error, UndefinedError):
        return str(error.message or "something undefined was used")
    if isinstance(error, ZeroDivisionError):
        return "division by zero"
    if isinstance(error, RecursionError):
        return "the value is nested too deeply"
    if isinstance(error, TooLarge):
        return str(error)
    text = str(error).strip() or "failed"
    return f"{text} ({type(error).__name__})"


def explain(value: Missing, tree: nodes.Expr | None, names: Names) -> str:
    """Says what is missing with its path and what was near: ``ctx.facility.id is undefined: ctx has no facility …``."""
    hint: str | None = value._undefined_hint
    if hint:
        return hint
    if value.owner is NO_OWNER:
        path = _joined(str(value.key), value.trail)
        near = close_names(value.key, _known(names), listing=False)
        return f"`{path}` is undefined" + _tail(f"there is no name `{value.key}`" if value.trail else "", near)
    chain = _find_chain(value, tree, names)
    owner = chain if chain is not None else None
    near = close_names(value.key, value.owner) if isinstance(value.owner, Mapping) else ""
    what = f"`{owner}`" if owner else "the value"
    held = _missing_in(what, value)
    if owner is None:
        return f"`{_joined(str(value.key), value.trail)}` is undefined" + _tail(held, near)
    return f"`{_joined(owner, (value.key, *value.trail))}` is undefined" + _tail(held, near)


def _missing_in(what: str, value: Missing) -> str:
    owner = value.owner
    if isinstance(value.key, int) and isinstance(owner, list | tuple):
        return f"{what} has {len(owner)} items" if owner else f"{what} is an empty list"
    if isinstance(owner, Mapping):
        return f"{what} has no `{value.key}`" if owner else f"{what} is an empty mapping"
    kind = kind_of(owner)
    return f"{what} is a {kind}" if owner is not None else f"{what} is null"


def _tail(*parts: str) -> str:
    said = [part for part in parts if part]
    return f" ({'; '.join(said)})" if said else ""


def _known(names: Names) -> list[str]:
    return [*dict.fromkeys([*names.parent, *names.scope])]


def _joined(start: str, keys: tuple[Any, ...]) -> str:
    text = start
    for key in keys:
        text += f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
    return text


def _find_chain(value: Missing, tree: nodes.Expr | None, names: Names) -> str | None:
    """The text of the part of the expression that is the value in which the key was looked for."""
    if tree is None:
        return None
    candidates = [node for node in _accesses(tree) if _access_key(node) == value.key]
    for node in candidates:
        source: Any = node
        if _evaluate(source.node, names) is value.owner:
            return _text(source.node)
    if len(candidates) == 1:
        only: Any = candidates[0]
        return _text(only.node)
    return None


def _accesses(tree: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(tree, nodes.Getattr | nodes.Getitem):
        yield tree
    yield from tree.find_all((nodes.Getattr, nodes.Getitem))


def _access_key(node: nodes.Node) -> Any:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value
    return NO_OWNER


def _evaluate(node: nodes.Node, names: Names) -> Any:
    """The value of a chain of names, keys and indexes; :data:`NO_OWNER` for anything else."""
    if isinstance(node, nodes.Name):
        return names.resolve_or_missing(node.name)
    key = _access_key(node)
    if key is NO_OWNER:
        return NO_OWNER
    source: Any = node
    value = _evaluate(source.node, names)
    if value is NO_OWNER:
        return NO_OWNER
    return ENVIRONMENT.getitem(value, key)


def _text(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Name):
        return node.name
    key = _access_key(node)
    if key is NO_OWNER:
        return None
    source: Any = node
    start = _text(source.node)
    return None if start is None else _joined(start, (key,))


def _line_within(error: Exception, statements: Statements) -> int:
    """The line (from 0) of the template on which it raised."""
    found = 1
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == "<template>":
            found = statements.template.get_corresponding_lineno(number)
    return max(found - 1, 0)
