"""What a task prints, on its way to the log: whole lines, long ones cut, and not without end."""

from __future__ import annotations

import codecs
from collections.abc import Callable

#: of one run of a task; each line counts as so many more, as it costs more than its characters
MOST_CHARACTERS = 1 << 20
LINE_COSTS = 100
LONGEST_LINE = 8192


class Printed:
    """Hands on complete lines of what comes piece by piece. Bounded in what it keeps, and in what it hands on."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._left = MOST_CHARACTERS
        self._parts: list[str] = []
        self._kept = self._length = 0

    def write_bytes(self, data: bytes) -> None:
        """The same for bytes, which may end in the middle of a character."""
        if self._left > 0:
            self.write(self._decode(data))

    def write(self, text: str) -> None:
        """Hands on each line that ``text`` completes; nothing any more after ``MOST_CHARACTERS``."""
        begin = 0
        while self._left > 0 and (end := text.find("\n", begin)) >= 0:
            self._add(text, begin, end)
            self._end_line()
            begin = end + 1
        if self._left > 0 and begin < len(text):
            self._add(text, begin, len(text))

    def flush(self) -> None:
        """Hands on a last line that was not ended."""
        if self._left > 0 and self._length:
            self._end_line()

    def _add(self, text: str, begin: int, end: int) -> None:
        self._length += end - begin
        part = text[begin : min(end, begin + LONGEST_LINE - self._kept)]
        if part:
            self._parts.append(part)
            self._kept += len(part)

    def _end_line(self) -> None:
        line, length = "".join(self._parts).removesuffix("\r"), self._length
        self._parts.clear()
        if self._kept < length:
            line = f"{line}… ({length:,} characters)"
        self._left -= self._kept + LINE_COSTS
        self._kept = self._length = 0
        # half of a surrogate pair cannot be written anywhere
        self._write_line(line.encode(errors="backslashreplace").decode())
        if self._left <= 0:
            self._write_line("(the rest of what this task prints is not logged: it is too much)")
