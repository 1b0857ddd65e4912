"""Older forms of a step to the ones to write today: a tool beside its keys, loops, sinks, retries.

What comes out is text that an author could have written: ``lint --fix`` writes it down, and the normaliser reads on
from it. Nothing here knows of plans, and nothing older reaches the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl_celery.playbook.model import STEP_KEYS
from noetl_celery.playbook.older_case import CaseReader
from noetl_celery.playbook.older_code import with_values_for_templates
from noetl_celery.playbook.older_events import with_events_of_today
from noetl_celery.playbook.older_parts import Findings, Unreadable, rename_all, without
from noetl_celery.playbook.older_retry import INDEX, Retry, RetryReader, sequence, with_error_rules
from noetl_celery.playbook.older_sink import SinkReader
from noetl_celery.playbook.source import YamlList, YamlMap

if TYPE_CHECKING:
    from noetl_celery.playbook.source import Mark

#: keys that stand beside `tool: <kind>` and are the step's all the same
_BESIDE = frozenset({"args", "sink", "retry", "tool", "name", "case", "assert"})
_OWN = frozenset({"retry", "sink"})


class OlderForms:
    """Reads the older forms of steps; warnings with the canonical form, and problems, go to ``findings``."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._retries = RetryReader(findings)
        self._sinks = SinkReader(findings)
        self._cases = CaseReader(findings)

    def step(self, source: YamlMap) -> YamlMap:
        """The step in today's form; the same object if nothing in it is older."""
        name = source.get("step", source.get("name"))
        self._findings.step = str(name) if name is not None else None
        step = source
        if isinstance(step.get("tool"), str):
            step = self._tool_by_kind(step)
        if "case" in step:
            step = self._cases.step(step)
        step, retries, sinks = self._taken(step)
        if isinstance(step.get("loop"), YamlMap):
            loop = self._loop(step["loop"])
            if loop is not step["loop"]:
                step = step.derived(*step)
                step["loop"] = loop
        return self._tasks(with_events_of_today(step, self._findings), retries, sinks)

    def _tool_by_kind(self, step: YamlMap) -> YamlMap:
        """``tool: http`` with the tool's keys beside it → ``tool: {kind: http, …}``."""
        kind = step["tool"]
        moved = [key for key in step if key not in STEP_KEYS and key not in _BESIDE]
        if kind == "workbook" and "step" in step and "name" in step:
            moved.append("name")
        inside = step.derived(*moved)
        inside.mark = step.mark_of("tool")
        whole = YamlMap(mark=inside.mark)
        whole.put("kind", kind, inside.mark)
        for key in moved:
            whole.put(key, inside[key], inside.mark_of(key))
        if "spec" in step and isinstance(step["spec"], YamlMap) and _rules_of(step["spec"]):
            whole.put("spec", step["spec"], step.mark_of("spec"))
            moved.append("spec")
        step = YamlMap(
            {key: whole if key == "tool" else value for key, value in step.items() if key not in moved},
            mark=step.mark,
            marks={key: step.mark_of(key) for key in step if key not in moved},
        )
        shown = "".join(f", {key}: …" for key in moved[:3])
        self._findings.older(f"tool: {kind}", whole.mark, hint=f"write `tool: {{kind: {kind}{shown}}}`")
        return step

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _loop(self, source: YamlMap) -> YamlMap:
        old = [key for key in ("collection", "element", "mode", "concurrency", "chunk_size") if key in source]
        given = source.get("spec")
        mode_of = given if isinstance(given, YamlMap) else source
        if not old and mode_of.get("mode") not in ("async", "chunked"):
            return source
        for key, new in (("collection", "in"), ("element", "iterator")):
            if key in old and new in source:
                message = f"`{key}` and `{new}` are the same key"
                self._findings.problem(message, source.mark_of(key), hint=f"keep `{new}`", code="conflicting-keys")
        loop = YamlMap(mark=source.mark)
        for key in source:
            new = {"collection": "in", "element": "iterator"}.get(key, key)
            if key in ("mode", "concurrency", "chunk_size", "spec"):
                continue
            if new != key:
                self._findings.older(f"loop.{key}", source.mark_of(key), hint=f"write `loop: {{{new}: …}}`")
            if new == key or new not in source:
                loop.put(new, source[key], source.mark_of(key))
        spec = given.derived(*given) if isinstance(given, YamlMap) else YamlMap(mark=source.mark)
        self._pace(source, spec)
        if spec:
            loop.put("spec", spec, source.mark_of("spec" if "spec" in source else old[0]))
        elif "spec" in source:
            loop.put("spec", given, source.mark_of("spec"))
        return loop

    def _pace(self, source: YamlMap, spec: YamlMap) -> None:
        """``mode``, ``concurrency`` and ``chunk_size`` into ``spec``."""
        for key, new in (("mode", "mode"), ("concurrency", "max_in_flight")):
            if key in source:
                self._findings.older(f"loop.{key}", source.mark_of(key), hint=f"write `loop: {{spec: {{{new}: …}}}}`")
                spec.put(new, source[key], source.mark_of(key))
        mode, mark = spec.get("mode"), spec.mark_of("mode")
        if mode == "async":
            self._findings.older("mode: async", mark, hint="write `mode: parallel`")
            spec.put("mode", "parallel", mark)
        if mode == "chunked" or "chunk_size" in source:
            mark = mark if mode == "chunked" else source.mark_of("chunk_size")
            hint = "write `spec: {mode: parallel, max_in_flight: …}` with the size of a chunk"
            self._findings.older("mode: chunked", mark, hint=hint)
            spec.put("mode", "parallel", mark)
            self._chunk(source, spec)

    def _chunk(self, source: YamlMap, spec: YamlMap) -> None:
        """A chunk's items run side by side: as many as it has, or fewer if ``concurrency`` says so."""
        if "chunk_size" not in source:
            return
        size, mark = source["chunk_size"], source.mark_of("chunk_size")
        flight = spec.get("max_in_flight")
        if flight is None:
            spec.put("max_in_flight", size, mark)
        elif isinstance(flight, int) and isinstance(size, int):
            if size < flight:
                spec.put("max_in_flight", size, mark)
        elif flight != size:
            hint = "keep the smaller of them as `max_in_flight`"
            self._findings.no_effect("`chunk_size` beside `concurrency` has no effect here", mark, hint=hint)

    # -- retries and sinks ---------------------------------------------------------------------------------------------

    def _taken(self, step: YamlMap) -> tuple[YamlMap, list[tuple[Any, Mark]], list[tuple[Any, Mark]]]:
        """The step without the ``retry`` and ``sink`` of the step, its ``spec`` and its ``loop``; and these."""
        found: dict[str, list[tuple[Any, Mark]]] = {"retry": [], "sink": []}
        for owner in ("spec", "loop"):
            inner = step.get(owner)
            old = [key for key in inner if key in _OWN] if isinstance(inner, YamlMap) else []
            if isinstance(inner, YamlMap) and old:
                for key in old:
                    found[key].append((inner[key], inner.mark_of(key)))
                step = step.derived(*step)
                step[owner] = without(inner, *old)
                if not step[owner]:
                    step = without(step, owner)
        for key in [key for key in step if key in _OWN]:
            found[key].append((step[key], step.mark_of(key)))
            step = without(step, key)
        return step, found["retry"], found["sink"]

    def _tasks(self, step: YamlMap, retries: list[tuple[Any, Mark]], sinks: list[tuple[Any, Mark]]) -> YamlMap:
        """The step with its tasks in today's form; ``retries`` and ``sinks`` are the step's own."""
        tool = step.get("tool")
        listed = _tasks_of(tool, str(step.get("step", step.get("name", "task"))))
        if listed is None:
            for key, mark in [("retry", mark) for _, mark in retries] + [("sink", mark) for _, mark in sinks]:
                hint = "move it to the step whose task it is for"
                self._findings.problem(f"`{key}` in a step without a tool", mark, hint=hint)
            return step
        if len(listed) > 1 and retries:
            hint = "give each task the `retry` that it needs"
            self._findings.problem("`retry` on a step with several tasks", retries[0][1], hint=hint)
            retries = []
        changed = False
        tasks: list[YamlMap] = []
        for index, (name, task) in enumerate(listed):
            last = index == len(listed) - 1
            today = with_values_for_templates(task, step, self._findings)
            made = self._task(today, name, retries if last else [], sinks if last else [])
            changed = changed or made[0] is not task
            several = len(listed) > 1 or len(made) > 1
            tasks += [_named(each, name) for each in made] if several else made
        if not changed:
            return step
        step = step.derived(*step)
        for key in ("input", "args"):
            if key in step and any(task.get("older") == "sequence" for task in tasks):
                step[key] = rename_all(step[key], INDEX)
        mark = step.mark_of("tool")
        if len(tasks) == 1:
            step["tool"] = tasks[0]
            return step
        step["tool"] = YamlList(tasks, mark=mark, marks=[task.mark for task in tasks])
        return step

    def _task(
        self, source: YamlMap, name: str, retries: list[tuple[Any, Mark]], sinks: list[tuple[Any, Mark]]
    ) -> list[YamlMap]:
        """One task in today's form: itself, or the short pipeline that it stands for."""
        task = source
        for owner in (task.get("spec"), task):
            if isinstance(owner, YamlMap):
                retries = retries + [(owner[key], owner.mark_of(key)) for key in owner if key == "retry"]
                sinks = sinks + [(owner[key], owner.mark_of(key)) for key in owner if key == "sink"]
        if not retries and not sinks:
            return [source]
        task = without(task, *_OWN)
        if isinstance(task.get("spec"), YamlMap) and _OWN & task["spec"].keys():
            task["spec"] = without(task["spec"], *_OWN)
            task = task if task["spec"] else without(task, "spec")
        try:
            return self._expanded(task, name, retries, sinks)
        except Unreadable:
            return [task]

    def _expanded(
        self, task: YamlMap, name: str, retries: list[tuple[Any, Mark]], sinks: list[tuple[Any, Mark]]
    ) -> list[YamlMap]:
        if len(retries) > 1:
            self._findings.problem("two `retry` for one task", retries[1][1], hint="keep one", code="conflicting-keys")
            raise Unreadable
        retry = self._retries.read(*retries[0]) if retries else Retry(task.mark)
        task, sinks = self._sinks.joined(task, sinks + retry.sinks)
        # The name of a workbook call is that of the workbook's task, so its result has that name.
        called = str(task["name"]) if task.get("kind") == "workbook" and "name" in task else None
        if retry.successes:
            call = called or f"{name}_call"
            saving = self._sinks.tasks(sinks, name, call, str(task.get("kind")), retry.path)
            try:
                return sequence(task, name, call, retry, [with_error_rules(sink, retry) for sink in saving])
            except ValueError as error:
                self._findings.problem(str(error), retry.mark, hint="write it out as a mapping")
                raise Unreadable from None
        task = with_error_rules(task, retry)
        saving = self._sinks.tasks(sinks, name, called or name, str(task.get("kind")), None)
        if not saving:
            return [task]
        return [
            _named(task, name),
            *(with_error_rules(sink, retry) for sink in saving),
            self._sinks.answer(name, called or name, saving[0].mark),
        ]


