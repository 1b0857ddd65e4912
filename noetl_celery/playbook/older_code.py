"""Templates in python code: ``x = {{ workload.x }}`` was rendered into the text, today it is an input."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from noetl_celery.playbook.older_parts import Findings
from noetl_celery.playbook.source import YamlMap
from noetl_celery.template import TemplateSyntax, expression_of

_NOT_WORD = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class _Found:
    """A template between the tokens of the code: where its text begins and ends, and its expression."""

    start: int
    end: int
    expression: str


def with_values_for_templates(task: YamlMap, step: YamlMap, findings: Findings) -> YamlMap:
    """The task with an input for every template that stands as a value in its code; itself if there is none.

    ``{{ … }}`` is no Python that could run (a set in a set), so nothing else is meant by it. Templates in strings and
    comments are left alone: there they may be text.
    """
    owner = _owner(task)
    if task.get("kind") != "python" or owner is None:
        return task
    found = list(_templates(owner["code"]))
    given = _inputs(task, owner)
    if not found or given is None:
        return task
    known = {name for source in (_mapping(step), given) for name in source}
    inputs = given.derived(*given)
    names = _named(found, owner["code"], known)
    mark = owner.mark_of("code")
    for expression, name in names.items():
        if name not in known:
            inputs.put(name, f"{{{{ {expression} }}}}", mark)
    shown = ", ".join(f'{name}: "{{{{ {expression} }}}}"' for expression, name in list(names.items())[:3])
    findings.older(
        f"{{{{ {found[0].expression} }}}} in code", mark, hint=f"write `input: {{{shown}}}` and the name alone"
    )
    return _put(task, owner, inputs, _replaced(owner["code"], found, names))


def _owner(task: YamlMap) -> YamlMap | None:
    """What the code stands in: the task or its ``spec``."""
    for owner in (task, task.get("spec")):
        if isinstance(owner, YamlMap) and isinstance(owner.get("code"), str) and "{{" in owner["code"]:
            return owner
    return None


def _inputs(task: YamlMap, owner: YamlMap) -> YamlMap | None:
    """The task's own inputs; None if they are no mapping that could be added to."""
    for place in (task, owner):
        for key in ("input", "args"):
            if key in place:
                return place[key] if isinstance(place[key], YamlMap) else None
    return YamlMap(mark=owner.mark_of("code"))


def _mapping(step: YamlMap) -> YamlMap:
    for key in ("input", "args"):
        if isinstance(step.get(key), YamlMap):
            given: YamlMap = step[key]
            return given
    return YamlMap(mark=step.mark)


def _put(task: YamlMap, owner: YamlMap, inputs: YamlMap, code: str) -> YamlMap:
    """The task with these inputs, where it has some, and this code."""
    made = task.derived(*task)
    inner = made if owner is task else owner.derived(*owner)
    place, key = next(
        ((place, key) for place in (made, inner) for key in ("input", "args") if key in place), (inner, "input")
    )
    inner["code"] = code
    if inputs:
        place.put(key, inputs, inputs.mark)
    if inner is not made:
        made["spec"] = inner
    return made


def _templates(code: str) -> Iterator[_Found]:
    """Templates that stand where Python expects a value; none if the code cannot be cut into tokens."""
    lines = [0]
    for line in io.StringIO(code):
        lines.append(lines[-1] + len(line))
    braces: list[tuple[str, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.OP and token.string in "{}":
                row, column = token.start
                braces.append((token.string, lines[row - 1] + column))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return
    yield from _pairs(code, braces)


def _pairs(code: str, braces: list[tuple[str, int]]) -> Iterator[_Found]:
    opened: list[int] = []
    closed = 0
    for kind, at in braces:
        if kind == "{":
            opened.append(at)
            continue
        if not opened:
            return
        start = opened.pop()
        # the inner pair comes first: its partners stand right beside it
        if code[start - 1 : start + 1] == "{{" and code[at : at + 2] == "}}" and start - 1 >= closed:
            try:
                expression = expression_of(code[start - 1 : at + 2])
            except TemplateSyntax:
                continue
            if expression is not None and opened and opened[-1] == start - 1:
                closed = at + 2
                yield _Found(start - 1, closed, expression)


def _named(found: list[_Found], code: str, known: set[str]) -> dict[str, str]:
    """A name for the value of each expression: its own where it is one, else one that the code does not use."""
    rest = _replaced(code, found, {each.expression: "" for each in found})
    names: dict[str, str] = {}
    for expression in dict.fromkeys(each.expression for each in found):
        name = _NOT_WORD.sub("_", expression).strip("_") or "value"
        if name == expression and name in known:
            names[expression] = name
            continue
        if keyword.iskeyword(name) or name[0].isdigit():
            name = f"value_{name}"
        while name in known or name in names.values() or re.search(rf"\b{name}\b", rest):
            name += "_value"
        names[expression] = name
    return names


def _replaced(code: str, found: list[_Found], names: dict[str, Any]) -> str:
    parts, end = [], 0
    for each in found:
        parts += [code[end : each.start], names[each.expression]]
        end = each.end
    return "".join([*parts, code[end:]])
