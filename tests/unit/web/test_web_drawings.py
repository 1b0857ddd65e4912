"""Numbers as places in a drawing, states in the graph, lines of a playbook."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.playbook import compile_playbook
from noetl_celery.report import StepProgress
from noetl_celery.tools.registry import ToolRegistry
from noetl_celery.web import charts, drawings

START = datetime(2026, 1, 1, tzinfo=UTC)
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: p}
workflow:
  - step: start
    loop: {in: [1, 2], iterator: i, spec: {mode: parallel}}
    tool: {kind: noop}
    next: {arcs: [{step: a_name_that_is_far_too_long_for_a_box}]}
  - step: a_name_that_is_far_too_long_for_a_box
    tool: {kind: noop}
"""


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "span"), [(0, 1), (90, 1), (91, 2), (3600, 60), (86_400, 1800), (10**9, 11_111_112)]
)
def test_a_plot_has_few_bars_of_round_spans(seconds: float, span: int) -> None:
    assert charts.span_seconds(seconds) == span
    assert seconds / charts.span_seconds(seconds) <= charts.BARS


def test_bars_stand_on_each_other() -> None:
    points = [{"span": 0, "ok": 30, "failed": 10}, {"span": 3, "ok": 10, "failed": 0}]
    plot = charts.plot(points, ("ok", "failed"), span=2, seconds=8)
    assert (plot.most, plot.total) == (20, 10)
    ok, failed, later = plot.bars
    assert (ok.kind, failed.kind, ok.x, later.x) == ("ok", "failed", 0, 60)
    assert failed.y + failed.height == pytest.approx(ok.y)
    assert ok.y + ok.height == pytest.approx(charts.PLOT_HEIGHT)
    assert ok.height + failed.height == pytest.approx(charts.PLOT_HEIGHT)
    assert later.height == pytest.approx(charts.PLOT_HEIGHT / 4)


def test_a_plot_of_nothing() -> None:
    assert charts.plot([], ("ok",), span=1, seconds=0).bars == ()
    assert charts.plot([{"span": 0, "ok": 0}], ("ok",), span=1, seconds=0).bars == ()


def test_nothing_in_a_timeline_is_too_narrow_or_outside() -> None:
    window = charts.window([START], [after(1000)])
    assert window.bar(after(250), after(500), "ok").x == pytest.approx(25)
    for start, end in ((0, 0), (1000, 1000), (-5, 2000), (999.9, 1000)):
        bar = window.bar(after(start), after(end), "ok")
        assert bar.x >= 0
        assert bar.width >= 0.4
        assert bar.x + bar.width <= 100
    assert charts.window([START], [START]).bar(START, START, "ok").width > 0


def frame(**values: Any) -> dict[str, Any]:
    base = {"frame_id": 1, "frame": 0, "status": "COMPLETED", "rows": 10, "failed": 0, "asked_at": START}
    return {**base, "claimed_at": after(2), "ended_at": after(10), "now": after(20), **values}


def test_a_frame_is_its_claim_and_its_work() -> None:
    [line] = drawings.frames([frame(failed=5)])
    assert [bar.kind for bar in line.bars] == ["claim", "completed", "failed"]
    assert [round(bar.width) for bar in line.bars] == [20, 40, 40]
    assert line.seconds == 8
    [line] = drawings.frames([frame(status="RUNNING", ended_at=None, asked_at=None)])
    assert [(bar.kind, bar.width) for bar in line.bars] == [("open", 100)]
    assert drawings.frames([]) == drawings.stages([]) == []


def summary(name: str, **values: Any) -> dict[str, Any]:
    base = {"step_name": name, "kind": "collection", "status": "COMPLETED", "ok": 2, "failed": 0, "visit": 1}
    return {**base, "seconds": 1.0, **values}


def test_a_box_says_what_became_of_its_step() -> None:
    plan = compile_playbook(PLAYBOOK, file="p.yaml", tools=ToolRegistry(), cursors=CursorRegistry()).plan
    first, second = drawings.graph(plan, [summary("start", failed=1, visit=3)], []).boxes
    assert (first.state, first.words, first.share) == ("completed", "2 ok · 1 failed · visit 3 · 1.0 s", 1.0)
    assert (second.state, second.words, second.share) == ("waiting", "", None)
    assert len(second.name) == drawings.FITS
    assert "a_name_that_is_far_too_long_for_a_box" in second.title


@pytest.mark.parametrize(("total", "share"), [(None, None), (0, 1.0), (20, 0.5), (5, 1.0)])
def test_a_bar_needs_a_total_and_never_overflows(total: int | None, share: float | None) -> None:
    plan = compile_playbook(PLAYBOOK, file="p.yaml", tools=ToolRegistry(), cursors=CursorRegistry()).plan
    names = {"stage_id": 1, "step": "start", "visit": 1, "kind": "collection", "ok": 8, "failed": 2, "frames": 1}
    now = StepProgress(**names, open_frames=1, open_rows=1, seconds=1.0, total=total)  # type: ignore[arg-type]
    box = drawings.graph(plan, [summary("start", status="OPEN")], [now]).boxes[0]
    assert box.share == share


def test_lines_of_a_playbook_are_text_and_nothing_else() -> None:
    text = 'a: "<script>"\n\n# <b>\n'
    found = drawings.lines(text, {3: "failed"})
    assert [line.number for line in found] == [1, 2, 3]
    assert "<script>" not in "".join(line.html for line in found)
    assert "&lt;script&gt;" in found[0].html
    assert [line.mark for line in found] == ["", "", "failed"]
