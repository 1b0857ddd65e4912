"""A YAML value with templates in it, compiled once and rendered many times."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from noetl_celery.errors import TemplateError
from noetl_celery.template.environment import Names, as_text
from noetl_celery.template.expressions import (
    ENVIRONMENT,
    Expression,
    Placed,
    Statements,
    TemplateSyntax,
    as_native,
    compile_expression,
    has_template,
    parse,
)
from noetl_celery.template.lazy import Lazy
from noetl_celery.template.missing import Missing, MissingUsed
from noetl_celery.template.report import expression_error, statements_error

_NO = frozenset({"", "false", "0", "no", "none", "null", "off"})
#: what a copy may share
_ATOMS = frozenset({str, int, float, bool, type(None)})

Path = tuple[str | int, ...]


class _Node(Protocol):
    """A part of a value: renders itself, and names what it needs."""

    names: frozenset[str]
    result_refs: frozenset[str]

    def render(self, names: Names) -> Any: ...


class Value:
    """A compiled value: a tree of mappings, lists, text, numbers, with templates in the text.

    Immutable and safe to share between threads. ``raw`` is the value as written, ``constant`` says that there is no
    template in it, ``names`` are the top-level names it looks up, ``result_refs`` every X of which it asks
    ``X.results``.
    """

    __slots__ = ("_condition", "_copy", "_root", "constant", "names", "place", "raw", "result_refs")

    def __init__(self, raw: Any, root: _Node | None, *, place: str, condition: Expression | None = None) -> None:
        self.raw = raw
        self.place = place
        self.constant = root is None
        self.names: frozenset[str] = root.names if root is not None else frozenset()
        self.result_refs: frozenset[str] = root.result_refs if root is not None else frozenset()
        self._root = root
        self._copy = _copier(raw)
        self._condition = condition

    def render(self, names: Mapping[str, Any]) -> Any:
        """The value with ``names`` filled in. Only the names in :attr:`names` are looked up.

        Data that an expression refers to is returned as it is, not copied: treat it as read-only. What is kept
        elsewhere is loaded. Raises :class:`~noetl_celery.errors.TemplateError`.
        """
        root = self._root
        if root is None:
            return self._copy()
        return root.render(_names(self.names, names))

    def lazy(self, names: Mapping[str, Any]) -> Any:
        """The same, but the value of a single expression that is kept elsewhere is not loaded: it may be lazy."""
        root = self._root
        return root.lazy(_names(self.names, names)) if isinstance(root, _Single) else self.render(names)

    def test(self, names: Mapping[str, Any]) -> bool:
        """The value as a condition: missing is false, and so are ``''``, ``'false'``, ``'no'``, ``'0'``, ``'none'``.

        Text without braces is read as an expression. Raises :class:`~noetl_celery.errors.TemplateError` for
        anything but a missing value.
        """
        root = self._root
        if root is None:
            if not isinstance(self.raw, str) or self.raw.strip().lower() in _NO:
                return truth(self.raw)
            return _bare_condition(self.raw, self.place).test(names)
        try:
            return truth(self.lazy(names))
        except TemplateError as error:
            if isinstance(error.__cause__, MissingUsed):
                return False
            raise

    def __repr__(self) -> str:
        return f"Value({self.raw!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.raw == other.raw and self.constant == other.constant

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Value:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_compiled_again, (self.raw, self.place, self.constant))


def compile_value(
    raw: Any,
    *,
    place: str,
    line: int | None = None,
    line_of: Callable[[Path], int | None] | None = None,
    constant_keys: frozenset[str] = frozenset(),
    problems: list[TemplateSyntax] | None = None,
) -> Value:
    """Compiles any YAML value.

    ``place`` says in errors where the value stands (``step 's', task 't'``); ``line`` is the line on which its text
    starts, ``line_of`` the same for every string inside by its path. Top-level keys in ``constant_keys`` are kept as
    written. Raises :class:`TemplateSyntax` for the first template that does not parse, or, given ``problems``, appends
    every one to it and leaves the text as it is.
    """
    compiler = _Compiler(place, line, line_of, problems)
    root = compiler.node(raw, (), constant_keys)
    return Value(raw, root, place=place)


def compile_condition(raw: Any, *, place: str, line: int | None = None) -> Value:
    """Compiles a ``when``: as :func:`compile_value`, but text without braces is an expression.

    Raises :class:`TemplateSyntax`.
    """
    if not isinstance(raw, str) or has_template(raw) or raw.strip().lower() in _NO:
        return compile_value(raw, place=place, line=line)
    return Value(raw, _Single(Placed(compile_expression(raw), 0), place, line), place=place)


def constant(raw: Any, *, place: str = "a constant") -> Value:
    """A value that is never rendered, whatever its text looks like."""
    return Value(raw, None, place=place)


def truth(value: Any) -> bool:
    """Whether a rendered condition holds."""
    if isinstance(value, str):
        return value.strip().lower() not in _NO
    return bool(value)


@functools.lru_cache(maxsize=1024)
def _bare_condition(raw: str, place: str) -> Value:
    try:
        return compile_condition(raw, place=place)
    except TemplateSyntax as error:
        raise TemplateError(f"{raw} in {place}: {error.message}", expression=raw, place=place) from None


def _copier(value: Any) -> Callable[[], Any]:
    """Gives a part without templates, anew each time if it can be changed. How it is copied is decided once."""
    if not isinstance(value, dict | list):
        return lambda: value
    items = value.values() if isinstance(value, dict) else value
    if type(value) in (dict, list) and all(type(item) in _ATOMS for item in items):
        return value.copy
    return lambda: copy.deepcopy(value)


def _compiled_again(raw: Any, place: str, was_constant: bool) -> Value:
    return constant(raw, place=place) if was_constant else compile_value(raw, place=place)


def _names(used: frozenset[str], given: Mapping[str, Any]) -> Names:
    present = {}
    for name in used:
        try:
            present[name] = given[name]
        except KeyError:
            continue
    return Names(ENVIRONMENT, present, given)


class _Single:
    """A string that is exactly one expression: keeps the type."""

    __slots__ = ("_expression", "_fresh", "_line", "_place", "names", "result_refs")

    def __init__(self, placed: Placed, place: str, line: int | None) -> None:
        self._expression = placed.expression
        self._fresh = placed.expression.fresh
        self._place = place
        self._line = None if line is None else line + placed.line
        self.names = placed.expression.names
        self.result_refs = placed.expression.result_refs

    def render(self, names: Names) -> Any:
        return self._value(names, lazy=False)

    def lazy(self, names: Names) -> Any:
        """The same, but a value that is kept elsewhere is not loaded."""
        return self._value(names, lazy=True)

    def _value(self, names: Names, *, lazy: bool) -> Any:
        try:
            value = self._expression.value(names)
            return value if lazy and isinstance(value, Lazy) else as_native(value, self._fresh)
        except Exception as error:
            raise expression_error(error, self._expression, names, place=self._place, line=self._line) from error


class _Text:
    """Text with expressions in it."""

    __slots__ = ("_line", "_parts", "_place", "names", "result_refs")

    def __init__(self, parts: tuple[str | Placed, ...], place: str, line: int | None) -> None:
        self._parts = parts
        self._place = place
        self._line = line
        expressions = [part.expression for part in parts if isinstance(part, Placed)]
        self.names = frozenset().union(*(expression.names for expression in expressions))
        self.result_refs = frozenset().union(*(expression.result_refs for expression in expressions))

    def render(self, names: Names) -> str:
        pieces: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            try:
                pieces.append(as_text(_iterated(part.expression.value(names))))
            except Exception as error:
                line = None if self._line is None else self._line + part.line
                raise expression_error(error, part.expression, names, place=self._place, line=line) from error
        return "".join(pieces)


def _iterated(value: Any) -> Any:
    """A generator (``map``, ``select``) printed is its items, not its address."""
    return as_native(value, True) if hasattr(value, "__next__") else value


class _Block:
    """A template with statements."""

    __slots__ = ("_line", "_place", "_statements", "names", "result_refs")

    def __init__(self, statements: Statements, place: str, line: int | None) -> None:
        self._statements = statements
        self._place = place
        self._line = line
        self.names = statements.names
        self.result_refs = statements.result_refs

    def render(self, names: Names) -> str:
        try:
            return self._statements.text(names)
        except Exception as error:
            raise statements_error(error, self._statements, names, place=self._place, line=self._line) from error


class _Static:
    """A part without templates inside a value with some."""

    __slots__ = ("_copy", "names", "result_refs")

    def __init__(self, value: Any) -> None:
        self._copy = _copier(value)
        self.names: frozenset[str] = frozenset()
        self.result_refs: frozenset[str] = frozenset()

    def render(self, names: Names) -> Any:
        return self._copy()


class _Items:
    """A list with templates inside."""

    __slots__ = ("_items", "names", "result_refs")

    def __init__(self, items: list[_Node]) -> None:
        self._items = items
        self.names = frozenset().union(*(item.names for item in items))
        self.result_refs = frozenset().union(*(item.result_refs for item in items))

    def render(self, names: Names) -> list[Any]:
        return [item.render(names) for item in self._items]


class _Pairs:
    """A mapping with templates inside, in values or keys."""

    __slots__ = ("_pairs", "names", "result_refs")

    def __init__(self, pairs: list[tuple[str | _Node, _Node]]) -> None:
        self._pairs = pairs
        nodes = [node for pair in pairs for node in pair if not isinstance(node, str)]
        self.names = frozenset().union(*(node.names for node in nodes))
        self.result_refs = frozenset().union(*(node.result_refs for node in nodes))

    def render(self, names: Names) -> dict[str, Any]:
        return {
            key if isinstance(key, str) else as_text(key.render(names)): node.render(names) for key, node in self._pairs
        }


class _Compiler:
    """Walks a value; ``None`` stands for a part without templates."""

    def __init__(
        self,
        place: str,
        line: int | None,
        line_of: Callable[[Path], int | None] | None,
        problems: list[TemplateSyntax] | None,
    ) -> None:
        self._place = place
        self._line = line
        self._line_of = line_of
        self._problems = problems

    def node(self, raw: Any, path: Path, skip: frozenset[str] = frozenset()) -> _Node | None:
        if isinstance(raw, str):
            return self._string(raw, path)
        if isinstance(raw, Mapping):
            return self._mapping(raw, path, skip)
        if isinstance(raw, list | tuple):
            nodes = [self.node(item, (*path, index)) for index, item in enumerate(raw)]
            if all(node is None for node in nodes):
                return None
            return _Items([_Static(item) if node is None else node for item, node in zip(raw, nodes, strict=True)])
        return None

    def _mapping(self, raw: Mapping[Any, Any], path: Path, skip: frozenset[str]) -> _Node | None:
        keys = {key: self._key(key, path) for key in raw}
        nodes = {key: None if key in skip else self.node(item, (*path, key)) for key, item in raw.items()}
        if all(node is None for node in nodes.values()) and all(isinstance(key, str) for key in keys.values()):
            return None
        return _Pairs([(keys[key], nodes[key] or _Static(item)) for key, item in raw.items()])

    def _key(self, key: Any, path: Path) -> str | _Node:
        node = self._string(key, (*path, key)) if isinstance(key, str) else None
        return str(key) if node is None else node

    def _string(self, raw: str, path: Path) -> _Node | None:
        if not has_template(raw):
            return None
        line = self._line if self._line_of is None else self._line_of(path)
        place = _inside(self._place, path)
        try:
            parsed = parse(raw)
        except TemplateSyntax as error:
            error.path = path
            if self._problems is None:
                raise
            self._problems.append(error)
            return None
        if isinstance(parsed, Placed):
            return _Single(parsed, place, line)
        if isinstance(parsed, Statements):
            return _Block(parsed, place, line)
        return _Static(parsed) if isinstance(parsed, str) else _Text(parsed, place, line)


def _inside(place: str, path: Path) -> str:
    """``step 's', task 't'`` and ``('params', 'page')`` → ``step 's', task 't', params.page``."""
    return f"{place}, {'.'.join(str(part) for part in path)}" if path else place


__all__ = ["Missing", "Value", "compile_condition", "compile_value", "constant", "truth"]
