"""Template text to compiled parts: single expressions, text with expressions in it, and text with statements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.environment import Template
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser

from noetl_celery.template.environment import Environment, Names, as_text, result_key, resultify
from noetl_celery.template.lazy import Lazy, plain
from noetl_celery.template.missing import Missing

ENVIRONMENT = Environment()

#: what Python's own compiler says of what Jinja made of the author's text
_TOO_DEEP = (RecursionError, SyntaxError, MemoryError)
_RESULT = "_value"
_ANSWERED_BY_GLOBALS = frozenset({"now"})
_LOADING: tuple[type[nodes.Node], ...] = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_OWN_VALUES = (nodes.List, nodes.Tuple, nodes.Dict, nodes.Call, nodes.Filter, nodes.Slice)


class TemplateSyntax(Exception):
    """A template does not parse. ``expression`` is its text, ``line`` counts from 0 within the template.

    ``path`` says where in the value given to ``compile_value`` the template stands (keys and indexes).
    """

    def __init__(self, message: str, *, expression: str, line: int = 0, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.expression = expression
        self.line = line
        self.path = path


@dataclass(frozen=True, slots=True)
class Expression:
    """One compiled expression. ``fresh``: its value may be one that it made itself (list, generator, date)."""

    source: str
    run: Callable[[Names], Any]
    names: frozenset[str]
    result_refs: frozenset[str]
    fresh: bool
    tree: nodes.Expr

    def value(self, names: Names) -> Any:
        """The value, of whatever type; a :class:`Missing` if there is none. Raises what the expression raises."""
        for _ in self.run(names):
            pass
        return names.vars[_RESULT]


@dataclass(frozen=True, slots=True)
class Placed:
    """An expression at a place of its template: ``line`` counts from 0."""

    expression: Expression
    line: int


@dataclass(frozen=True, slots=True)
class Statements:
    """A template with ``{% … %}``: rendered by Jinja as a whole, to text."""

    source: str
    template: Template
    names: frozenset[str]
    result_refs: frozenset[str]

    def text(self, names: Names) -> str:
        """The text. Raises what the template raises."""
        return "".join(self.template.root_render_func(names))


Part = str | Placed


class Token(NamedTuple):
    """A token of Jinja's lexer; ``line`` counts from 1."""

    line: int
    kind: str
    text: str


def parse(source: str) -> Placed | tuple[Part, ...] | Statements | str:
    """What a string is: plain text (str), one expression, text with expressions, or a template with statements.

    Raises :class:`TemplateSyntax`.
    """
    if not has_template(source):
        return source
    tokens = tokens_of(source)
    if any(token.kind == "block_begin" for token in tokens):
        return _statements(source)
    parts = list(_parts(tokens))
    significant = [part for part in parts if not isinstance(part, str) or part.strip()]
    if len(significant) == 1 and isinstance(significant[0], Placed):
        return significant[0]
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return tuple(parts)


def has_template(source: str) -> bool:
    """Whether a string holds anything that Jinja reads."""
    return "{{" in source or "{%" in source or "{#" in source


@functools.lru_cache(maxsize=8192)
def compile_expression(source: str) -> Expression:
    """Compiles the text of one expression (without braces). Raises :class:`TemplateSyntax`; the line is relative."""
    try:
        parser = Parser(ENVIRONMENT, source, state="variable")
        tree = parser.parse_tuple(with_condexpr=True)
        if not parser.stream.eos:
            token = parser.stream.current
            raise TemplateSyntaxError(f"unexpected {token.value!r} after the expression", token.lineno)
        original = nodes.Template([nodes.Output([tree], lineno=1)], lineno=1)
        refs = _result_refs(original)
        body = nodes.Template([nodes.Assign(nodes.Name(_RESULT, "store"), tree, lineno=1)], lineno=1)
        body.set_environment(ENVIRONMENT)
        names = _undeclared(body)
        fresh = isinstance(tree, _OWN_VALUES) or any(True for _ in tree.find_all(_OWN_VALUES))
        pristine = _copy_of(source)
        resultify(body)
        template = _template(body)
    except TemplateSyntaxError as error:
        raise _syntax(error, source) from None
    except _TOO_DEEP:
        raise TemplateSyntax("it is too long or nested too deeply", expression=source.strip()) from None
    return Expression(source.strip(), template.root_render_func, names, refs, fresh, pristine)


