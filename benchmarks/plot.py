"""The picture: one panel per case, bars with the range of their runs, or a line where a case has points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import spread, summary
from benchmarks.model import OURS, CaseResult

COLUMNS = 3
OUR_COLOUR, THEIR_COLOUR = "#1f6f8b", "#c9c9c9"


def write_plot(path: Path, results: Sequence[CaseResult]) -> None:
    """Draws all cases that were run; nothing if there is none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [result for result in results if any(result.samples.values())]
    if not drawn:
        return
    lines = -(-len(drawn) // COLUMNS)
    figure, grid = pyplot.subplots(lines, COLUMNS, figsize=(5 * COLUMNS, 3.2 * lines), squeeze=False)
    panels = list(grid.flat)
    for panel, result in zip(panels, drawn, strict=False):
        (_line if result.case.axis else _bars)(panel, result)
        panel.set_title(result.case.title, fontsize=9, loc="left")
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    for panel in panels[len(drawn) :]:
        panel.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(panel: Any, result: CaseResult) -> None:
    figure, found = result.case.figure, summary(result)
    names = list(reversed(found))
    values = [found[name].get(figure, 0.0) for name in names]
    ranges = [spread(result.samples[name], figure) for name in names]
    errors = [
        [max(0.0, value - low) for value, (low, _) in zip(values, ranges, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, ranges, strict=True)],
    ]
    colours = [OUR_COLOUR if name.startswith(OURS) else THEIR_COLOUR for name in names]
    panel.barh(names, values, xerr=errors, color=colours, error_kw={"elinewidth": 1})
    panel.set_xlabel(result.case.unit, fontsize=8)


def _line(panel: Any, result: CaseResult) -> None:
    found = summary(result)
    points = sorted(
        (contestant.at, found[contestant.name].get(result.case.figure, 0.0))
        for contestant in result.case.contestants
        if contestant.at is not None and contestant.name in found
    )
    panel.plot([at for at, _ in points], [value for _, value in points], marker="o", color=OUR_COLOUR)
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel(result.case.axis, fontsize=8)
    panel.set_ylabel(result.case.unit, fontsize=8)
