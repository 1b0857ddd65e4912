"""A plan as data, for whoever shows it: steps, arcs, tasks, what it needs; and short words for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from noetl_celery.errors import TemplateError
from noetl_celery.playbook import graph
from noetl_celery.playbook.plan import Arc, LoopPlan, Plan, StepPlan, TaskPlan
from noetl_celery.template import TemplateSyntax, Value, compile_value, scope

#: characters of a condition that are shown
CONDITION = 60
_BRACES = re.compile(r"\s*\{\{\s*(.*?)\s*\}\}\s*", re.S)


def described(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data: steps in the order in which they are reached, those that are not reached last.

    Credentials and playbooks are named as the workload's defaults make them; what only a run can tell stays a
    template.
    """
    arcs = {name: [arc.step for arc in step.next.arcs] for name, step in plan.steps.items()}
    reached = graph.reached(arcs, plan.entry)
    order = [*_in_order(arcs, plan.entry), *(name for name in plan.steps if name not in reached)]
    steps = [_step(plan.steps[name], plan, reached=name in reached) for name in order]
    tasks = [task for step in steps for task in step["tasks"]]
    used = [task["auth"] for task in tasks] + [step["loop"].get("auth") for step in steps if step["loop"]]
    return {
        "path": plan.path,
        "name": plan.name,
        "entry": plan.entry,
        "pool": plan.pool,
        "workload": sorted(plan.workload),
        "credentials": sorted({name for name in used if name}),
        "playbooks": sorted({task["playbook"] for task in tasks if task["playbook"]}),
        "steps": steps,
    }


def label(step: Mapping[str, Any]) -> list[str]:
    """What a node says: its name, its loop, its tools."""
    lines = [step["name"]]
    if step["loop"]:
        lines.append(step["loop"]["mode"] if step["loop"]["mode"] != "cursor" else f"cursor {step['loop']['kind']}")
    kinds = [task_text(task) for task in step["tasks"]]
    return [*lines, " → ".join(kinds)] if kinds else lines


def loop_text(loop: Mapping[str, Any]) -> str:
    """A loop in one line: ``cursor postgres (pg) as item, frames of 50, 2 of them open, …``."""
    flight = shortened(loop["max_in_flight"] or (16 if loop["mode"] == "parallel" else 1), CONDITION)
    if loop["mode"] != "cursor":
        at_once = f", {flight} at once" if loop["mode"] == "parallel" else ""
        return f"{loop['mode']} over {shortened(loop['items'], CONDITION)} as {loop['iterator']}{at_once}"
    auth = f" ({loop['auth']})" if loop["auth"] else ""
    rows, width = (shortened(loop["frame"][key], CONDITION) for key in ("max_rows", "row_concurrency"))
    size = f"frames of {rows}, {flight} of them open, {width} at once in each"
    return f"cursor {loop['kind']}{auth} as {loop['iterator']}, {size}"


def task_text(task: Mapping[str, Any]) -> str:
    """A task's kind; of a call, what is called."""
    return f"{task['kind']} {task['playbook']}" if task["playbook"] else str(task["kind"])


def shortened(text: Any, limit: int) -> str:
    """Text on one line, without the braces of a template that is all of it, cut to ``limit`` characters."""
    said = " ".join(str(text).split())
    inner = _BRACES.fullmatch(said)
    if inner is not None and "{{" not in inner[1]:
        said = inner[1]
    return said if len(said) <= limit else f"{said[: limit - 1]}…"


def _in_order(arcs: Mapping[str, list[str]], entry: str) -> Iterator[str]:
    """Breadth first: what comes next stands next."""
    seen = [entry]
    for name in seen:
        seen += [target for target in dict.fromkeys(arcs[name]) if target in arcs and target not in seen]
    yield from seen


def _step(step: StepPlan, plan: Plan, *, reached: bool) -> dict[str, Any]:
    return {
        "name": step.name,
        "line": step.line,
        "reached": reached,
        "pool": step.pool,
        "timeout_seconds": _given(step.timeout),
        "failure_mode": step.failure_mode,
        "tasks": [_task(task, plan) for task in step.tasks],
        "loop": _loop(step.loop, plan) if step.loop is not None else None,
        "sets": [target if "." in target else f"ctx.{target}" for target, _ in step.set],
        "admission": [{"when": _given(rule.when), "allow": rule.allow} for rule in step.admit],
        "next": {
            "mode": step.next.mode,
            "on_no_match": step.next.on_no_match,
            "arcs": [_arc(arc, step, plan) for arc in step.next.arcs if arc.step in plan.steps],
        },
    }


def _arc(arc: Arc, step: StepPlan, plan: Plan) -> dict[str, Any]:
    return {"step": arc.step, "when": _given(arc.when), "back": (step.name, arc.step) in plan.back_edges}


def _task(task: TaskPlan, plan: Plan) -> dict[str, Any]:
    config = task.config.raw if isinstance(task.config.raw, dict) else {}
    auth = config.get("auth", config.get("credential"))
    if isinstance(auth, dict):
        auth = auth.get("credential", auth.get("name"))
    return {
        "name": task.name,
        "kind": task.kind,
        "line": task.line,
        "auth": _rendered(auth, plan),
        "playbook": _rendered(config.get("path"), plan) if task.kind == "playbook" else None,
    }


def _loop(loop: LoopPlan, plan: Plan) -> dict[str, Any]:
    found = {
        "mode": loop.mode,
        "iterator": loop.iterator,
        "max_in_flight": _given(loop.max_in_flight),
        "items": _given(loop.items),
    }
    if loop.cursor is not None:
        sizes = ("max_rows", "row_concurrency", "lease_seconds", "max_seconds", "max_bytes")
        found |= {
            "kind": loop.cursor.kind,
            "auth": _rendered(_given(loop.cursor.auth), plan),
            "claim": loop.cursor.claim.raw,
            "frame": {key: _given(getattr(loop.frame, key)) for key in sizes} | {"process": loop.frame.process},
        }
    return found


def _given(value: Value | None) -> Any:
    return None if value is None else value.raw


def _rendered(raw: Any, plan: Plan) -> str | None:
    """A name, with the defaults of the workload in it; as it is written where only a run knows."""
    if not isinstance(raw, str):
        return None
    names = scope(execution_id="", workload=plan.workload, ctx={}, results={})
    try:
        rendered = compile_value(raw, place="plan").render(names)
    except (TemplateError, TemplateSyntax):
        return raw
    return rendered if isinstance(rendered, str) and rendered else raw
