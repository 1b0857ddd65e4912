"""What works and should still be looked at: mistakes that the field knows, found in a playbook that is valid.

Pure: the plan and the document go in, warnings go to the reporter. Every check would rather miss a mistake than raise
a false alarm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes

from noetl_celery.errors import TemplateError
from noetl_celery.playbook.lint_claims import check_cursor
from noetl_celery.playbook.lint_names import check_names
from noetl_celery.playbook.plan import Arc, Plan, Rule, StepPlan, TaskPlan
from noetl_celery.playbook.problems import Path, Reporter
from noetl_celery.playbook.source import YamlList, YamlMap, value_at
from noetl_celery.playbook.values import ToolCatalog
from noetl_celery.template import TemplateSyntax, Value, compile_condition
from noetl_celery.template.uses import sole_expression, text_beside

_SECRET = re.compile(
    r"(.+_)?(password|passwd|passphrase|api_?key|client_secret|secret_key|private_key|access_token|auth_token)", re.I
)
_HEADER = re.compile(r"(authorization|x-api-key|x-auth-token)", re.I)
#: what stands for a secret without being one
_PLACEHOLDER = re.compile(r"\{\{|\{%|\$\{|<.*>|^\*+$|^x+$|^\$[A-Z_]+$|^(bearer|basic)\s*$", re.I)
_URL = re.compile(r"\b[a-z][a-z0-9+]*://[^\s:/@{}]+:(?P<secret>[^\s:/@{}]+)@", re.I)
#: how steps end
_ENDS = frozenset({"step.done", "loop.done", "step.failed"})
_NOW = frozenset({"now", "random"})


def check(plan: Plan, report: Reporter, tools: ToolCatalog) -> None:
    """Adds what is worth a look to the reporter's problems."""
    paths = step_paths(report.document)
    for name, step in plan.steps.items():
        if name in paths:
            _Step(step, plan, paths[name], report).check()
    check_names(plan, report, tools, paths)
    _secrets(report)


def step_paths(document: YamlMap) -> dict[str, Path]:
    """Where each step stands."""
    workflow = document.get("workflow")
    steps = workflow if isinstance(workflow, list) else []
    return {
        str(step["step"]): ("workflow", index)
        for index, step in reversed(list(enumerate(steps)))
        if isinstance(step, dict) and "step" in step
    }


class _Step:
    def __init__(self, step: StepPlan, plan: Plan, path: Path, report: Reporter) -> None:
        self._step = step
        self._plan = plan
        self._path = path
        self._report = report

    def check(self) -> None:
        if self._step.loop is not None and self._step.loop.cursor is not None:
            frame = value_at(self._report.document, (*self._path, "loop", "spec", "frame"))
            keys = frame.keys() if isinstance(frame, dict) else ()
            for code, message, where, hint in check_cursor(self._step, self._plan, keys):
                self._warn(message, where, code, hint)
        for index, task in enumerate(self._step.tasks):
            self._rules(task, ("tool", index, "policy", "rules"), index)
        for number, rule in enumerate(self._step.admit):
            self._condition(rule.when, ("spec", "policy", "admit", "rules", number, "when"))
        self._arcs(self._step.next.arcs)

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _arcs(self, arcs: Sequence[Arc]) -> None:
        exclusive = self._step.next.mode == "exclusive"
        for number, arc in enumerate(arcs):
            where: Path = ("next", "arcs", number)
            last = number == len(arcs) - 1
            always = arc.when is None or _constant(arc.when) is True
            if always and exclusive and not last:
                message = f"arcs after this one are never followed: nothing is asked before it goes to `{arc.step}`"
                hint = "give it a `when`, put it last, or write `next: {spec: {mode: inclusive}}` to follow all"
                self._warn(message, where, "unreachable-rule", hint)
                return
            self._condition(arc.when, (*where, "when"))
            if arc.when is not None:
                self._event(arc.when, (*where, "when"))

    def _condition(self, when: Value | None, where: Path) -> None:
        if when is None:
            return
        if isinstance(when.raw, str) and (text := text_beside(when.raw)) is not None:
            message = f"`when` is always true: `{text}` stands outside of the braces, so this is text"
            self._warn(message, where, "constant-condition", "put the whole condition into one {{ … }}")
        elif (value := _constant(when)) is not None and not _plainly_true(when):
            message = f"`when` is always {str(value).lower()}: it asks for nothing that could differ"
            self._warn(message, where, "constant-condition", "leave it out, or compare with a name" if value else None)

    def _event(self, when: Value, where: Path) -> None:
        tree = sole_expression(when.raw, condition=True) if isinstance(when.raw, str) else None
        if tree is None:
            return
        success = "loop.done" if self._step.loop is not None else "step.done"
        if _never(tree, {success, "step.failed"}):
            named = sorted(_events_in(tree))[0]
            looped = "has a loop" if self._step.loop is not None else "has no loop"
            why = f"the step {looped}, so it never ends in" if named in _ENDS else "no step ends in"
            message = f"`when` never holds: {why} `{named}`"
            self._warn(message, where, "event-never", f"it ends in `{success}` or `step.failed`")

    # -- policies ------------------------------------------------------------------------------------------------------

    def _rules(self, task: TaskPlan, where: Path, index: int) -> None:
        rules = task.rules or ()
        for number, rule in enumerate(rules):
            inside: Path = (*where, number)
            self._condition(rule.when, (*inside, "when"))
            if rule.when is not None and _plainly_true(rule.when) and number < len(rules) - 1:
                message = "rules after one that always holds are never reached"
                self._warn(message, (*where, number + 1), "unreachable-rule")
            if rule.do == "retry" and rule.attempts is None and task.older is None:
                message = "`do: retry` does not say how often: it is tried 3 times in all"
                self._warn(message, (*inside, "then"), "retry-attempts", "write `attempts: 3`, or what is right")
            if rule.do == "jump" and self._endless(rules[: number + 1], index):
                message = f"nothing ends this: each time it is reached, it jumps back to `{rule.to}`"
                hint = "put a rule before it whose `when` holds at the end, with `do: break` or `do: continue`"
                self._warn(message, (*inside, "then"), "endless-jump", hint)

    def _endless(self, rules: Sequence[Rule], index: int) -> bool:
        """A jump back that always happens, while no rule on the way leaves the circle."""
        *before, jump = rules
        always = jump.when is None or _constant(jump.when) is True
        to = self._step.task_index.get(jump.to or "")
        if not always or before or to is None or to > index:
            return False
        circle = self._step.tasks[to:index]
        leaving = any(
            rule.do in ("break", "fail")
            or (rule.do == "jump" and not to <= self._step.task_index.get(rule.to or "", -1) <= index)
            for task in circle
            for rule in task.rules or ()
        )
        return not leaving

    def _warn(self, message: str, where: Path, code: str, hint: str | None = None) -> None:
        self._report.warn(message, (*self._path, *where), code=code, step=self._step.name, hint=hint)


