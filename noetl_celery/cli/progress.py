"""What people see while an execution runs, and when it has ended."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from noetl_celery.cli.console import (
    RED,
    YELLOW,
    live,
    note,
    out,
    paint,
    painted_status,
    quiet,
    seconds_text,
    short_json,
)
from noetl_celery.progress import MOST_STEPS, Rates, more_words, step_words, summary_words

if TYPE_CHECKING:
    from noetl_celery.cli.bars import Bars
    from noetl_celery.execution import Execution
    from noetl_celery.report import Snapshot
    from noetl_celery.store.ledger import Books

#: nothing is shown before; without a terminal a line per step at most so often
FIRST_SECONDS = PLAIN_SECONDS = 2.0


class ProgressView:
    """A bar per open step on a terminal, plain lines otherwise; on stderr, and nothing where notes are unwanted."""

    def __init__(self, execution_id: int) -> None:
        self._execution_id = execution_id
        self._bars: Bars | None = None
        self._rates = Rates()
        self._last: tuple[Any, ...] = ()
        self._next = time.monotonic() + FIRST_SECONDS
        self._away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.close()

    def show(self, snapshot: Snapshot) -> None:
        """Shows a look at the execution."""
        self._note_away(snapshot)
        now = time.monotonic()
        self._rates.add(now, snapshot.steps)
        if now < self._next or quiet():
            return
        if live(sys.stderr):
            self._draw(snapshot)
        else:
            self._plain(snapshot)
            self._next = now + PLAIN_SECONDS

    def _note_away(self, snapshot: Snapshot) -> None:
        if (snapshot.away is not None) != self._away:
            self._away = snapshot.away is not None
            note(f"{snapshot.away}; trying again" if self._away else "PostgreSQL is back")

    def _draw(self, snapshot: Snapshot) -> None:
        if self._bars is None:
            from noetl_celery.cli.bars import Bars

            self._bars = Bars()
        self._bars.draw(snapshot, self._rates)

    def _plain(self, snapshot: Snapshot) -> None:
        key = (snapshot.status, *((s.stage_id, s.done, s.failed, s.frames, s.parked) for s in snapshot.steps))
        if key == self._last or snapshot.final:
            return
        self._last = key
        for step in snapshot.steps[:MOST_STEPS]:
            note(f"{step.step}: {step_words(step, self._rates.per_second(step))}")
        if len(snapshot.steps) > MOST_STEPS:
            note(more_words(len(snapshot.steps) - MOST_STEPS))
        if not snapshot.steps:
            note(f"execution {self._execution_id}: {snapshot.status}")


def show_summary(execution: Execution) -> None:
    """What it came to, in one line on stdout."""
    out(summary_words(execution.summary()))


def show_execution(execution: Execution) -> None:
    """The summary on stdout: status, duration, a line per step, the error if there is one, and what to do about it."""
    from noetl_celery.explanation import look_at_rows, remedy

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
        if step["failed"] and row["status"] == "COMPLETED":
            kind = (step["first_failure"] or {}).get("kind")
            _show_todo(look_at_rows(execution.id, step["step_name"], kind))
    error = row["error"]
    if error:
        place = ", ".join(f"{key} '{error[key]}'" for key in ("step", "task") if error.get(key))
        out(f"error{f' in {place}' if place else ''}: {error.get('kind')}: {short_json(error.get('message'), 2000)}")
    if row["status"] == "FAILED":
        _show_todo(remedy(row))


def _show_todo(text: str) -> None:
    out(f"  {paint('→', YELLOW, sys.stdout)} {text}")


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
