"""Workbook tasks: named tasks that steps call, put in the caller's place before anything is validated.

``tool: {kind: workbook, name: X, input: …}`` becomes the task X of ``workbook`` with the caller's input over X's own.
There is no call at run time, so a workbook task may be of any kind, and its places in messages are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl_celery.errors import Problem, Problems
from noetl_celery.playbook.problems import suggestion
from noetl_celery.playbook.source import Mark, YamlList, YamlMap

if TYPE_CHECKING:
    from collections.abc import Callable

#: keys of a workbook entry that describe it; any other stands for the tool
_DESCRIBING = frozenset({"name", "tool", "desc", "assert", "input", "labels"})


def expand(document: YamlMap, normalise: Callable[[Any], Any], problems: Problems, file: str) -> YamlMap:
    """The document with every workbook call replaced; ``normalise`` makes a step of an entry canonical.

    Adds problems for calls of tasks that are not there, and warnings for tasks that nobody calls.
    """
    expander = _Workbook(document, normalise, problems, file)
    if not isinstance(document.get("workflow"), YamlList):
        return document
    expanded = document.derived(*document)
    expanded["workflow"] = _each(document["workflow"], expander.step)
    expander.report_uncalled()
    return expanded


class _Workbook:
    def __init__(self, document: YamlMap, normalise: Callable[[Any], Any], problems: Problems, file: str) -> None:
        self._problems, self._file = problems, file
        self._entries: dict[str, Any] = {}
        self._marks: dict[str, Mark] = {}
        self._called: set[str] = set()
        entries = document.get("workbook")
        if entries is not None and not isinstance(entries, YamlList):
            self._problem("`workbook` is a list of named tasks", document.mark_of("workbook"), "wrong-type")
            return
        for index, entry in enumerate(entries if entries is not None else ()):
            mark = entries.mark_of(index) if entries is not None else document.mark
            name = entry.get("name") if isinstance(entry, YamlMap) else None
            if not isinstance(name, str):
                self._problem("a workbook task needs `name` and `tool`", mark, "missing-key")
            elif name in self._entries:
                self._problem(f"two workbook tasks are called `{name}`", mark, "duplicate-name")
            else:
                self._entries[name] = self._task(entry, name, normalise)
                self._marks[name] = mark

    def _task(self, entry: YamlMap, name: str, normalise: Callable[[Any], Any]) -> YamlMap | None:
        """The entry's one canonical task, or None after saying why there is none."""
        step = entry.derived(*(key for key in entry if key in _DESCRIBING - {"name", "assert", "labels", "desc"}))
        loose = entry.derived(*(key for key in entry if key not in _DESCRIBING))
        if isinstance(entry.get("tool"), str):
            for key in loose:
                step.put(key, loose[key], loose.mark_of(key))
        elif "tool" not in entry and "kind" in entry:
            step.put("tool", loose, entry.mark)
        elif loose:
            key = next(iter(loose))
            self._problem(
                f"workbook task `{name}`: unknown key `{key}`",
                loose.mark_of(key),
                "unknown-key",
                hint="put it into `tool`",
            )
        step.put("step", name, entry.mark_of("name"))
        canonical = normalise(step)
        tasks = canonical.get("tool")
        if not isinstance(tasks, YamlList) or len(tasks) != 1 or not isinstance(tasks[0], YamlMap):
            self._problem(f"workbook task `{name}` needs one `tool: {{kind: …}}`", entry.mark, "missing-key")
            return None
        return _over(tasks[0], canonical.get("input"), under=True)

    def step(self, step: Any) -> Any:
        tools = step.get("tool") if isinstance(step, YamlMap) else None
        if not isinstance(tools, YamlList) or not any(_calls(task) for task in tools):
            return step
        alone = len(tools) == 1
        expanded = step.derived(*step)
        given = step.get("input")
        expanded["tool"] = _each(tools, lambda task: self._expanded(task, alone, given) if _calls(task) else task)
        return expanded

    def _expanded(self, call: YamlMap, alone: bool, step_input: Any) -> Any:
        task: YamlMap | None = call
        seen: list[str] = []
        while task is not None and _calls(task):
            name = task.get("task", task.get("name"))
            mark = call.mark_of("name")
            if not isinstance(name, str):
                self._problem("a call of a workbook task needs its `name`", call.mark, "missing-key")
                return _nothing(call)
            if name in seen:
                self._problem(
                    f"workbook tasks call each other in a circle: {' → '.join([*seen, name])}", mark, "unknown-task"
                )
                return _nothing(call)
            if name not in self._entries:
                hint = suggestion(name, self._entries) or f"workbook tasks: {', '.join(self._entries) or 'none'}"
                self._problem(f"`{name}` is no task of the workbook", mark, "unknown-task", hint=hint)
                return _nothing(call)
            seen.append(name)
            self._called.add(name)
            inner = self._entries[name]
            task = None if inner is None else _merged(inner, task, step_input)
            step_input = None
        if task is None:
            return _nothing(call)
        if not alone:
            task.put("name", call.get("name", seen[0]), call.mark_of("name"))
        return task

    def report_uncalled(self) -> None:
        for name in self._entries.keys() - self._called:
            message = f"no step calls the workbook task `{name}`, so it is not checked"
            mark = self._marks[name]
            self._problems.add(Problem(message, self._file, mark.line, mark.column, warning=True, code="uncalled-task"))

    def _problem(self, message: str, mark: Mark, code: str, hint: str | None = None) -> None:
        self._problems.add(Problem(message, self._file, mark.line, mark.column, hint=hint, code=code))


def _calls(task: Any) -> bool:
    return isinstance(task, YamlMap) and task.get("kind") == "workbook"


def _merged(entry: YamlMap, call: YamlMap, step_input: Any) -> YamlMap:
    """The entry's task with the caller's input (and under it that of its step), policy and ``set`` over its own."""
    task = entry.derived(*(key for key in entry if key != "name" or _calls(entry)))
    for key in call:
        if key not in ("kind", "name", "task", "input"):
            task.put(key, call[key], call.mark_of(key))
    return _over(_over(task, step_input), call.get("input"))


def _over(task: YamlMap, given: Any, *, under: bool = False) -> YamlMap:
    """``task`` with ``given`` merged over (or under) its ``input``."""
    own = task.get("input")
    if not isinstance(given, YamlMap) or (own is not None and not isinstance(own, YamlMap)):
        if given is not None and (own is None or not under):
            task.put("input", given, getattr(given, "mark", task.mark))
        return task
    first, second = (given, own) if under else (own, given)
    merged = YamlMap(mark=given.mark)
    for part in (first, second):
        if isinstance(part, YamlMap):
            for key in part:
                merged.put(key, part[key], part.mark_of(key))
    task.put("input", merged, given.mark)
    return task


def _nothing(call: YamlMap) -> YamlMap:
    """In the place of a call that cannot be made: its problem is reported already."""
    task = call.derived("name")
    task.put("kind", "noop", call.mark)
    return task


def _each(items: YamlList, change: Callable[[Any], Any]) -> YamlList:
    return YamlList([change(item) for item in items], mark=items.mark, marks=list(items.marks))
