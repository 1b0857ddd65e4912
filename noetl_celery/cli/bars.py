"""A bar for each open step, drawn again and again on a terminal."""

from __future__ import annotations

import sys

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from noetl_celery.cli.console import coloured
from noetl_celery.progress import MOST_STEPS, Rates, more_words, rows_words, share, trouble_words, work_words
from noetl_celery.report import Snapshot, StepProgress
from noetl_celery.words import seconds_text

#: a narrower terminal gets the bar above its words
WIDE_COLUMNS = 76
BAR_COLUMNS = 24
_LEAST_NAME, _PADDING = 12, 1


class Bars:
    """Draws on stderr; what is drawn goes away at the end. Lines that are written there meanwhile come above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, no_color=not coloured(sys.stderr), highlight=False)
        self._spinner = Spinner("dots")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def draw(self, snapshot: Snapshot, rates: Rates) -> None:
        """Shows a look at an execution."""
        self._live.update(self._drawn(snapshot, rates), refresh=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()

    def _drawn(self, snapshot: Snapshot, rates: Rates) -> RenderableType:
        width, height = self._console.size
        parts: list[RenderableType] = []
        if snapshot.status != "RUNNING" or not snapshot.steps:
            parts.append(Text(snapshot.status.lower(), style="yellow"))
        steps = snapshot.steps[: _fitting(height, wide=width >= WIDE_COLUMNS)]
        if width >= WIDE_COLUMNS:
            parts.append(self._beside(steps, rates, width))
        else:
            parts += [self._below(step, rates, width) for step in steps]
        if len(snapshot.steps) > len(steps):
            parts.append(Text(more_words(len(snapshot.steps) - len(steps)), style="dim"))
        return Group(*parts)

    def _beside(self, steps: tuple[StepProgress, ...], rates: Rates, width: int) -> Table:
        grid = Table.grid(padding=(0, _PADDING))
        grid.add_column(width=1)
        longest = max((len(step.step) for step in steps), default=0)
        grid.add_column(width=min(longest, max(_LEAST_NAME, width // 4)), no_wrap=True, overflow="ellipsis")
        bars = any(step.total is not None for step in steps)
        if bars:
            grid.add_column(width=BAR_COLUMNS, no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for step in steps:
            bar = [_bar(step, BAR_COLUMNS) or Text()] if bars else []
            grid.add_row(self._spinner, Text(step.step, style="bold"), *bar, _far(step, rates))
            under_way = _under_way(step)
            if under_way:
                grid.add_row("", "", *[Text()] * len(bar), under_way)
        return grid

    def _below(self, step: StepProgress, rates: Rates, width: int) -> Table:
        grid = Table.grid(padding=(0, _PADDING))
        grid.add_column(width=1)
        grid.add_column(width=width - 1 - _PADDING, overflow="fold")
        grid.add_row(self._spinner, Text(step.step, style="bold", no_wrap=True, overflow="ellipsis"))
        for part in (_bar(step, width - 1 - _PADDING), _far(step, rates), _under_way(step)):
            if part:
                grid.add_row("", part)
        return grid


def _fitting(height: int, *, wide: bool) -> int:
    """How many steps have room, with the lines that they may need."""
    lines = 2 if wide else 5
    return max(1, min(MOST_STEPS, (height - 2) // lines))


def _bar(step: StepProgress, width: int) -> ProgressBar | None:
    part = share(step)
    if part is None:
        return None
    return ProgressBar(total=1.0, completed=part, width=width, complete_style="cyan", finished_style="green")


def _far(step: StepProgress, rates: Rates) -> Text:
    return Text("  ".join([*rows_words(step, rates.per_second(step)), seconds_text(step.seconds)]))


def _under_way(step: StepProgress) -> Text:
    text = Text()
    if step.failed:
        text.append(trouble_words(step)[0], style="red")
    for words in [*trouble_words(step)[bool(step.failed) :], *work_words(step)]:
        text.append(f"{', ' if text else ''}{words}", style="dim")
    return text