def as_native(value: Any, fresh: bool) -> Any:
    """The value of a single expression: data as it is; what the expression made itself, as plain JSON-like data.

    A lazy value is loaded.

    Raises :class:`~noetl_celery.template.missing.MissingUsed` if it is (or holds) a missing value.
    """
    if isinstance(value, Undefined):
        if isinstance(value, Missing):
            value.fail()
        return None  # `{{ a if b }}` without an else
    return _plain(value) if fresh else plain(value)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None or kind is float:
        return value
    if kind is dict:
        return {key: _plain(item) for key, item in value.items()}
    if kind is list:
        return [_plain(item) for item in value]
    if isinstance(value, Undefined):
        return as_native(value, True)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Lazy):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if callable(value) and not hasattr(value, "__iter__"):
        raise TypeError("is a function or method: call it with (…)")
    if hasattr(value, "__iter__") and not isinstance(value, bytes | bytearray):
        return [_plain(item) for item in value]
    text = as_text(value)
    return text if hasattr(value, "isoformat") else value


def tokens_of(source: str) -> list[Token]:
    """The tokens of Jinja's lexer, white space included. Raises :class:`TemplateSyntax`."""
    try:
        return [Token(*token) for token in ENVIRONMENT.lex(source)]
    except TemplateSyntaxError as error:
        raise _syntax(error, source) from None


def _parts(tokens: list[Token]) -> Iterator[Part]:
    """Text and expressions in order; adjacent text is joined."""
    text: list[str] = []
    inside: list[str] | None = None
    line = 1
    for token in tokens:
        if token.kind == "variable_begin":
            inside, line = [], token.line
        elif token.kind == "variable_end" and inside is not None:
            if text:
                yield "".join(text)
                text = []
            yield _placed("".join(inside), line - 1)
            inside = None
        elif inside is not None:
            inside.append(token.text)
        elif token.kind == "data":
            text.append(token.text)
    if inside is not None:
        shown = ("{{" + "".join(inside)).strip().splitlines()[0]
        raise TemplateSyntax("`{{` is never closed with `}}`", expression=shown, line=line - 1)
    if text:
        yield "".join(text)


def _placed(source: str, line: int) -> Placed:
    if not source.strip():
        raise TemplateSyntax("an expression is expected between {{ and }}", expression="{{ }}", line=line)
    try:
        return Placed(compile_expression(source), line)
    except TemplateSyntax as error:
        raise TemplateSyntax(error.message, expression=error.expression, line=error.line + line) from None


def _statements(source: str) -> Statements:
    try:
        tree = ENVIRONMENT.parse(source)
        loading = next(_loading_nodes(tree), None)
        if loading is not None:
            raise TemplateSyntaxError("a template cannot load another one here", loading.lineno)
        names = _undeclared(tree)
        refs = _result_refs(tree)
        resultify(tree)
        return Statements(source, _template(tree), names, refs)
    except TemplateSyntaxError as error:
        raise _syntax(error, source) from None
    except _TOO_DEEP:
        raise TemplateSyntax("it is too long or nested too deeply", expression=source.strip()) from None


def _undeclared(tree: nodes.Template) -> frozenset[str]:
    """The top-level names that a template looks up; like Jinja's own, but without its (cubic) constant folding."""
    generator = TrackingCodeGenerator(ENVIRONMENT)
    generator.optimizer = None
    generator.visit(tree)
    return frozenset(generator.undeclared_identifiers - _ANSWERED_BY_GLOBALS)


def _loading_nodes(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Statements that load another template."""
    for kind in _LOADING:
        yield from tree.find_all(kind)


def _template(tree: nodes.Template) -> Template:
    tree.set_environment(ENVIRONMENT)
    code = ENVIRONMENT.compile(tree)
    return Template.from_code(ENVIRONMENT, code, {}, None)


def _copy_of(source: str) -> nodes.Expr:
    """The tree of an expression as the author wrote it, for messages; the compiled one is rewritten."""
    return Parser(ENVIRONMENT, source, state="variable").parse_tuple(with_condexpr=True)


def _result_refs(tree: nodes.Node) -> frozenset[str]:
    """The X of every ``X.results`` and ``X['results']``."""
    found = (result_key(node) for node in tree.find_all((nodes.Getattr, nodes.Getitem)))
    return frozenset(pair[0] for pair in found if pair is not None and pair[1] == "results")


def _syntax(error: TemplateSyntaxError, source: str) -> TemplateSyntax:
    line = max((error.lineno or 1) - 1, 0)
    lines = source.splitlines() or [""]
    shown = source.strip() if len(lines) == 1 else lines[min(line, len(lines) - 1)].strip()
    return TemplateSyntax(error.message or "does not parse", expression=shown, line=line)
