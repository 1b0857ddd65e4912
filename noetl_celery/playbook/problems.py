"""Problems with their places: what the model refuses, in an author's words."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from noetl_celery.errors import Problem, Problems
from noetl_celery.playbook.model import STEP_KEYS, Step
from noetl_celery.playbook.source import YamlMap, place_of, value_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from noetl_celery.template import TemplateSyntax

Path = tuple[str | int, ...]

#: what is compared with a misspelt name: names about as long as it, and not without end
_UNLIKE, _CANDIDATES, _LONGEST = 8, 300, 100
_SHOWN = 80
_FOREIGN = re.compile(r"\{\{\s*[`.$]|[\s(]\.\s*(\}\}|$)|^\s*[.`$]|`")
#: other words for `when`
_CONDITIONS = frozenset({"if", "when", "cond", "condition", "unless"})
#: keys that a tool has as well, but that the author of a step means for it
_ELSEWHERE = frozenset({"policy", "mode", "max_in_flight", "cursor", "arcs", "frame"})
#: a word where a mapping is expected: what it was meant to say
_IN_SHORT = {
    "then": "write `then: {{do: {}}}`",
    "tool": "write `{{kind: {}}}`",
    "metadata": "write `metadata: {{name: {}}}`",
    "cursor": "write `cursor: {{kind: {}, claim: …}}`",
}

_NEEDED_FOR = {
    "step": "every step has a name: `step: …`",
    "metadata": "write `metadata: {name: …}`",
    "workflow": "a playbook has `workflow:`, a list of steps",
    "apiVersion": "write `apiVersion: noetl.io/v2`",
    "then": "write `then: {do: …}`",
}


class Reporter:
    """Adds problems of one document, looking up where its parts stand."""

    def __init__(self, text: str, file: str, document: YamlMap, problems: Problems) -> None:
        self.file = file
        self.document = document
        self.problems = problems
        self._lines = text.splitlines()

    def error(self, message: str, path: Path, *, code: str, step: str | None = None, hint: str | None = None) -> None:
        """Something that refuses the playbook; ``code`` is one of :data:`~noetl_celery.playbook.codes.ERRORS`."""
        self._add(message, path, step, hint, code, warning=False)

    def warn(self, message: str, path: Path, *, code: str, step: str | None = None, hint: str | None = None) -> None:
        """Something that works and should still be looked at; ``code`` is one of the ``WARNINGS``."""
        self._add(message, path, step, hint, code, warning=True)

    def warn_in_text(
        self, message: str, path: Path, text_line: int, word: str, *, code: str, step: str | None, hint: str | None
    ) -> None:
        """A warning about a word in the text that stands at ``path``; ``text_line`` is its line there, from 0."""
        mark = place_of(self.document, path)
        line, column = (1, 1) if mark is None else (mark.text_line + text_line, mark.column)
        place = self._find_word(word, line, column)
        self.problems.add(Problem(message, self.file, *place, step, hint, True, code))

    def syntax(self, error: TemplateSyntax, path: Path, *, step: str | None, what: str) -> None:
        """A template that does not parse, on its own line of a block of text."""
        mark = place_of(self.document, (*path, *error.path))
        line = None if mark is None else mark.text_line + error.line
        line, column = self._find(error.expression, line, None if mark is None else mark.column)
        message = f"{what}: the template `{_cut(error.expression)}` does not parse: {error.message}"
        # Format strings of other languages (`{{.Name}}`, `{{json .}}`) are the usual reason.
        foreign = _FOREIGN.search(error.expression) is not None
        hint = "text with braces of its own stands between {% raw %} and {% endraw %}" if foreign else None
        self.problems.add(Problem(message, self.file, line, column, step, hint, code="template-syntax"))

    def invalid(self, error: ValidationError, model: type[BaseModel], path: Path, *, step: str | None) -> None:
        """Everything that a model refuses."""
        for found in error.errors(include_url=False):
            location = tuple(part for part in found["loc"])
            if found["type"] == "extra_forbidden" and model is Step and len(location) == 1:
                message, hint = self._unknown_step_key(str(location[0]), path)
            else:
                message, hint = _in_words(found, model, location)
            if found["type"] == "missing" and (slip := self._slip(str(location[-1]), (*path, *location[:-1]))):
                hint = f"did you mean it by `{slip}`?"
            self.error(message, (*path, *location), code=_code_of(found), step=step, hint=hint)

    def _slip(self, key: str, path: Path) -> str | None:
        """A key that stands where one is missing, and is nearly it (in a tool, where any key might be right)."""
        beside = value_at(self.document, path)
        near = difflib.get_close_matches(key, beside, n=1, cutoff=0.7) if isinstance(beside, dict) else []
        return near[0] if near else None

    def _unknown_step_key(self, key: str, path: Path) -> tuple[str, str | None]:
        """A misspelt key of a step, or one that was meant for its tool."""
        near = difflib.get_close_matches(key, STEP_KEYS, n=1, cutoff=0.8)
        if near:
            return f"unknown key `{key}`", f"did you mean `{near[0]}`?"
        if key in _CONDITIONS:
            hint = "a condition stands in the arc that leads here (`when`), or in `spec.policy.admit.rules`"
            return f"a step has no `{key}`", hint
        if "tool" in value_at(self.document, path) and key not in _ELSEWHERE:
            return f"`{key}` beside `tool` belongs inside it", f"move `{key}` into `tool`"
        inside = _stands_inside(key, Step)
        tool = f"a key of a tool stands inside it: `tool: {{kind: …, {key}: …}}`"
        return f"unknown key `{key}`", inside or tool

    def _add(self, message: str, path: Path, step: str | None, hint: str | None, code: str, *, warning: bool) -> None:
        mark = place_of(self.document, path)
        line, column = (mark.line, mark.column) if mark is not None else (1, 1)
        self.problems.add(Problem(message, self.file, line, column, step, hint, warning, code))

    def _find(self, text: str, line: int | None, column: int | None) -> tuple[int | None, int | None]:
        """The exact place of a piece of template: folded and quoted text moves its lines about a little."""
        wanted = text.strip().splitlines()[0] if text.strip() else ""
        if line is None or not wanted:
            return line, column
        for number in range(line, min(line + 50, len(self._lines) + 1)):
            found = self._lines[number - 1].find(wanted)
            if found >= 0:
                return number, found + 1
        return line, column

    def _find_word(self, word: str, line: int, column: int) -> tuple[int, int]:
        """The same for one word, which stands within braces if there are any on its line."""
        wanted = re.compile(rf"(?<![\w.]){re.escape(word)}(?!\w)|\b{re.escape(word)}\b")
        for number in range(line, min(line + 50, len(self._lines) + 1)):
            text = self._lines[number - 1]
            found = wanted.search(text, max(text.find("{{"), 0)) or wanted.search(text)
            if found is not None:
                return number, found.start() + 1
        return line, column


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """``did you mean `x`?``, or None."""
    alike = [other for other in known if abs(len(other) - len(name)) <= _UNLIKE][:_CANDIDATES]
    near = difflib.get_close_matches(name, alike, n=1, cutoff=0.6) if len(name) <= _LONGEST else []
    return f"did you mean `{near[0]}`?" if near else None


def drop_consequences(problems: Problems) -> None:
    """Takes out what is missing only because it is misspelt, which is told as well."""
    meant = {
        (problem.step, problem.hint.split("`")[1])
        for problem in problems.errors
        if problem.code == "unknown-key" and problem.hint is not None and problem.hint.startswith("did you mean `")
    }
    problems.found[:] = [
        problem
        for problem in problems.found
        if problem.code not in ("missing-key", "tool-config")
        or not any((problem.step, key) in meant for key in problem.message.split("`")[1::2])
    ]


def _cut(text: str) -> str:
    """As much of the author's text as a message needs."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _code_of(found: Any) -> str:
    codes = {"extra_forbidden": "unknown-key", "missing": "missing-key", "literal_error": "wrong-value"}
    if found["type"] == "value_error" and str(found["ctx"]["error"]).startswith("must "):
        return "wrong-value"
    return codes.get(found["type"], "wrong-type")


