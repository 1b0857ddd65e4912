"""A line that comes when a command takes longer than a moment, and goes when it has ended."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self

from noetl_celery.cli.console import live, seconds_text

#: nothing is shown before; then it is drawn anew so often
FIRST_SECONDS, AGAIN_SECONDS = 2.0, 0.5


class Passing:
    """On a terminal, on stderr: what is being done, and since when; from the second second on. Nothing elsewhere."""

    def __init__(self, text: str) -> None:
        self._text, self._since = text, time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="noetl-passing", daemon=True)

    def __enter__(self) -> Self:
        if live(sys.stderr):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def say(self, text: str) -> None:
        """From now on that is what is being done."""
        self._text = text

    def _draw(self) -> None:
        pause, shown = FIRST_SECONDS, False
        while not self._ended.wait(pause):
            line = f"{self._text}  {seconds_text(time.monotonic() - self._since)}"
            # One more column, and the line would go on below, where nothing clears it.
            self._write(f"\r{_cut(line, shutil.get_terminal_size().columns - 1)}\x1b[K")
            pause, shown = AGAIN_SECONDS, True
        if shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: max(0, columns - 1)]}…"
