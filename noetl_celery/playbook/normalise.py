"""Other spellings to the canonical one, before anything is validated.

Two kinds of spelling come in: those that are the language as well (``args`` for ``input``, ``next: name``), silently,
here; and older forms (``older.py``), with a warning that shows the canonical form. A value of the wrong shape is left
as it is: the model says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl_celery.playbook.model import AdmitThen, Then
from noetl_celery.playbook.older import OlderForms, labelled, unlabelled
from noetl_celery.playbook.older_parts import Findings
from noetl_celery.playbook.source import Mark, YamlList, YamlMap

if TYPE_CHECKING:
    from collections.abc import Callable

    from noetl_celery.errors import Problems

#: what may stand right in a rule instead of below its `then`
_THEN_KEYS = Then.model_fields.keys() | AdmitThen.model_fields.keys()
#: kinds whose `args` are those of a command
_OWN_ARGS = ("container",)


class Normaliser:
    """Rewrites one document; problems and warnings go to ``problems`` with their places."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._findings = Findings(file, problems)
        self._older = OlderForms(self._findings)

    def document(self, source: YamlMap) -> YamlMap:
        """The canonical document."""
        document = source.derived(*source)
        if "workflow" in source:
            document["workflow"] = _each(source["workflow"], self.step)
        if isinstance(executor := document.get("executor"), YamlMap) and executor.get("spec", ...) is None:
            document.put("executor", _without(executor, "spec"), document.mark_of("executor"))
        return _without_none(document, "workload", "executor", "workbook", "keychain")

    def step(self, source: Any) -> Any:
        """One canonical step."""
        if not isinstance(source, YamlMap):
            return source
        source = self._older.step(source)
        step = source.derived(*source)
        self._rename(step, "name", "step")
        self._rename(step, "args", "input")
        if "tool" in step:
            self._tool(step)
        if "loop" in step:
            step["loop"] = self._loop(step["loop"])
        if "next" in step:
            step["next"] = self._next(step["next"], step.mark_of("next"))
        if "spec" in step:
            step["spec"] = self._step_spec(step["spec"])
        return _without_none(step, "tool", "loop", "next", "spec", "input", "set")

    def _tool(self, step: YamlMap) -> None:
        tool, mark = step["tool"], step.mark_of("tool")
        if isinstance(tool, YamlMap):
            if "kind" not in tool and tool and all(isinstance(t, YamlMap) and "kind" in t for t in tool.values()):
                tasks = [labelled(tool, label) for label in tool]
                step["tool"] = YamlList(map(self._task, tasks), mark=mark, marks=[tool.mark_of(k) for k in tool])
                return
            step["tool"] = YamlList([self._task(tool)], mark=mark, marks=[mark])
        elif isinstance(tool, YamlList):
            step["tool"] = _each(tool, lambda item: self._task(unlabelled(item)))

    def _task(self, source: Any) -> Any:
        """One canonical task: its keys and those of its ``spec`` together, ``policy`` beside them."""
        if not isinstance(source, YamlMap):
            return source
        task = source.derived(*source)
        spec = task.get("spec")
        if isinstance(spec, YamlMap):
            task = _without(task, "spec")
            for key in spec:
                if key not in task:
                    task.put(key, spec[key], spec.mark_of(key))
        elif spec is None:
            task = _without(task, "spec")
        if task.get("kind") not in _OWN_ARGS:
            self._rename(task, "args", "input")
        self._rename(task, "credential", "auth")
        if isinstance(policy := task.get("policy"), YamlMap) and "rules" in policy:
            policy = policy.derived(*policy)
            policy["rules"] = _each(policy["rules"], self._rule)
            task["policy"] = policy
        return _without_none(task, "policy", "input", "set")

    def _rule(self, source: Any) -> Any:
        """``{else: {then: …}}``, ``{else: {do: …}}``, ``{do: …}`` and ``{when, do}`` → ``{when?, then}``."""
        if not isinstance(source, YamlMap):
            return source
        rule = source.derived(*source)
        if "when" not in rule and "then" in rule:
            rule = _without_none(rule, "else")  # `- else:` with its `then` beside it, not below
        if "else" in rule and "when" not in rule and "then" not in rule:
            inner, mark = rule["else"], rule.mark_of("else")
            rule = _without(rule, "else")
            if isinstance(inner, YamlMap) and "then" in inner:
                for key in inner:
                    rule.put(key, inner[key], inner.mark_of(key))
            else:
                rule.put("then", inner, mark)
        loose = [key for key in rule if key in _THEN_KEYS]
        if loose and "then" not in rule:
            then = rule.derived(*loose)
            rule = _without(rule, *loose)
            rule.put("then", then, then.mark_of(loose[0]))
        return _without_none(rule, "then")

    def _step_spec(self, source: Any) -> Any:
        policy = source.get("policy") if isinstance(source, YamlMap) else None
        admit = policy.get("admit") if isinstance(policy, YamlMap) else None
        if not isinstance(admit, YamlMap) or "rules" not in admit or not isinstance(policy, YamlMap):
            return source
        admit, policy, spec = admit.derived(*admit), policy.derived(*policy), source.derived(*source)
        admit["rules"] = _each(admit["rules"], self._rule)
        policy["admit"] = admit
        spec["policy"] = policy
        return spec

    def _loop(self, source: Any) -> Any:
        if not isinstance(source, YamlMap):
            return source
        loop = source.derived(*source)
        if isinstance(spec := loop.get("spec"), YamlMap):
            loop["spec"] = _without_none(spec, "frame", "policy")
        if isinstance(cursor := loop.get("cursor"), YamlMap):
            loop["cursor"] = cursor.derived(*cursor)
            self._rename(loop["cursor"], "credential", "auth")
        return loop

    def _next(self, source: Any, mark: Mark) -> Any:
        """``name``, ``[names or {step, when}]`` → ``{spec, arcs}``."""
        if isinstance(source, YamlMap) and "arcs" not in source and "step" in source:
            source = YamlList([source], mark=mark, marks=[mark])
        if isinstance(source, str):
            source = YamlList([source], mark=mark, marks=[mark])
        if isinstance(source, YamlList):
            arcs = YamlList([self._arc(item, source.mark_of(i)) for i, item in enumerate(source)], mark=mark)
            arcs.marks = list(source.marks)
            canonical = YamlMap({"arcs": arcs}, mark=mark, marks={"arcs": mark})
            # Several names without a condition can only mean all of them: as exclusive arcs all but one were dead.
            if len(arcs) > 1 and not any(isinstance(arc, dict) and "when" in arc for arc in arcs):
                canonical.put("spec", YamlMap({"mode": "inclusive"}, mark=mark), mark)
            return canonical
        if isinstance(source, YamlMap) and isinstance(source.get("arcs"), YamlList):
            canonical = source.derived(*source)
            canonical["arcs"] = _each(source["arcs"], lambda item: self._arc(item, mark))
            return _without_none(canonical, "spec")
        return source

    def _arc(self, item: Any, mark: Mark) -> Any:
        """``name`` → ``{step: name}``; ``cond`` is ``when``."""
        if isinstance(item, str):
            return YamlMap({"step": item}, mark=mark, marks={"step": mark})
        if isinstance(item, YamlMap) and "cond" in item:
            item = item.derived(*item)
            self._rename(item, "cond", "when")
        return item

    def _rename(self, mapping: YamlMap, other: str, key: str) -> None:
        """Another name for a key; both at once is a problem."""
        if other not in mapping:
            return
        mark = mapping.mark_of(other)
        if key in mapping:
            if isinstance(mapping[key], YamlMap) and isinstance(mapping[other], YamlMap):
                value = mapping[key].derived(*mapping[key])
                for name in mapping[other]:
                    if name not in value:
                        value.put(name, mapping[other][name], mapping[other].mark_of(name))
                mapping[key] = value
            else:
                message = f"`{other}` and `{key}` are the same key"
                self._findings.problem(message, mark, hint=f"keep `{key}`", code="conflicting-keys")
        else:
            mapping.put(key, mapping[other], mark)
        del mapping[other]


def _each(items: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(items, YamlList):
        return items
    return YamlList(map(change, items), mark=items.mark, marks=list(items.marks))


def _without(mapping: YamlMap, *keys: str) -> YamlMap:
    return mapping.derived(*(key for key in mapping if key not in keys))


def _without_none(mapping: YamlMap, *keys: str) -> YamlMap:
    """An empty optional key (``next:`` with nothing after it) is as good as none."""
    return _without(mapping, *(key for key in keys if key in mapping and mapping[key] is None))