def _in_words(found: Any, model: type[BaseModel], location: Path) -> tuple[str, str | None]:
    key = next((part for part in reversed(location) if isinstance(part, str)), "")
    kind, value = found["type"], found.get("input")
    if kind == "extra_forbidden":
        return _unknown_key(str(location[-1]), model, location)
    if kind == "missing" and key == "step" and "arcs" in location:
        return "`step` is missing", "an arc says where it leads: `step: …`"
    if kind == "missing":
        hint = "every tool says its kind: `kind: http`" if key == "kind" and model is Step else _NEEDED_FOR.get(key)
        return f"`{key}` is missing", hint
    if kind == "literal_error":
        allowed = found["ctx"]["expected"]
        return f"`{key}` must be {allowed}, not {_cut(repr(value))}", _near_literal(value, allowed)
    if kind == "value_error":
        said = str(found["ctx"]["error"])
        return f"`{key}` {said}" if said.startswith("must ") else f"`{key}`: {said}", None
    expected = {
        "dict_type": "a mapping is expected",
        "model_type": "a mapping is expected",
        "model_attributes_type": "a mapping is expected",
        "list_type": "a list is expected",
        "string_type": "text is expected",
        "bool_type": "true or false is expected",
        "bool_parsing": "true or false is expected",
    }.get(kind, str(found["msg"]))
    short = _IN_SHORT.get(key) if kind.startswith("model") and isinstance(value, str) else None
    hint = short.format(_cut(value)) if short is not None else None
    return f"`{key}`: {expected}" if key else expected, hint


