"""Event names in arcs: ``call.done`` and ``call.error`` were a step's end before ``step.done`` and ``step.failed``."""

from __future__ import annotations

import re
from typing import Any

from noetl_celery.playbook.older_parts import Findings
from noetl_celery.playbook.source import YamlList, YamlMap

_OLDER = re.compile(r"""(['"])call\.(done|error)\1""")


def with_events_of_today(step: YamlMap, findings: Findings) -> YamlMap:
    """The step with today's names in its arcs; the same object if there is nothing to change."""
    following = step.get("next")
    arcs = following.get("arcs") if isinstance(following, YamlMap) else following
    if not isinstance(arcs, YamlList) or not any(_is_older(arc) for arc in arcs):
        return step
    done = "loop.done" if "loop" in step else "step.done"
    changed = YamlList([_arc(arc, done, findings) for arc in arcs], mark=arcs.mark, marks=list(arcs.marks))
    step = step.derived(*step)
    if isinstance(following, YamlMap):
        following = following.derived(*following)
        following["arcs"] = changed
        step["next"] = following
    else:
        step["next"] = changed
    return step


def _is_older(arc: Any) -> bool:
    when = arc.get("when", arc.get("cond")) if isinstance(arc, YamlMap) else None
    return isinstance(when, str) and "event" in when and _OLDER.search(when) is not None


def _arc(arc: Any, done: str, findings: Findings) -> Any:
    if not _is_older(arc):
        return arc
    key = "when" if "when" in arc else "cond"
    today = {"done": done, "error": "step.failed"}
    for name in dict.fromkeys(found.group(2) for found in _OLDER.finditer(arc[key])):
        hint = f"write `event.name == '{today[name]}'`"
        findings.older(f"event.name == 'call.{name}'", arc.mark_of(key), hint=hint)
    arc = arc.derived(*arc)
    arc[key] = _OLDER.sub(lambda found: f"{found.group(1)}{today[found.group(2)]}{found.group(1)}", arc[key])
    return arc
