"""SQL as text: cutting it into statements, finding bindings, placing errors. No connection, no parser of grammar.

The scanner knows what can hide a semicolon, a percent sign or a keyword from us: ``'strings'`` (also ``E'…'`` with
backslashes and continued over lines), ``"identifiers"``, ``$tag$…$tag$``, nested ``/* */`` and ``--`` comments,
parentheses, and function bodies written as ``BEGIN ATOMIC … END``. Text that does not end what it opened is one token
up to the end of the source: the server then says what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_STRING = r"'[^']*+(?:''[^']*+)*+(?:'|\Z)"
_ESCAPED = r"'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+(?:'|\\?\Z)"
#: a string goes on after a line break, and keeps its backslash rule there
_CONTINUED = rf"[eE]{_ESCAPED}(?:[ \t\f]*(?:--[^\r\n]*)?[\r\n]\s*{_ESCAPED})*"
_TOKEN = re.compile(
    rf"""
      (?P<space>\s+)
    | (?P<comment>--[^\r\n]*|/\*)
    | (?P<quoted>{_CONTINUED}|{_STRING}|"[^"]*+(?:""[^"]*+)*+(?:"|\Z)|(?P<dollar>\$(?:[^\W\d]\w*)?\$))
    | (?P<word>[^\W\d][\w$]*|\$?\d[\w.]*)
    | (?P<semicolon>;)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
#: one statement in which no semicolon can hide: only plain strings and identifiers are quoted, nothing is a comment
_ONE = re.compile(r"""(?:[^'"$;\\/\-]++|'[^'\\]*+'|"[^"]*+"|-(?!-)|/(?!\*))*+(?:;\s*)?""")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_BINDING = re.compile(r"%\(([^()]+)\)s")
_PLACEHOLDER = re.compile(r"%s(?!\w)")
_SENT = re.compile(r"%(?:%|\(([^()]+)\)s|s)")


class Token(NamedTuple):
    """A piece of SQL: ``space``, ``comment``, ``quoted``, ``word``, ``semicolon`` or ``other`` (one character)."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement without its semicolon and the comments around it; ``line``: of its first token, from 1."""

    text: str
    line: int


def tokens(sql: str) -> Iterator[Token]:
    """Cuts ``sql`` into tokens that follow each other without a gap."""
    position = 0
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        assert match is not None  # ``other`` takes any character
        # lastgroup would name ``dollar``, the inner one, never: it closes before ``quoted`` does
        kind = match.lastgroup or "other"
        end = match.end()
        if kind == "comment" and match.group() == "/*":
            end = _comment_end(sql, end)
        elif match.group("dollar"):
            tag = match.group("dollar")
            closing = sql.find(tag, end)
            end = len(sql) if closing < 0 else closing + len(tag)
        yield Token(kind, position, end)
        position = end


