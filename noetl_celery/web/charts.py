"""Numbers as places in a drawing: shares of its width in per cent, heights in pixels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: spans of time that people read easily, in seconds
_SPANS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
#: bars of a plot, at most
BARS = 90
PLOT_HEIGHT = 96


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle: ``x`` and ``width`` in per cent, ``y`` and ``height`` in pixels, ``kind`` for its colour."""

    x: float
    width: float
    kind: str
    title: str = ""
    y: float = 0.0
    height: float = 0.0


@dataclass(frozen=True, slots=True)
class Plot:
    """A series of bars; ``most``: the value of a full bar, ``seconds``: the span of each, ``total``: of all spans."""

    bars: tuple[Bar, ...]
    most: float
    seconds: int
    total: float


def span_seconds(seconds: float) -> int:
    """The span of a bar, so that a plot over so many ``seconds`` has at most :data:`BARS`."""
    return next((span for span in _SPANS if seconds / span <= BARS), int(seconds / BARS) + 1)


def plot(points: Sequence[Mapping[str, Any]], kinds: Sequence[str], *, span: int, seconds: float) -> Plot:
    """Stacked bars of ``{span, <kind>: count, …}``, as rates per second."""
    count = max(int(seconds / span) + 1, *(point["span"] + 1 for point in points)) if points else 1
    most = max((sum(point[kind] for kind in kinds) for point in points), default=0)
    bars = []
    for point in points:
        floor = float(PLOT_HEIGHT)
        for kind in kinds:
            if not point[kind]:
                continue
            height = max(PLOT_HEIGHT * point[kind] / most, 1.0)
            floor = max(floor - height, 0.0)
            title = f"{point['span'] * span:,} s: {point[kind]:,} {kind}, {point[kind] / span:,.1f}/s"
            bars.append(Bar(100 * point["span"] / count, 90 / count, kind, title, floor, height))
    return Plot(tuple(bars), most / span, span, count * span)


@dataclass(frozen=True, slots=True)
class Window:
    """The time that a timeline shows."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return max((self.end - self.start).total_seconds(), 0.001)

    def bar(self, start: datetime, end: datetime, kind: str, title: str = "") -> Bar:
        """Where something stands that went on from ``start`` to ``end``; never too narrow to be seen."""
        x = 100 * max((start - self.start).total_seconds(), 0.0) / self.seconds
        width = 100 * max((end - max(start, self.start)).total_seconds(), 0.0) / self.seconds
        width = max(min(width, 100.0), 0.4)
        return Bar(min(max(x, 0.0), 100.0 - width), width, kind, title)


def window(starts: Iterable[datetime], ends: Iterable[datetime]) -> Window:
    """From the first start to the last end."""
    return Window(min(starts), max(ends))
