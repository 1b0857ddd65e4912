"""How far the steps of an execution are, in numbers and words. Pure: whoever watches brings looks and their times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from noetl_celery.report import StepProgress, Summary
from noetl_celery.words import counted, rate_text, seconds_text

#: open steps that are shown at most
MOST_STEPS = 12
#: a rate is that of the last seconds; of rows that end seldom, of so many more of them
WINDOW_SECONDS, LONGEST_WINDOW_SECONDS, FEW_ROWS = 10.0, 60.0, 10
#: what would take longer is not foretold
FORETOLD_SECONDS = 30 * 86_400.0


class Rate:
    """Rows per second over the last few seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, done: int) -> None:
        """Notes how many rows were done at this time, in seconds; fewer than before: the step has begun again."""
        if self._points and done < self._points[-1][1]:
            self._points.clear()
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] < now - LONGEST_WINDOW_SECONDS:
            self._points.popleft()

    def per_second(self) -> float | None:
        """The rate, or None while there is too little to tell."""
        if not self._points:
            return None
        last, after = self._points[-1]
        first, before = last, after
        for time, done in reversed(self._points):
            if last - first >= WINDOW_SECONDS and after - before >= FEW_ROWS:
                break
            first, before = time, done
        return (after - before) / (last - first) if last - first >= 0.5 else None


@dataclass(slots=True)
class Rates:
    """The rates of all steps that somebody watches, by stage."""

    _of: dict[int, Rate] = field(default_factory=dict)

    def add(self, now: float, steps: Iterable[StepProgress]) -> None:
        """Notes a look at the open steps; those that are not open any more are forgotten."""
        self._of = {step.stage_id: self._of.get(step.stage_id, Rate()) for step in steps}
        for step in steps:
            self._of[step.stage_id].add(now, step.done)

    def per_second(self, step: StepProgress) -> float | None:
        """The rate of a step, or None while there is too little to tell."""
        rate = self._of.get(step.stage_id)
        return None if rate is None else rate.per_second()


def share(step: StepProgress) -> float | None:
    """Which part of its rows is done, from 0 to 1; None if nobody knows how many there are.

    A source that got more rows than it had when the loop began is at 1 until it is empty.
    """
    if step.total is None:
        return None
    return min(1.0, step.done / step.total) if step.total > 0 else 1.0


def seconds_left(step: StepProgress, rate: float | None) -> float | None:
    """How long the rest takes at this rate; None if nobody can tell."""
    if step.total is None or not rate or step.done >= step.total:
        return None
    seconds = (step.total - step.done) / rate
    return seconds if seconds <= FORETOLD_SECONDS else None


def rows_words(step: StepProgress, rate: float | None) -> list[str]:
    """How far a loop is: ``1,200 of 5,000 rows``, ``24%``, ``250/s``, ``15 s left``; of a plain step nothing."""
    if step.kind == "single":
        return []
    words = [counted(step.done, "row") if step.total is None else f"{step.done:,} of {step.total:,} rows"]
    part, left = share(step), seconds_left(step, rate)
    if part is not None:
        words.append(f"{math.floor(100 * part)}%")
    if rate:
        words.append(rate_text(rate))
    if left is not None:
        words.append(f"{seconds_text(math.ceil(left)).replace('.0 s', ' s')} left")
    return words


def trouble_words(step: StepProgress) -> list[str]:
    """What did not go well at once: ``3 failed``, ``12 retries``."""
    return [f"{step.failed:,} failed"] * (step.failed > 0) + [counted(step.retries, "retry")] * (step.retries > 0)


def work_words(step: StepProgress) -> list[str]:
    """What is under way, and what waits for what: ``24 frames (2 of 4 open)``, ``16 at work``, ``8 wait (3 throttled,
    next in 4 s)``, ``2 lanes wait for a worker``."""
    words = []
    if step.kind == "cursor":
        most = f" of {step.max_in_flight}" if step.max_in_flight else ""
        opened = f" ({step.open_frames}{most} open)" if step.open_frames else ""
        words.append(counted(step.frames, "frame") + opened)
    if step.kind != "single" and step.at_work:
        words.append(f"{step.at_work:,} at work")
    if step.paced:
        words.append("pace: auto")
    if step.parked:
        notes = [f"{step.throttled:,} throttled"] * (step.throttled > 0)
        if step.next_seconds is not None:
            notes.append(f"next in {max(0, math.ceil(step.next_seconds))} s" if step.next_seconds > 0 else "next now")
        words.append(f"{step.parked:,}{'+' * step.more_parked} wait" + (f" ({', '.join(notes)})" if notes else ""))
    if step.waiting and not step.at_work:
        words.append(f"{counted(step.waiting, 'lane')} {'waits' if step.waiting == 1 else 'wait'} for a worker")
    return words


def step_words(step: StepProgress, rate: float | None) -> str:
    """All of it in one line: ``1,200 rows, 250/s, 3 failed, 24 frames (2 open), 5.1 s``; of a plain step mostly how
    long it has been running."""
    words = [*rows_words(step, rate), *trouble_words(step), *work_words(step), seconds_text(step.seconds)]
    return ", ".join(words)


def more_words(steps: int) -> str:
    """``… and 88 more steps``."""
    return f"… and {counted(steps, 'more step')}"


def summary_words(summary: Summary) -> str:
    """``5,000 rows in 12.3 s (406/s): 4,997 ok, 3 failed; 17 retries; slowest step: drain (12.1 s)``."""
    time = seconds_text(summary.seconds)
    words = []
    if summary.rows is not None:
        rate = f" ({rate_text(summary.per_second)})" if summary.per_second else ""
        failed = f": {summary.ok:,} ok, {summary.failed:,} failed" if summary.failed else ""
        words.append(f"{counted(summary.rows, 'row')} in {time}{rate}{failed}")
    if summary.retries:
        words.append(counted(summary.retries, "retry"))
    if summary.slowest is not None:
        words.append(f"slowest step: {summary.slowest} ({seconds_text(summary.slowest_seconds)})")
    return "; ".join(words) or f"done in {time}"
