"""What templates draw: the graph with its states, timelines, lines of a playbook. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from noetl_celery.playbook.outline import described, label
from noetl_celery.playbook.plan import Plan
from noetl_celery.progress import Rates, rows_words, share, trouble_words, work_words
from noetl_celery.report import StepProgress
from noetl_celery.web.charts import Bar, window
from noetl_celery.web.graph import HEIGHT, WIDTH, Drawing, Node, draw
from noetl_celery.words import seconds_text

#: characters that fit into a node
FITS = 24


@dataclass(frozen=True, slots=True)
class Box:
    """A step in the graph: its state (a CSS class), its words, and how much of its bar is full (0 to 1; None: none)."""

    node: Node
    name: str
    kind: str
    state: str
    words: str
    share: float | None
    title: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A drawing with states."""

    drawing: Drawing
    boxes: tuple[Box, ...]
    box_width: int = WIDTH
    box_height: int = HEIGHT


def graph(plan: Plan, steps: Sequence[Mapping[str, Any]], progress: Sequence[StepProgress]) -> Graph:
    """The steps of a plan with what became of them: ``steps`` are summaries of last visits."""
    drawing = draw(described(plan))
    visited = {step["step_name"]: step for step in steps}
    under_way = {step.step: step for step in progress}
    boxes = [_box(node, visited, under_way) for node in drawing.nodes]
    return Graph(drawing, tuple(boxes))


def _box(node: Node, visited: Mapping[str, Mapping[str, Any]], under_way: Mapping[str, StepProgress]) -> Box:
    assert node.step is not None
    name = node.step["name"]
    _, *kinds = label(node.step)
    step, now = visited.get(name), under_way.get(name)
    return Box(
        node,
        name=_fitting(name),
        kind=_fitting(" · ".join(kinds) or "router"),
        state=step["status"].lower() if step is not None else "waiting",
        words=_words(step, now) if step is not None else "",
        share=_share(step, now) if step is not None else None,
        title=f"{name}: {step['status'].lower() if step is not None else 'not visited'}",
    )


def _words(step: Mapping[str, Any], now: StepProgress | None) -> str:
    ok, failed = (now.ok, now.failed) if now else (step["ok"], step["failed"])
    parts = [] if step["kind"] == "single" else [f"{ok:,} ok", *([f"{failed:,} failed"] if failed else [])]
    parts += [f"visit {step['visit']}"] if step["visit"] > 1 else []
    return " · ".join([*parts, seconds_text(step["seconds"])])


def _share(step: Mapping[str, Any], now: StepProgress | None) -> float | None:
    if step["kind"] == "single":
        return None
    return 1.0 if now is None else share(now)


def _fitting(text: str) -> str:
    return text if len(text) <= FITS else f"{text[: FITS - 1]}…"


@dataclass(frozen=True, slots=True)
class Going:
    """An open step: which part is done (None: nobody knows), what to say about it, and what did not go well."""

    step: StepProgress
    share: float | None
    words: str
    trouble: str


def going(progress: Sequence[StepProgress], rates: Rates) -> list[Going]:
    """The open steps, with what the command line says about them."""
    return [
        Going(
            step,
            share(step),
            ", ".join([*rows_words(step, rates.per_second(step)), *work_words(step)]),
            ", ".join(trouble_words(step)),
        )
        for step in progress
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a timeline: what it is about, and its bars."""

    about: Mapping[str, Any]
    bars: tuple[Bar, ...]
    seconds: float


def stages(found: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Visits of steps as lines of one timeline."""
    if not found:
        return []
    ends = {stage["stage_id"]: stage["closed_at"] or stage["now"] for stage in found}
    span = window((stage["opened_at"] for stage in found), ends.values())
    lines = []
    for stage in found:
        start, end = stage["opened_at"], ends[stage["stage_id"]]
        seconds = (end - start).total_seconds()
        bar = span.bar(start, end, stage["status"].lower(), f"{stage['step']}: {seconds_text(seconds)}")
        lines.append(Line(stage, (bar,), seconds))
    return lines


def frames(found: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Frames as lines of one timeline: the claim, then the work on what it brought."""
    if not found:
        return []
    begun = {frame["frame_id"]: frame["asked_at"] or frame["claimed_at"] for frame in found}
    ends = {frame["frame_id"]: frame["ended_at"] or frame["now"] for frame in found}
    span = window(begun.values(), ends.values())
    lines = []
    for frame in found:
        start, claimed, end = begun[frame["frame_id"]], frame["claimed_at"], ends[frame["frame_id"]]
        seconds = (end - claimed).total_seconds()
        kind = "open" if frame["status"] == "RUNNING" else frame["status"].lower()
        good = claimed + (end - claimed) * (1 - frame["failed"] / max(frame["rows"], 1))
        bars = [span.bar(claimed, good, kind, f"frame {frame['frame']}: {seconds_text(seconds)}")]
        if frame["failed"]:
            bars.append(span.bar(good, end, "failed", f"{frame['failed']:,} of {frame['rows']:,} rows failed"))
        waited = (claimed - start).total_seconds()
        if waited > 0:
            bars.insert(0, span.bar(start, claimed, "claim", f"claim: {seconds_text(waited)}"))
        lines.append(Line(frame, tuple(bars), seconds))
    return lines


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a playbook; ``mark``: the state of the step that begins there, as a CSS class."""

    number: int
    html: Markup
    mark: str


def lines(text: str, marks: Mapping[int, str]) -> list[TextLine]:
    """A playbook's text, coloured, line by line."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers.data import YamlLexer

    coloured = highlight(text, YamlLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    return [TextLine(n, Markup(html), marks.get(n, "")) for n, html in enumerate(coloured, 1)]