def _comment_end(sql: str, position: int) -> int:
    depth = 1
    for edge in _COMMENT_EDGE.finditer(sql, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(sql)


def split_statements(sql: str) -> list[Statement]:
    """The statements of ``sql`` in order; empty ones and those that are only comments are dropped."""
    if _ONE.fullmatch(sql):
        text = sql.rstrip().removesuffix(";").strip()
        return [Statement(text, 1 + sql.count("\n", 0, sql.index(text)))] if text else []
    found: list[Statement] = []
    nesting = _Nesting()
    start = end = -1
    line, counted = 1, 0
    for token in tokens(sql):
        if token.kind in {"space", "comment"}:
            continue
        if token.kind == "semicolon" and nesting.outermost:
            if start >= 0:
                line, counted = line + sql.count("\n", counted, start), start
                found.append(Statement(sql[start:end], line))
            nesting, start = _Nesting(), -1
            continue
        nesting.see(token.kind, sql[token.start : token.end])
        start = token.start if start < 0 else start
        end = token.end
    if start >= 0:
        found.append(Statement(sql[start:end], line + sql.count("\n", counted, start)))
    return found


class _Nesting:
    """Whether a semicolon ends the statement: not in parentheses, not in a function body after ``BEGIN ATOMIC``."""

    def __init__(self) -> None:
        self._parentheses = 0
        self._blocks = 0
        self._head: list[str] = []
        self._previous = ""

    @property
    def outermost(self) -> bool:
        return self._parentheses == 0 and self._blocks == 0

    def see(self, kind: str, text: str) -> None:
        if kind == "word":
            self._word(text.lower())
        elif text == "(":
            self._parentheses += 1
        elif text == ")":
            self._parentheses = max(0, self._parentheses - 1)
        self._previous = text.lower()

    def _word(self, word: str) -> None:
        if len(self._head) < 4:
            self._head.append(word)
        if self._blocks:
            # a body may hold CASE … END, which must not be taken for its own END
            self._blocks += {"begin": 1, "case": 1, "end": -1}.get(word, 0)
        elif word == "atomic" and self._previous == "begin" and self._creates_routine():
            self._blocks = 1

    def _creates_routine(self) -> bool:
        head = self._head[3:4] if self._head[1:3] == ["or", "replace"] else self._head[1:2]
        return self._head[:1] == ["create"] and head in (["function"], ["procedure"])


def _words(sql: str, limit: int) -> list[str]:
    words: list[str] = []
    for token in tokens(sql):
        if token.kind == "word" and len(words) < limit:
            words.append(sql[token.start : token.end].upper())
        elif token.kind not in {"space", "comment"}:
            break
    return words


def leading_words(statement: str | Statement, limit: int = 4) -> list[str]:
    """The first words of a statement in capitals, up to the first token that is not a word."""
    return _words(statement if isinstance(statement, str) else statement.text, limit)


#: what begins or ends a transaction; the value names it
_CONTROL: tuple[tuple[tuple[str, ...], str], ...] = (
    (("START", "TRANSACTION"), "START TRANSACTION"),
    (("PREPARE", "TRANSACTION"), "PREPARE TRANSACTION"),
    (("COMMIT", "PREPARED"), "COMMIT PREPARED"),
    (("ROLLBACK", "PREPARED"), "ROLLBACK PREPARED"),
    (("ROLLBACK", "TO"), "ROLLBACK TO SAVEPOINT"),
    (("ROLLBACK", "WORK", "TO"), "ROLLBACK TO SAVEPOINT"),
    (("ROLLBACK", "TRANSACTION", "TO"), "ROLLBACK TO SAVEPOINT"),
    (("RELEASE",), "RELEASE SAVEPOINT"),
    (("SAVEPOINT",), "SAVEPOINT"),
    (("BEGIN",), "BEGIN"),
    (("COMMIT",), "COMMIT"),
    (("END",), "END"),
    (("ROLLBACK",), "ROLLBACK"),
    (("ABORT",), "ABORT"),
)


_CONTROL_WORDS = frozenset(pattern[0] for pattern, _ in _CONTROL)
_FIRST_WORD = re.compile(r"[A-Za-z]+\b")


def may_begin_with(statement: str | Statement, words: Collection[str]) -> bool:
    """Quick to say no where the first word (in capitals) is none of ``words``; yes where that takes a closer look."""
    first = _FIRST_WORD.match(statement if isinstance(statement, str) else statement.text)
    return first is None or first[0].upper() in words


def transaction_control(statement: str | Statement) -> str | None:
    """Names the transaction command that ``statement`` is (``BEGIN``, ``COMMIT``, ``SAVEPOINT`` …), or None."""
    if not may_begin_with(statement, _CONTROL_WORDS):
        return None
    words = leading_words(statement, 3)
    for pattern, name in _CONTROL:
        if tuple(words[: len(pattern)]) == pattern:
            return name
    return None


def bind(sql: str, known: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Prepares ``sql`` for psycopg: ``%(name)s`` of the known names stay bindings, every other ``%`` is doubled.

    Returns the SQL and the values that it names. If it names none, the SQL comes back untouched with None: pass no
    parameters then, and psycopg leaves every ``%`` alone. A binding inside a string, an identifier or a comment is
    text.
    """
    if "%(" not in sql:
        return sql, None
    values: dict[str, Any] = {}
    parts: list[str] = []
    for hidden, text in _segments(sql):
        if hidden:
            parts.append(text.replace("%", "%%"))
            continue
        position = 0
        for match in _BINDING.finditer(text):
            if match[1] in known:
                values[match[1]] = known[match[1]]
                parts += [text[position : match.start()].replace("%", "%%"), match[0]]
                position = match.end()
        parts.append(text[position:].replace("%", "%%"))
    return ("".join(parts), values) if values else (sql, None)


def bind_list(sql: str, values: Sequence[Any]) -> tuple[str, list[Any] | None]:
    """Like :func:`bind` for ``%s``: takes as many of ``values``, in order, as ``sql`` has placeholders.

    Returns the SQL and the values taken, None if it has no placeholder. Raises ValueError if there are too few values.
    """
    if "%s" not in sql:
        return sql, None
    parts: list[str] = []
    count = 0
    for hidden, text in _segments(sql):
        pieces = [text] if hidden else _PLACEHOLDER.split(text)
        count += len(pieces) - 1
        parts.append("%s".join(piece.replace("%", "%%") for piece in pieces))
    if count > len(values):
        raise ValueError(f"the SQL has {count} placeholders `%s`, but only {len(values)} values are left")
    return ("".join(parts), list(values[:count])) if count else (sql, None)


def _segments(sql: str) -> Iterator[tuple[bool, str]]:
    """Runs of text: (hidden in quotes or a comment?, text)."""
    start = 0
    for token in tokens(sql):
        if token.kind in {"quoted", "comment"}:
            yield False, sql[start : token.start]
            yield True, sql[token.start : token.end]
            start = token.end
    yield False, sql[start:]


def as_sent(bound: str) -> str:
    """What the server sees of SQL made by :func:`bind` or :func:`bind_list`: ``$1`` for bindings, single ``%``."""
    numbers: dict[str, int] = {}

    def replace(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        name = match[1] or f"#{len(numbers)}"
        return f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _SENT.sub(replace, bound)


def line_at(sql: str, position: int) -> tuple[int, str]:
    """The line of the character at ``position`` (from 1, as PostgreSQL counts): its number from 1 and its text."""
    index = min(max(position - 1, 0), len(sql))
    number = sql.count("\n", 0, index) + 1
    start = sql.rfind("\n", 0, index) + 1
    end = sql.find("\n", index)
    return number, sql[start : len(sql) if end < 0 else end].rstrip("\r")
