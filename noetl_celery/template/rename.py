"""Other names in a template's text, leaving everything else of it as the author wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noetl_celery.template.expressions import (
    Placed,
    Statements,
    TemplateSyntax,
    Token,
    has_template,
    parse,
    tokens_of,
)


def renamed(source: str, names: Mapping[str, str]) -> str:
    """``source`` with other top-level names: ``{{ a.b | f(a=1) }}`` with ``{"a": "x.y"}`` is ``{{ x.y.b | f(a=1) }}``.

    A key ``a.b`` replaces that name and key together. Attributes, filters, tests, keyword arguments and names that
    the template itself defines stay. Text that does not parse is returned as it is.
    """
    try:
        used = _names_in(source)
    except TemplateSyntax:
        return source
    wanted = {old: new for old, new in names.items() if old.partition(".")[0] in used}
    if not wanted:
        return source
    tokens = tokens_of(source)
    pieces: list[str] = []
    skip = 0
    for index, token in enumerate(tokens):
        if skip:
            skip -= 1
            continue
        key = "".join(part.text for part in tokens[index : index + 3])
        if token.kind != "name" or not _is_variable(tokens, index):
            pieces.append(token.text)
        elif key in wanted:
            pieces.append(wanted[key])
            skip = 2
        else:
            pieces.append(wanted.get(token.text, token.text))
    return "".join(pieces)


def expression_of(source: str) -> str | None:
    """The text of the one expression that ``source`` is (``"{{ a.b }}"`` → ``a.b``); None if it is something else.

    Raises :class:`~noetl_celery.template.expressions.TemplateSyntax`.
    """
    parsed = parse(source)
    return parsed.expression.source if isinstance(parsed, Placed) else None


def _names_in(source: str) -> frozenset[str]:
    if not has_template(source):
        return frozenset()
    parsed = parse(source)
    if isinstance(parsed, Statements):
        return parsed.names
    parts = (parsed,) if isinstance(parsed, Placed) else parsed
    return frozenset().union(*(part.expression.names for part in parts if isinstance(part, Placed)))


def _is_variable(tokens: Sequence[Token], index: int) -> bool:
    """Whether the name is one that is looked up, and no attribute, filter, test or keyword argument."""
    before = [token.text for token in tokens[max(0, index - 4) : index] if token.kind != "whitespace"][-2:]
    after = next((token.text for token in tokens[index + 1 :] if token.kind != "whitespace"), "")
    if before and (before[-1] in (".", "|", "is") or before == ["is", "not"]):
        return False
    return after != "=" or "{%" in "".join(before)
