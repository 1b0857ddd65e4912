"""The older ``case``: what follows each call of a step's tool, as a ``retry``, sinks and arcs.

``case: [{when: "{{ event.name == 'call.error' and … }}", then: {retry: …}}, {when: …, then: {next: …}}]``. After
``call.error`` come rules for errors and arcs after a failure; after ``call.done``, ``step.exit`` or no event the next
call (``retry`` with ``params``, ``collect``), sinks and arcs. What has no such meaning is a problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from noetl_celery.playbook.older_parts import FIX, Findings, Unreadable, all_of, made, rename_all, without
from noetl_celery.playbook.source import YamlList, YamlMap
from noetl_celery.template import renamed

if TYPE_CHECKING:
    from noetl_celery.playbook.source import Mark

_EVENT = re.compile(r"""event\.name\s*==\s*['"]([\w.]+)['"]\Z""")
_FAILED = frozenset({"call.error", "step.failed"})
_DONE = frozenset({"call.done", "step.exit", "step.done", "loop.done"})
#: what always holds after such an event
_HOLDS = frozenset({"response is defined", "result is defined", "error is defined", "response", "result", "error"})
_CALL = ("params", "url", "headers", "body", "json", "payload", "data", "input", "args")
#: what a case may say besides sinks, and tasks of its own, which are sinks, too
_THEN = frozenset({"next", "retry", "collect", "set"})
_IN_ARCS = {"response": "output.data", "result": "output.data"}
_HINT = "write policy rules in the tool for what follows a call, and arcs in `next` for where it goes on"


@dataclass(slots=True)
class _Found:
    """What the cases of one step say."""

    errors: list[YamlMap] = field(default_factory=list)
    successes: list[YamlMap] = field(default_factory=list)
    sinks: list[Any] = field(default_factory=list)
    arcs: list[YamlMap] = field(default_factory=list)
    collects: list[tuple[Any, Mark]] = field(default_factory=list)
    set: YamlMap | None = None