def _named(task: YamlMap, name: str) -> YamlMap:
    """The task with its name first."""
    named = YamlMap(mark=task.mark)
    named.put("name", task.get("name", name), task.mark_of("name"))
    for key in task:
        if key != "name":
            named.put(key, task[key], task.mark_of(key))
    return named


def _tasks_of(tool: Any, step: str) -> list[tuple[str, YamlMap]] | None:
    """``(name, task)`` of each task of a step; None where there is none, or something that the model refuses."""
    if isinstance(tool, YamlMap):
        if "kind" not in tool and tool and all(isinstance(task, YamlMap) and "kind" in task for task in tool.values()):
            return [(label, labelled(tool, label)) for label in tool]
        name = tool.get("name", step) if tool.get("kind") != "workbook" else step
        return [(str(name), tool)] if tool else None
    if not isinstance(tool, YamlList):
        return None
    tasks = [unlabelled(item) for item in tool]
    if not tasks or not all(isinstance(task, YamlMap) for task in tasks):
        return None
    alone = len(tasks) == 1
    return [(str(task.get("name", step if alone else f"task_{n + 1}")), task) for n, task in enumerate(tasks)]


def unlabelled(item: Any) -> Any:
    """``{label: {kind: …}}`` → ``{name: label, kind: …}``."""
    if isinstance(item, YamlMap) and len(item) == 1 and "kind" not in item:
        label = next(iter(item))
        if isinstance(item[label], YamlMap):
            return labelled(item, label)
    return item


def labelled(item: YamlMap, label: str) -> YamlMap:
    """The task under ``label``, called so unless it has a name of its own."""
    inner: YamlMap = item[label]
    task = inner.derived(*inner)
    task.mark = item.mark_of(label)
    if "name" not in task:
        task.put("name", label, item.mark_of(label))
    return task


def _rules_of(spec: YamlMap) -> bool:
    policy = spec.get("policy")
    return isinstance(policy, YamlMap) and "rules" in policy
