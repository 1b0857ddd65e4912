"""What the pages of an execution show: each view reads what it needs, and returns the names of its template."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from noetl_celery.client import Noetl
from noetl_celery.errors import InputError
from noetl_celery.execution import Execution
from noetl_celery.explanation import explain
from noetl_celery.progress import Rates
from noetl_celery.report import step_progress
from noetl_celery.store import browse, events, executions, lines, situation, timeline
from noetl_celery.web import charts, drawings

Query = Mapping[str, str]
Names = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a view is asked for. ``queues``: tells those that workers take now; None: nobody knows."""

    client: Noetl
    execution: Execution
    query: Query
    queues: Callable[[], frozenset[str] | None]
    #: of whoever follows a page
    rates: Rates


ROWS, LINES, EVENTS, FRAMES, STAGES, CHILDREN = 100, 500, 200, 60, 40, 20


def overview(asked: Asked) -> Names:
    """Where it is and why, its graph, its steps, rows over time."""
    client, execution = asked.client, asked.execution
    dead = client.settings.dead_after_seconds
    row, seconds, steps, open_, at, called = client.read(
        lambda c: (
            executions.get(c, execution.id),
            executions.duration(c, execution.id),
            executions.step_summaries(c, execution.id),
            executions.progress(c, execution.id),
            situation.of(c, execution.id, dead_after_seconds=dead),
            browse.executions(c, parent=execution.id, limit=CHILDREN),
        )
    )
    assert row is not None
    assert at is not None
    progress = [step_progress(line) for line in open_]
    asked.rates.add(time.monotonic(), progress)
    return {
        "execution": row,
        "seconds": seconds,
        "reasons": [] if row["status"] == "COMPLETED" else explain(at, asked.queues()),
        "steps": steps,
        "progress": drawings.going(progress, asked.rates),
        "drawing": drawings.graph(client.plan(row["catalog_id"]), steps, progress),
        "plots": _plots(client, steps),
        "children": called,
    }


def _plots(client: Noetl, steps: list[dict[str, Any]]) -> Names:
    """Rows over time of the loop that was opened last."""
    loops = [step for step in steps if step["kind"] != "single" and step["frames"]]
    if not loops:
        return {}
    last = loops[-1]
    span = charts.span_seconds(last["seconds"])
    points = client.read(lambda c: timeline.throughput(c, last["stage_id"], seconds=span))
    return {
        "step": last["step_name"],
        "rows": charts.plot(points, ("ok", "failed"), span=span, seconds=last["seconds"]),
        "again": charts.plot(points, ("retries", "reruns"), span=span, seconds=last["seconds"]),
    }


def timeline_(asked: Asked) -> Names:
    """Visits of steps over time; of one of them the frames."""
    client, execution = asked.client, asked.execution
    before = _number(asked.query, "before", timeline.END)
    row, stages = client.read(
        lambda c: (executions.get(c, execution.id), timeline.stages(c, execution.id, limit=STAGES))
    )
    wanted = asked.query.get("stage") or _busiest(stages)
    chosen = next((stage for stage in stages if str(stage["stage_id"]) == wanted), None)
    frames = []
    if chosen is not None:
        frames = client.read(lambda c: timeline.frames(c, chosen["stage_id"], before=before, limit=FRAMES))
    older = {"stage": wanted, "before": frames[-1]["frame"]} if len(frames) == FRAMES else None
    return {
        "execution": row,
        "stages": drawings.stages(stages),
        "chosen": chosen,
        "frames": drawings.frames(frames),
        "older": f"?{urlencode(older)}" if older else "",
    }


def _busiest(stages: list[dict[str, Any]]) -> str | None:
    """The last loop with frames, else the last visit at all."""
    loops = [stage for stage in stages if stage["kind"] != "single"]
    found = (loops or stages)[-1:]
    return str(found[0]["stage_id"]) if found else None


def rows(asked: Asked) -> Names:
    """The rows of a step's last visit, with their errors."""
    client, execution = asked.client, asked.execution
    row, steps = client.read(lambda c: (executions.get(c, execution.id), executions.step_summaries(c, execution.id)))
    names = [step["step_name"] for step in steps if step["frames"]]
    failing = [step["step_name"] for step in steps if step["failed"]]
    step = asked.query.get("step") or next(iter(failing or names[::-1]), "")
    failed = asked.query.get("failed", "") == "yes"
    found: list[dict[str, Any]] = []
    stage = client.read(lambda c: browse.last_stage(c, execution.id, step)) if step else None
    if stage is not None:
        stage_id, after = stage["stage_id"], _place(asked.query.get("after", ""))
        found = client.read(lambda c: browse.rows(c, stage_id, after=after, limit=ROWS, failed=failed))
    last = found[-1] if len(found) == ROWS else None
    more = {"step": step, "failed": asked.query.get("failed", "")}
    if last is not None:
        more["after"] = ".".join(map(str, browse.place(last)))
    return {
        "execution": row,
        "step": step,
        "names": names,
        "failed": failed,
        "rows": found,
        "more": f"?{urlencode(more)}" if last else "",
        "failing": step in failing,
    }


def logs(asked: Asked) -> Names:
    """What tasks printed, the last lines last; with ``after`` those from there on."""
    client, execution = asked.client, asked.execution
    row = client.read(lambda c: executions.get(c, execution.id))
    if asked.query.get("after"):
        after = _number(asked.query, "after", 0)
    else:
        after = client.read(lambda c: lines.before_the_last(c, execution.id, count=LINES))
    found = client.read(lambda c: lines.read(c, execution.id, after=after, limit=LINES))
    more = f"?after={found[-1]['log_id']}" if asked.query.get("after") and len(found) == LINES else ""
    return {"execution": row, "lines": found, "more": more, "first": after > 0}


def events_(asked: Asked) -> Names:
    """What happened, the latest first."""
    client, execution = asked.client, asked.execution
    before = _number(asked.query, "before", events.LATEST)
    row, found = client.read(
        lambda c: (executions.get(c, execution.id), events.latest(c, execution.id, before=before, limit=EVENTS))
    )
    older = f"?before={found[-1]['event_id']}" if len(found) == EVENTS else ""
    return {"execution": row, "events": found, "older": older}


def playbook(asked: Asked) -> Names:
    """The text that runs, line by line, with the states of its steps; the workload."""
    client, execution = asked.client, asked.execution
    row, steps = client.read(lambda c: (executions.get(c, execution.id), executions.step_summaries(c, execution.id)))
    assert row is not None
    entry = client.entry(row["catalog_id"])
    plan = client.plan(row["catalog_id"])
    states = {step["step_name"]: step["status"].lower() for step in steps}
    marks = {step.line: states.get(step.name, "waiting") for step in plan.steps.values() if step.line is not None}
    return {"execution": row, "entry": entry, "lines": drawings.lines(entry["content"], marks)}


TABS: Mapping[str, Callable[[Asked], Names]] = {
    "overview": overview,
    "timeline": timeline_,
    "rows": rows,
    "logs": logs,
    "events": events_,
    "playbook": playbook,
}


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InputError(f"{name}={text!r} is no number")
    return int(text)


def _place(text: str) -> tuple[int, int, int]:
    """Behind which row a page begins, as a link says it."""
    if not text:
        return browse.START
    try:
        frame, frame_id, row = (int(part) for part in text.split("."))
    except ValueError:
        raise InputError(f"there is no page {text!r}") from None
    return frame, frame_id, row
