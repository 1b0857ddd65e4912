"""What the readers of older forms share: saying what they found, building canonical parts, joining conditions."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from noetl_celery.errors import Problem, Problems
from noetl_celery.playbook.source import Mark, YamlList, YamlMap
from noetl_celery.template import TemplateSyntax, expression_of, renamed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SIMPLE = re.compile(r"(not )?[\w.]+\Z")
_LINK = re.compile(r"[A-Za-z_]\w*\Z")
#: how every warning about an older form ends
FIX = "`noetl-celery lint --fix` writes it"


class Unreadable(Exception):
    """A part of an older form that has no canonical equivalent; it has been reported."""


class Findings:
    """Adds problems and warnings of one document; ``step`` is the step that is being read."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self.step: str | None = None

    def older(self, form: str, mark: Mark, *, hint: str) -> None:
        """A warning: an older form that is read, and the canonical one."""
        self._add(f"older form `{form}`", mark, hint, "older-form", warning=True)

    def no_effect(self, message: str, mark: Mark, *, hint: str) -> None:
        """A warning: something that changes nothing."""
        self._add(message, mark, hint, "no-effect", warning=True)

    def problem(self, message: str, mark: Mark, *, hint: str | None = None, code: str = "unread-form") -> None:
        """Something that refuses the playbook."""
        self._add(message, mark, hint, code, warning=False)

    def unknown(self, mapping: YamlMap, known: Collection[str], where: str) -> None:
        """A problem for every key that is not in ``known``."""
        for key in mapping:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(known))}"
                self.problem(f"unknown key `{key}` in `{where}`", mapping.mark_of(key), hint=hint, code="unknown-key")

    def condition(self, raw: Any, mark: Mark, names: Mapping[str, str]) -> str:
        """A condition as the text of one expression, with other ``names``; empty text for one that always holds.

        Raises :class:`Unreadable`.
        """
        if raw is None or raw is True:
            return ""
        if isinstance(raw, bool | int | float):
            return str(raw).lower()
        if not isinstance(raw, str):
            self.problem("a condition is text", mark, code="wrong-type", hint='write `when: "{{ … }}"`')
            raise Unreadable
        text = raw if "{{" in raw or "{%" in raw or "{#" in raw else f"{{{{ {raw.strip()} }}}}"
        try:
            found = expression_of(renamed(text, names))
        except TemplateSyntax as error:
            message = f"the template `{error.expression}` does not parse: {error.message}"
            self.problem(message, mark, code="template-syntax")
            raise Unreadable from None
        if found is None:
            self.problem("this condition is not one expression", mark, hint='write `"{{ … }}"` without other text')
            raise Unreadable
        return found

    def _add(self, message: str, mark: Mark, hint: str | None, code: str, *, warning: bool) -> None:
        place = self._file, mark.line, mark.column, self.step
        self._problems.add(Problem(message, *place, hint, warning=warning, code=code))


def made(data: Any, mark: Mark) -> Any:
    """Ordinary dicts and lists as data with places, all at ``mark``; parts that have places keep theirs."""
    if isinstance(data, YamlMap | YamlList):
        return data
    if isinstance(data, dict):
        found = YamlMap(mark=mark)
        for key, value in data.items():
            found.put(key, made(value, mark), mark)
        return found
    if isinstance(data, list):
        items = [made(item, mark) for item in data]
        return YamlList(items, mark=mark, marks=[getattr(item, "mark", mark) for item in items])
    return data


def without(mapping: YamlMap, *keys: str) -> YamlMap:
    """The mapping without some of its keys."""
    return mapping.derived(*(key for key in mapping if key not in keys))


def rename_all(data: Any, names: Mapping[str, str], *, skip: Collection[str] = ()) -> Any:
    """Data with other names in its templates, itself if there are none; the values of keys in ``skip`` stay."""
    if isinstance(data, str):
        return renamed(data, names)
    if isinstance(data, YamlMap):
        values = {key: data[key] if key in skip else rename_all(data[key], names, skip=skip) for key in data}
        if all(values[key] is data[key] for key in data):
            return data
        return YamlMap(values, mark=data.mark, marks={key: data.mark_of(key) for key in data})
    if isinstance(data, YamlList):
        items = [rename_all(item, names, skip=skip) for item in data]
        if all(new is old for new, old in zip(items, data, strict=True)):
            return data
        return YamlList(items, mark=data.mark, marks=list(data.marks))
    return data


def all_of(*conditions: str) -> str:
    """``{{ a and (b or c) }}`` of several expressions; those that are empty always hold."""
    given = [condition for condition in conditions if condition]
    if len(given) == 1:
        return braces(given[0])
    return braces(" and ".join(part if _SIMPLE.match(part) or _flat(part) else f"({part})" for part in given))


def braces(expression: str) -> str:
    """``x`` → ``{{ x }}``."""
    return f"{{{{ {expression.strip()} }}}}"


def key_of(owner: str, *path: str) -> str:
    """``owner.a.b``, with brackets where a key is no name or a number."""
    for key in path:
        owner += f".{key}" if _LINK.match(key) else f"[{key}]" if key.isdigit() else f"[{key!r}]"
    return owner


def with_rules(task: YamlMap, rules: list[Any], fallback: list[Any], mark: Mark) -> YamlMap:
    """The task with ``rules`` before its own, and ``fallback`` if it has none of its own."""
    holder = task["spec"] if "policy" not in task and isinstance(task.get("spec"), YamlMap) else None
    place = task if "policy" in task else holder if holder is not None else made({}, mark)
    policy = place["policy"] if isinstance(place.get("policy"), YamlMap) else made({}, mark)
    own = policy.get("rules")
    given = list(own) if isinstance(own, YamlList) else []
    changed = policy.derived(*policy)
    changed.put(
        "rules", made([made(rule, mark) for rule in rules] + (given or [made(r, mark) for r in fallback]), mark)
    )
    task = task.derived(*task)
    if "policy" in task:
        task["policy"] = changed
        return task
    spec = place.derived(*place)
    spec.put("policy", changed, mark)
    task.put("spec", spec, task.mark_of("spec") if holder is not None else mark)
    return task


def _flat(part: str) -> bool:
    """Whether an expression is one comparison, which needs no parentheses beside ``and``."""
    return not re.search(r"\b(or|and|if|else|not)\b|,", part)
