"""What people see while an execution runs, and when it has ended."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from noetl_celery.cli.console import RED, coloured, note, out, paint, painted_status, seconds_text, short_json

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from noetl_celery.execution import Execution
    from noetl_celery.report import Snapshot, StepProgress
    from noetl_celery.store.ledger import Books

#: without a terminal: at most a line per step so often, and none before
PLAIN_SECONDS = 2.0


class ProgressView:
    """A live line per open step on a terminal, plain lines otherwise; always on stderr."""

    def __init__(self, execution_id: int) -> None:
        self._execution_id = execution_id
        self._live: Live | None = None
        self._rates: dict[int, Rate] = {}
        self._last: tuple[Any, ...] = ()
        self._next = time.monotonic() + PLAIN_SECONDS
        self._away = False

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, no_color=not coloured(sys.stderr))
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Shows a look at the execution."""
        self._note_away(snapshot)
        now = time.monotonic()
        for step in snapshot.steps:
            self._rates.setdefault(step.stage_id, Rate()).add(now, step.done)
        if self._live is not None:
            self._live.update(self._table(snapshot), refresh=True)
        elif now >= self._next:
            self._plain(snapshot)
            self._next = now + PLAIN_SECONDS

    def _note_away(self, snapshot: Snapshot) -> None:
        if (snapshot.away is not None) != self._away:
            self._away = snapshot.away is not None
            note(f"{snapshot.away}; trying again" if self._away else "PostgreSQL is back")

    def _plain(self, snapshot: Snapshot) -> None:
        key = (snapshot.status, *((s.stage_id, s.done, s.failed, s.frames) for s in snapshot.steps))
        if key == self._last or snapshot.final:
            return
        self._last = key
        for step in snapshot.steps:
            note(f"{step.step}: {self._words(step)}")
        if not snapshot.steps:
            note(f"execution {self._execution_id}: {snapshot.status}")

    def _table(self, snapshot: Snapshot) -> Table:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for step in snapshot.steps:
            grid.add_row(Spinner("dots"), Text(step.step, style="bold"), Text(self._words(step)))
        if not snapshot.steps:
            grid.add_row(Spinner("dots"), Text(snapshot.status.lower()), Text(""))
        return grid

    def _words(self, step: StepProgress) -> str:
        return step_words(step, self._rates[step.stage_id].per_second())


class Rate:
    """Rows per second over the last few seconds."""

    window_seconds = 10.0

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def add(self, now: float, done: int) -> None:
        """Notes how many rows were done at this time."""
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] < now - self.window_seconds:
            self._points.pop(0)

    def per_second(self) -> float | None:
        """The rate, or None while there is too little to tell."""
        (first, before), (last, after) = self._points[0], self._points[-1]
        return (after - before) / (last - first) if last - first >= 0.5 else None


def step_words(step: StepProgress, rate: float | None) -> str:
    """``1,200 rows, 3 failed, 250/s, 24 frames (2 open), 5.1 s``; of a plain step only how long it has been running."""
    parts: list[str] = []
    if step.kind != "single":
        parts.append(_counted(step.done, "row") if step.total is None else f"{step.done:,} of {step.total:,} rows")
        if step.failed:
            parts.append(f"{step.failed:,} failed")
        if rate:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
        if step.kind == "cursor":
            parts.append(_counted(step.frames, "frame") + (f" ({step.open_frames} open)" if step.open_frames else ""))
    parts.append(seconds_text(step.seconds))
    return ", ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_execution(execution: Execution) -> None:
    """The summary on stdout: status, duration, a line per step, and the error if there is one."""
    row = execution.row()
    steps = execution.steps()
    seconds = execution.duration()
    status = painted_status(row["status"], sys.stdout)
    out(f"{row['path']}  {status}  {seconds_text(seconds)}  (execution {execution.id})")
    books = {book.stage_id: book for book in execution.books()}
    width = max((len(step["step_name"]) for step in steps), default=0)
    for step in steps:
        name, status = step["step_name"].ljust(width), painted_status(step["status"], sys.stdout)
        out(f"  {name}  {status}  {_counts(step)}")
        for line in book_lines(step["kind"], books.get(step["stage_id"])):
            out(f"  {'':{width}}  {line}")
    error = row["error"]
    if error:
        place = ", ".join(f"{key} '{error[key]}'" for key in ("step", "task") if error.get(key))
        out(f"error{f' in {place}' if place else ''}: {error.get('kind')}: {short_json(error.get('message'), 2000)}")


def book_lines(kind: str, books: Books | None) -> list[str]:
    """Where the rows of a step are, unless all ended well: of a loop that is at work or was cut short, with rows that
    ran again; and, in red, what does not add up."""
    if books is None:
        return []
    lines = []
    if kind != "single" and (books.claimed != books.ok + books.failed or books.reruns):
        parts = [f"{books.claimed:,} claimed", f"{books.ok:,} ok", f"{books.failed:,} failed"]
        for name in ("released", "parked", "ready", "taken"):
            number = getattr(books, name)
            parts += [f"{number:,} {_BOOK_WORDS[name]}"] if number else []
        parts += [f"{books.reruns:,} run again after a crash"] if books.reruns else []
        lines.append(f"rows: {', '.join(parts)}")
    return lines + [paint(f"ALARM: the books do not balance: {text}", RED, sys.stdout) for text in books.differences]


_BOOK_WORDS = {"released": "given up", "parked": "parked", "ready": "waiting", "taken": "at work"}


def _counts(step: dict[str, Any]) -> str:
    parts = []
    if step["kind"] != "single":
        parts.append(f"{step['ok']:,} ok")
        failed = f"{step['failed']:,} failed"
        parts.append(paint(failed, RED, sys.stdout) if step["failed"] else failed)
    if step["visit"] > 1:
        parts.append(f"visit {step['visit']}")
    parts.append(seconds_text(step["seconds"]))
    text = ", ".join(parts)
    first = step["first_failure"]
    return f"{text}; first failure: {first.get('kind')}: {short_json(first.get('message'))}" if first else text