def _constant(when: Value) -> bool | None:
    """What a condition always is; None for one that can differ."""
    try:
        compiled = compile_condition(when.raw, place="when")
        tree = sole_expression(when.raw, condition=True) if isinstance(when.raw, str) else None
        varying = tree is not None and any(
            isinstance(node, nodes.Name | nodes.Filter) and node.name in _NOW
            for node in (tree, *tree.find_all((nodes.Name, nodes.Filter)))
        )
        return None if compiled.names or varying else compiled.test({})
    except (TemplateError, TemplateSyntax):
        return None


def _plainly_true(when: Value) -> bool:
    """``when: true``, which says *else* in words of its own."""
    tree = sole_expression(when.raw, condition=True) if isinstance(when.raw, str) else None
    return when.raw is True or (isinstance(tree, nodes.Const) and tree.value is True)


def _never(tree: nodes.Node, possible: set[str]) -> bool:
    """Whether a condition cannot hold because it waits for events that do not come."""
    if isinstance(tree, nodes.And):
        return _never(tree.left, possible) or _never(tree.right, possible)
    if isinstance(tree, nodes.Or):
        return _never(tree.left, possible) and _never(tree.right, possible)
    events = _compared(tree)
    return events is not None and not events & possible


def _compared(tree: nodes.Node) -> set[str] | None:
    """The events of ``event.name == 'x'`` and ``event.name in [...]``; None for anything else."""
    if not isinstance(tree, nodes.Compare) or len(tree.ops) != 1 or tree.ops[0].op not in ("eq", "in"):
        return None
    sides = tree.expr, tree.ops[0].expr
    for side, other in (sides, sides[::-1]):
        if not _is_event_name(side):
            continue
        if isinstance(other, nodes.Const) and isinstance(other.value, str) and tree.ops[0].op == "eq":
            return {other.value}
        if isinstance(other, nodes.List | nodes.Tuple) and tree.ops[0].op == "in":
            values = [item.value for item in other.items if isinstance(item, nodes.Const)]
            return {str(value) for value in values} if len(values) == len(other.items) else None
    return None


def _is_event_name(node: nodes.Node) -> bool:
    if not isinstance(node, nodes.Getattr | nodes.Getitem) or not isinstance(node.node, nodes.Name):
        return False
    key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
    return node.node.name == "event" and key == "name"


def _events_in(tree: nodes.Node) -> set[str]:
    found = [_compared(node) for node in (tree, *tree.find_all(nodes.Compare))]
    return set().union(*(events for events in found if events is not None))


# -- secrets -----------------------------------------------------------------------------------------------------------


def _secrets(report: Reporter) -> None:
    seen: set[int] = set()
    for part in ("workload", "keychain", "workflow", "workbook"):
        for path, key, text in _texts(report.document.get(part), (part,), seen):
            if not _is_secret(key, text):
                continue
            step = _step_of(report.document, path)
            message = f"a secret stands here as plain text (`{key}`), and in the catalog with it"
            hint = "store it with `noetl-celery credential set`, and name it in `auth`"
            report.warn(message, path, code="plain-secret", step=step, hint=hint)


def _texts(data: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, str, str]]:
    """Every text below a key, with its path and that key; a part that an alias repeats is looked at once."""
    waiting: list[tuple[Any, Path]] = [(data, path)]
    while waiting:
        value, where = waiting.pop()
        if isinstance(value, str):
            yield where, next((part for part in reversed(where) if isinstance(part, str)), ""), value
        elif isinstance(value, YamlMap | YamlList) and id(value) not in seen:
            seen.add(id(value))
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting.extend(reversed([(item, (*where, key)) for key, item in inner]))


def _is_secret(key: str, text: str) -> bool:
    if not text.strip() or _PLACEHOLDER.search(text.strip()):
        return False
    if _SECRET.fullmatch(key):
        return True
    if _HEADER.fullmatch(key):
        return len(text.split()[-1]) >= 8
    match = _URL.search(text) if key not in ("code", "desc", "description") else None
    return match is not None and not _PLACEHOLDER.search(match["secret"])


def _step_of(document: YamlMap, path: Path) -> str | None:
    if path[0] != "workflow" or len(path) < 2:
        return None
    step = document["workflow"][path[1]]
    return str(step.get("step")) if isinstance(step, dict) else None
