"""Names in templates that nothing sets: misspelt keys of the workload, results of steps that are not there.

A template sees names of its step and its task, so each is looked at with what is known there. Everything that might be
given from outside (a run's own workload) counts as missing only where the playbook says nothing of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from noetl_celery.playbook.plan import Assignments, Plan, StepPlan, TaskPlan
from noetl_celery.playbook.problems import Path, Reporter
from noetl_celery.playbook.source import value_at
from noetl_celery.playbook.values import ToolCatalog
from noetl_celery.template.uses import Use, uses

#: names that are there without anybody setting them; those that begin with `_` are ours as well
_BUILT_IN = frozenset(
    {"workload", "ctx", "iter", "args", "spec", "execution_id", "job", "output", "outcome", "event", "error", "result"}
    | {"response", "loop_index", "index", "parent", "idempotency_key", "keychain", "now", "env"}
)
_ITER = frozenset({"index", "parent"})
_NO_TEMPLATES = frozenset({"desc", "name", "kind", "step", "labels", "tags", "assert", "output_select"})
_CLOSE = 0.75


@dataclass(frozen=True, slots=True)
class _Known:
    """What templates at one place can see: bare names, and the keys of the mappings that a playbook fills itself.

    A mapping without an entry in ``keys`` may hold anything.
    """

    names: frozenset[str]
    keys: Mapping[str, frozenset[str]]


def check_names(plan: Plan, report: Reporter, tools: ToolCatalog, paths: Mapping[str, Path]) -> None:
    """Adds a warning for each name (once per step) that templates use and nothing sets."""
    shared = _shared(plan)
    for name, path in paths.items():
        step = plan.steps.get(name)
        if step is None:
            continue
        found: set[tuple[str, str | None]] = set()
        for where, text, condition, known in _texts(step, path, report, tools, _in_step(step, plan, shared)):
            for use in uses(text, condition=condition):
                complaint = None if use.guarded or (use.name, use.key) in found else _complaint(use, known, plan, step)
                if complaint is not None:
                    found.add((use.name, use.key))
                    message, hint = complaint
                    word = use.name if use.name not in known.names or use.key is None else use.key
                    report.warn_in_text(message, where, use.line, word, code="unknown-name", step=name, hint=hint)


def _complaint(use: Use, known: _Known, plan: Plan, step: StepPlan) -> tuple[str, str | None] | None:
    if use.name.startswith("_"):
        return None
    if use.name not in known.names:
        owner = next((s.name for s in plan.steps.values() if use.name in s.task_index and s is not step), None)
        if owner is not None:
            hint = f"write `{owner}.results.{use.name}`"
            return f"`{use.name}` is a task of the step `{owner}`, and its name is not seen here", hint
        near = difflib.get_close_matches(use.name, sorted(known.names), n=1, cutoff=_CLOSE)
        if use.called:
            return (
                f"there is no function `{use.name}`",
                "templates have filters, and `now`, `range`, `dict`, `namespace`",
            )
        hint = f"did you mean `{near[0]}`?" if near else f"if a run gives it, say so in `workload: {{{use.name}: …}}`"
        return f"nothing sets `{use.name}`", hint
    keys = known.keys.get(use.name)
    if keys is None or use.key is None or use.key in keys or use.key.startswith("_"):
        return None
    near = difflib.get_close_matches(use.key, sorted(keys), n=1, cutoff=_CLOSE)
    if use.name == "workload":
        hint = f"did you mean `{near[0]}`?" if near else "if a run gives it, list it in `workload` with its default"
        return f"`workload` has no `{use.key}`", hint
    return f"nothing sets `{use.name}.{use.key}`", f"did you mean `{use.name}.{near[0]}`?" if near else None


# -- what is known -----------------------------------------------------------------------------------------------------


def _shared(plan: Plan) -> _Known:
    """What every step sees."""
    ctx = {
        target.removeprefix("ctx.")
        for step in plan.steps.values()
        for target in _targets(step)
        if target.startswith("ctx.")
    }
    ctx |= {target for step in plan.steps.values() for target in _routed(step) if "." not in target}
    names = _BUILT_IN | plan.workload.keys() | ctx | plan.steps.keys() | plan.keychain.keys()
    return _Known(names, {"workload": frozenset(plan.workload), "ctx": frozenset(ctx)})


def _in_step(step: StepPlan, plan: Plan, shared: _Known) -> _Known:
    own = {target for target in _targets(step) if "." not in target}
    rows = {target.removeprefix("iter.") for target in _targets(step) if target.startswith("iter.")}
    if step.loop is not None:
        rows |= {step.loop.iterator}
    keys = dict(shared.keys)
    if step.loop is not None:
        keys["iter"] = frozenset(rows | own) | _ITER
    given: set[str] | None = set()
    for arc in (arc for other in plan.steps.values() for arc in other.next.arcs if arc.step == step.name):
        if arc.args is not None:
            raw = arc.args.raw
            given = None if given is None or not isinstance(raw, dict) else given | raw.keys()
    # Arguments that a template makes may be called anything.
    if given is None:
        return _Known(_Everything(), {})
    if given:
        keys["args"] = frozenset(given)
    return _Known(shared.names | own | rows | given | step.task_index.keys(), keys)


class _Everything(frozenset[str]):
    """Knows every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __or__(self, other: object) -> _Everything:
        return self


def _targets(step: StepPlan) -> Iterator[str]:
    """Everything that a step sets: ``ctx.x``, ``iter.x``, bare names."""
    for task in step.tasks:
        yield from _names(task.set)
        for rule in task.rules or ():
            yield from _names(rule.set)
    yield from _routed(step)


def _routed(step: StepPlan) -> Iterator[str]:
    """What its end sets; bare names go to ``ctx``."""
    yield from _names(step.set)
    for arc in step.next.arcs:
        yield from _names(arc.set)


def _names(assignments: Assignments) -> Iterator[str]:
    return (target for target, _ in assignments)


# -- where templates stand ---------------------------------------------------------------------------------------------


def _texts(
    step: StepPlan, path: Path, report: Reporter, tools: ToolCatalog, known: _Known
) -> Iterator[tuple[Path, str, bool, _Known]]:
    """Every text of a step that is rendered: where it stands, whether it is a condition, what it can see."""
    data = value_at(report.document, path)
    for key, value in data.items() if isinstance(data, dict) else ():
        if key in _NO_TEMPLATES or key == "tool":
            continue
        yield from ((where, text, when, known) for where, text, when in _strings(value, (*path, key), frozenset()))
    for index, task in enumerate(step.tasks):
        where: Path = (*path, "tool", index)
        inside = _Known(known.names | _inputs(task), known.keys)
        raw = tools.raw_keys(task.kind) if task.kind in tools.kinds() else frozenset({"code"})
        for place, text, when in _strings(value_at(report.document, where), where, _NO_TEMPLATES | raw):
            yield place, text, when, inside


def _inputs(task: TaskPlan) -> frozenset[str]:
    """The keys of its input: names for the rest of the task."""
    return frozenset(task.input.raw) if isinstance(task.input.raw, dict) else frozenset()


def _strings(data: Any, path: Path, skipped: Collection[str]) -> Iterator[tuple[Path, str, bool]]:
    if isinstance(data, str):
        yield path, data, path[-1] == "when"
    elif isinstance(data, dict):
        for key, value in data.items():
            if key not in skipped:
                yield from _strings(value, (*path, key), frozenset())
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from _strings(item, (*path, index), frozenset())
