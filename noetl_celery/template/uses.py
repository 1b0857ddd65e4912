"""What a template looks up, and whether it minds when that is missing: for checks of playbooks, not for rendering."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jinja2 import TemplateSyntaxError, nodes

from noetl_celery.template.environment import _LAST_FALLBACKS
from noetl_celery.template.expressions import _TOO_DEEP, ENVIRONMENT, _undeclared, has_template

_DEFAULTS = frozenset({"default", "d"})
_ASKING = frozenset({"defined", "undefined", "none"})
#: methods of mappings: `workload.get(…)` asks for no key of that name
_METHODS = frozenset(dir(dict))


@dataclass(frozen=True, slots=True)
class Use:
    """A top-level name in a template, with the key that is asked of it: ``workload.a.b`` → ``workload``, ``a``.

    ``line`` counts from 0 within the text. ``guarded``: the template can do without it (``default``, ``is defined``,
    ``if``, the left of ``or``). ``called``: it is used as a function.
    """

    name: str
    key: str | None
    line: int
    guarded: bool
    called: bool = False


@functools.lru_cache(maxsize=4096)
def uses(source: str, *, condition: bool = False) -> tuple[Use, ...]:
    """Every use of a name that the template does not define itself, in the order of the text.

    ``condition``: text without braces is an expression. Text that does not parse uses nothing.
    """
    tree = _tree(source, condition)
    if tree is None:
        return ()
    names = _undeclared(tree) - _LAST_FALLBACKS.keys()
    guarded = {pair for node in _guards(tree) for pair in _pairs(node, names)}
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    return tuple(
        Use(name, key, node.lineno - 1, (name, key) in guarded or (name, None) in guarded, id(node) in called)
        for name, key, node in _looked_up(tree, names)
    )


def sole_expression(source: str, *, condition: bool = False) -> nodes.Expr | None:
    """The tree of the one expression that a text is; None if it is anything else, or does not parse."""
    tree = _tree(source, condition)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    parts = [
        part for part in tree.body[0].nodes if not (isinstance(part, nodes.TemplateData) and not part.data.strip())
    ]
    return parts[0] if len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData) else None


def text_beside(source: str) -> str | None:
    """Plain text that stands beside the expressions of a template without statements (``== 1`` in ``{{ x }} == 1``)."""
    tree = _tree(source, False)
    if tree is None or any(not isinstance(node, nodes.Output) for node in tree.body):
        return None
    parts = [part for node in tree.body if isinstance(node, nodes.Output) for part in node.nodes]
    text = " ".join(part.data.strip() for part in parts if isinstance(part, nodes.TemplateData)).strip()
    return text if text and any(not isinstance(part, nodes.TemplateData) for part in parts) else None


def _tree(source: str, condition: bool) -> nodes.Template | None:
    if not has_template(source):
        if not condition:
            return None
        source = "{{ " + source + " }}"
    try:
        return ENVIRONMENT.parse(source)
    except (TemplateSyntaxError, *_TOO_DEEP):
        return None


def _guards(tree: nodes.Node) -> Iterator[nodes.Node]:
    """The parts of a template that may be missing."""
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        if node.node is not None and node.name in (_DEFAULTS if isinstance(node, nodes.Filter) else _ASKING):
            yield node.node
    yield from (choice.test for choice in tree.find_all(nodes.CondExpr))
    yield from (choice.test for choice in tree.find_all(nodes.If))
    for either in tree.find_all(nodes.Or):
        yield either.left


def _pairs(node: nodes.Node, names: Iterable[str]) -> set[tuple[str, str | None]]:
    return {(name, key) for name, key, _ in _looked_up(node, frozenset(names))}


def _looked_up(tree: nodes.Node, names: frozenset[str]) -> list[tuple[str, str | None, nodes.Node]]:
    found: list[tuple[str, str | None, nodes.Node]] = []
    waiting: list[nodes.Node] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Name):
            if node.ctx == "load" and node.name in names:
                found.append((node.name, None, node))
            continue
        key = _key(node)
        if isinstance(node, nodes.Getattr | nodes.Getitem) and isinstance(node.node, nodes.Name) and key is not None:
            if node.node.name in names:
                found.append((node.node.name, None if key in _METHODS else key, node.node))
            continue
        waiting.extend(reversed(list(node.iter_child_nodes())))
    return found


def _key(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None
