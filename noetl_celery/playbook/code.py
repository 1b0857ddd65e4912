"""What the python code of a task asks of the execution: read from its source, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_CONTEXT = "context"
_LOOKS = frozenset({"get", "pop", "setdefault"})


def names_of_context(code: str) -> frozenset[str]:
    """The names that code looks up in ``context``: ``context["x"]``, ``context.get("x", …)``, ``"x" in context``.

    Only names that stand there as text are found. Code that does not parse looks up nothing.
    """
    if _CONTEXT not in code:
        return frozenset()
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(key.value for key in _keys(tree) if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _keys(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id="context"), slice=key):
                yield key
            case ast.Call(func=ast.Attribute(value=ast.Name(id="context"), attr=method), args=[key, *_]):
                if method in _LOOKS:
                    yield key
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id="context")]):
                yield key
            case _:
                pass
