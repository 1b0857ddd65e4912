"""The threads of a lane: they take the rows that may begin by themselves, one after the other.

So short rows follow each other without a word from the lane, which is woken when there is something to do for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from noetl_celery.runtime.row import RowEnd
from noetl_celery.store.rows import TakenRow


@dataclass(frozen=True, slots=True)
class Worked:
    """A row that has come out of its thread: how it ended, its retries so far, how long it was there, and when it came
    (Unix time)."""

    row: TakenRow
    end: RowEnd
    retries: int
    seconds: float
    at: float


class Crew:
    """Rows that may begin, threads that run them, and what came of them. All but the threads' part is the lane's."""

    def __init__(
        self,
        threads: Executor,
        run: Callable[[TakenRow], tuple[RowEnd, int]],
        goes_on: Callable[[RowEnd], bool],
        enough: int,
    ) -> None:
        """``goes_on`` is asked in the thread after each row: may it take another one? ``enough``: the lane is woken by
        so many rows that have ended."""
        self._threads, self._run, self._goes_on, self._enough = threads, run, goes_on, enough
        self._released: deque[TakenRow] = deque()
        self._ended: deque[tuple[Worked, bool]] = deque()
        self._active = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._patient = False
        #: the lane is woken when so few rows are left that may begin
        self._low = 0
        #: on the monotonic clock: until then released rows may begin
        self._until = 0.0

    @property
    def released(self) -> int:
        """How many rows may begin, and have not."""
        return len(self._released)

    def release(self, rows: Iterable[TakenRow], until: float) -> None:
        """These rows, and those that were released before, may begin until then."""
        self._until = until
        self._released.extend(rows)
        self._low = len(self._released) // 2

    def withdraw(self) -> list[TakenRow]:
        """None of them begins any more: those that have not."""
        self._until = 0.0
        left = []
        while (row := self._pop()) is not None:
            left.append(row)
        return left

    def start(self, places: int) -> None:
        """Sees to it that as many threads are at work as there are rows for and places."""
        with self._lock:
            more = max(0, min(places - self._active, len(self._released)))
            self._active += more
        for _ in range(more):
            self._threads.submit(self._work)

    def collect(self, seconds: float, *, patient: bool) -> Iterator[Worked]:
        """Rows that have ended; waits for the first one for so long, or if ``patient``, until it is worth while.

        The place of a row after which its thread did not go on is free when the next one is asked for.
        """
        self._patient = patient
        if patient or not self._ended:
            self._wake.wait(seconds)
        self._wake.clear()
        while self._ended:
            worked, goes_on = self._ended.popleft()
            yield worked
            if not goes_on:
                self._leave()

    def _pop(self) -> TakenRow | None:
        try:
            return self._released.popleft()
        except IndexError:
            return None

    def _work(self) -> None:
        while time.monotonic() < self._until and (row := self._pop()) is not None:
            if len(self._released) == self._low:
                self._wake.set()
            begun = time.monotonic()
            end, retries = self._run(row)
            goes_on = self._goes_on(end)
            self._ended.append((Worked(row, end, retries, time.monotonic() - begun, time.time()), goes_on))
            if not goes_on:
                self._wake.set()
                return
            if not self._patient or len(self._ended) >= self._enough:
                self._wake.set()
        self._leave()
        self._wake.set()

    def _leave(self) -> None:
        with self._lock:
            self._active -= 1