class CaseReader:
    """Reads ``case``; what is wrong goes to ``findings``."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def step(self, source: YamlMap) -> YamlMap:
        """The step with ``retry``, ``sink`` and ``next`` instead of ``case``; without it, if it cannot be read."""
        mark = source.mark_of("case")
        step = without(source, "case")
        found = _Found()
        try:
            for item in self._items(source["case"], mark):
                self._item(item, found)
            self._findings.older("case", mark, hint=f"{_HINT}; {FIX}")
            return self._merged(step, found, mark)
        except Unreadable:
            return step

    def _items(self, cases: Any, mark: Mark) -> list[YamlMap]:
        if isinstance(cases, YamlList) and all(isinstance(item, YamlMap) for item in cases):
            return list(cases)
        raise self._unreadable("`case` is a list of `{when, then}`", mark)

    def _item(self, item: YamlMap, found: _Found) -> None:
        self._findings.unknown(item, {"when", "then"}, "case")
        mark = item.mark_of("when")
        event, condition = self._split(self._findings.condition(item.get("when"), mark, {}), mark)
        then = self._then(item)
        failed = event in _FAILED
        for key in [key for key in then if key not in _THEN]:
            task = then[key]
            if key != "sink" and not (isinstance(task, YamlMap) and {"kind", "tool"} & task.keys()):
                raise self._unreadable(f"`{key}` in a `case` cannot be read", then.mark_of(key))
            if condition or failed:
                raise self._unreadable(f"`{key}` with a condition cannot be read", then.mark_of(key))
            found.sinks.append(task)
        if "next" in then:
            self._arcs(then, condition, mark, found, failed=failed)
        if "set" in then and isinstance(then["set"], YamlMap):
            if condition or failed:
                raise self._unreadable("`set` with a condition cannot be read", then.mark_of("set"))
            found.set = rename_all(then["set"], _IN_ARCS)
        if "retry" in then:
            self._retry(then, condition, mark, found, failed=failed)
        elif "collect" in then:
            found.collects.append((then["collect"], then.mark_of("collect")))

    def _then(self, item: YamlMap) -> YamlMap:
        """One mapping, also of a list of mappings."""
        then = item.get("then")
        parts = list(then) if isinstance(then, YamlList) else [then]
        whole = YamlMap(mark=item.mark_of("then"))
        for part in parts:
            if not isinstance(part, YamlMap):
                raise self._unreadable("`then` of a `case` is a mapping", item.mark_of("then"))
            for key in part:
                if key in whole:
                    raise self._unreadable(f"`{key}` twice in one `then`", part.mark_of(key))
                if key != "result" or part[key] != {"from": "response"}:
                    whole.put(key, part[key], part.mark_of(key))
        return whole

    def _split(self, condition: str, mark: Mark) -> tuple[str | None, str]:
        """The event of a condition, and what it asks besides."""
        event = None
        rest: list[str] = []
        for part in _conjuncts(condition):
            match = _EVENT.match(part)
            if match and event is None:
                event = match[1]
            elif part not in _HOLDS:
                rest.append(part)
        if any("event.name" in part for part in rest) or (event is not None and event not in _FAILED | _DONE):
            raise self._unreadable("this condition on `event.name` cannot be read", mark)
        return event, " and ".join(rest)

    def _arcs(self, then: YamlMap, condition: str, mark: Mark, found: _Found, *, failed: bool) -> None:
        target = then["next"]
        given = target if isinstance(target, YamlList) else [target]
        if failed:
            condition = f"event.name == 'step.failed' and ({condition})" if condition else "event.name == 'step.failed'"
        for arc in given:
            made_arc = made({"step": arc}, then.mark_of("next")) if isinstance(arc, str) else arc
            if not isinstance(made_arc, YamlMap) or "step" not in made_arc:
                raise self._unreadable("`next` in a `case` is a step, or a list of steps", then.mark_of("next"))
            made_arc = rename_all(made_arc.derived(*made_arc), _IN_ARCS)
            if condition:
                own = self._findings.condition(made_arc.get("when"), made_arc.mark_of("when"), _IN_ARCS)
                made_arc.put("when", renamed(all_of(condition, own), _IN_ARCS), mark)
            found.arcs.append(made_arc)

    def _retry(self, then: YamlMap, condition: str, mark: Mark, found: _Found, *, failed: bool) -> None:
        raw = then["retry"]
        given = raw if isinstance(raw, YamlMap) else made({} if raw is True else {"max_attempts": raw}, mark)
        rule = YamlMap(mark=given.mark)
        if condition:
            rule.put("when", all_of(condition), mark)
        for key in given:
            if key not in _CALL:
                rule.put(key, given[key], given.mark_of(key))
        if failed:
            found.errors.append(rule)
            return
        call = given.derived(*(key for key in given if key in _CALL))
        if call:
            rule.put("next_call", call, given.mark)
        if "collect" in then:
            rule.put("collect", then["collect"], then.mark_of("collect"))
        found.successes.append(rule)

    def _merged(self, step: YamlMap, found: _Found, mark: Mark) -> YamlMap:
        collected = [rule.get("collect") for rule in found.successes]
        for collect, place in found.collects:
            if collect not in collected:
                raise self._unreadable("a `collect` without a next call cannot be read", place)
        for key, given in (("retry", found.errors or found.successes), ("sink", found.sinks)):
            if given and key in step:
                raise self._unreadable(f"`case` beside `{key}` cannot be read", step.mark_of(key))
        rules = {"on_error": found.errors, "on_success": found.successes}
        step = step.derived(*step)
        if found.errors or found.successes:
            step.put("retry", made({key: rule for key, rule in rules.items() if rule}, mark), mark)
        if found.sinks:
            step.put("sink", made(found.sinks, mark), mark)
        if found.set is not None:
            if "set" in step:
                raise self._unreadable("`set` in a `case` beside the step's own cannot be read", found.set.mark)
            step.put("set", found.set, mark)
        if found.arcs:
            self._next(step, found.arcs, mark)
        return step

    def _next(self, step: YamlMap, arcs: list[YamlMap], mark: Mark) -> None:
        """The arcs of the cases, and behind them those that the step has itself."""
        own = step.get("next")
        if isinstance(own, YamlMap) and "arcs" in own:
            if set(own) - {"arcs", "spec"} or own.get("spec") not in (None, {"mode": "exclusive"}):
                raise self._unreadable("`case` beside this `next` cannot be read", step.mark_of("next"))
            own = own["arcs"]
        following = list(own) if isinstance(own, YamlList) else [] if own is None else [own]
        several = len(arcs) > 1 and not any("when" in arc for arc in arcs)
        canonical: dict[str, Any] = {"spec": {"mode": "inclusive"}} if several and not following else {}
        canonical["arcs"] = [*arcs, *(made({"step": arc}, mark) if isinstance(arc, str) else arc for arc in following)]
        step.put("next", made(canonical, mark), mark)

    def _unreadable(self, message: str, mark: Mark) -> Unreadable:
        self._findings.problem(message, mark, hint=_HINT)
        return Unreadable()


def _conjuncts(condition: str) -> list[str]:
    """``a and (b and c)`` → ``a``, ``(b and c)``; one part where ``or`` or ``if`` stands at the top."""
    parts: list[str] = []
    for piece in re.split(r"\s+and\s+", condition.strip()):
        if parts and parts[-1].count("(") + parts[-1].count("[") != parts[-1].count(")") + parts[-1].count("]"):
            parts[-1] += f" and {piece}"
        else:
            parts.append(piece)
    outside = [re.sub(r"\([^()]*\)|'[^']*'|\"[^\"]*\"", "", part) for part in parts]
    if any(re.search(r"\b(or|if)\b", part) for part in outside):
        return [condition.strip()]
    return [part for part in parts if part]