def _unknown_key(key: str, model: type[BaseModel], location: Path) -> tuple[str, str | None]:
    known = _keys_at(model, location[:-1])
    inside = next((part for part in reversed(location[:-1]) if isinstance(part, str)), None)
    where = f" in `{inside}`" if inside else ""
    allowed = ", ".join(sorted(known))
    near = suggestion(key, known)
    if near is None and key in _CONDITIONS and "when" in known:
        near = "did you mean `when`?"
    if near is None and key == "else" and "when" in known:
        near = "write `- else: …` as a rule of its own, after this one"
    holder = _model_at(model, location[:-1])
    near = near or (_stands_inside(key, holder) if holder is not None else None)
    return f"unknown key `{key}`{where}", near or (f"known keys: {allowed}" if allowed else None)


def _near_literal(value: Any, allowed: str) -> str | None:
    return (
        suggestion(value, allowed.replace(" or ", ", ").replace("'", "").split(", "))
        if isinstance(value, str)
        else None
    )


def _stands_inside(key: str, holder: type[BaseModel]) -> str | None:
    """Where a key belongs that stands too far out: ``next: {mode: …}`` for ``next: {spec: {mode: …}}``."""
    for name, field in holder.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None and key in inner.model_fields and get_origin(field.annotation) is not list:
            return f"`{key}` stands inside `{field.alias or name}`: `{field.alias or name}: {{{key}: …}}`"
    return None


def _keys_at(model: type[BaseModel], location: Path) -> list[str]:
    holder = _model_at(model, location)
    return [field.alias or name for name, field in holder.model_fields.items()] if holder is not None else []


def _model_at(model: type[BaseModel], location: Path) -> type[BaseModel] | None:
    """The model of what stands at a place below ``model``."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        field = next((f for name, f in current.model_fields.items() if (f.alias or name) == part), None)
        current = _model_in(field.annotation) if field is not None else None
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
