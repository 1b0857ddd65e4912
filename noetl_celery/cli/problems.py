"""How problems of playbooks look: for people with the line they stand on, as JSON, and as GitHub workflow commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from noetl_celery.cli.console import RED, YELLOW, paint
from noetl_celery.errors import Problem

#: characters of a source line that are shown; the rest of a longer one is cut away around the place
_WIDTH = 120
_LEAD = 60


class Sources:
    """The lines of the files that problems stand in, each file read once. A file that is gone has no lines."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def line(self, file: str | None, number: int | None) -> str | None:
        """A line, counted from 1; None where there is none."""
        if file is None or number is None:
            return None
        if file not in self._lines:
            self._lines[file] = _read(file)
        lines = self._lines[file]
        return lines[number - 1] if 0 < number <= len(lines) else None


def shown(problem: Problem, sources: Sources, stream: TextIO) -> Iterator[str]:
    """The lines of a problem for people: ``file:line:column``, the source with a caret below it, the hint."""
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
    kind = paint("warning:", YELLOW, stream) if problem.warning else paint("error:", RED, stream)
    step = f"step '{problem.step}': " if problem.step else ""
    yield f"{place}: {kind} {step}{_printable(problem.message)} [{problem.code}]"
    line = sources.line(problem.file, problem.line)
    if line is not None and line.strip():
        text, indent = _excerpt(line, problem.column or 1)
        number = str(problem.line)
        yield f"  {number} | {text}"
        yield f"  {' ' * len(number)} | {indent}{paint('^', YELLOW if problem.warning else RED, stream)}"
    if problem.hint:
        yield f"  hint: {_printable(problem.hint)}"


def as_data(problem: Problem) -> dict[str, Any]:
    """A problem as JSON data; ``line`` and ``column`` count from 1."""
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "severity": "warning" if problem.warning else "error",
        "code": problem.code,
        "step": problem.step,
        "message": problem.message,
        "hint": problem.hint,
    }


def as_github(problem: Problem) -> str:
    """A problem as a workflow command, which GitHub shows at its line of the pull request."""
    kind = "warning" if problem.warning else "error"
    given = {"file": problem.file, "line": problem.line, "col": problem.column, "title": problem.code}
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in given.items() if value is not None)
    step = f"step '{problem.step}': " if problem.step else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"::{kind} {properties}::{_data(f'{step}{problem.message}{hint}')}"


def counted(errors: int, warnings: int) -> str:
    """``2 errors, 1 warning``; what there is none of is left out."""
    parts = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((errors, "error"), (warnings, "warning"))]
    return ", ".join(part for part in parts if not part.startswith("0 ")) or "no problems"


def in_order(problems: Sequence[Problem], files: Sequence[str]) -> list[Problem]:
    """File by file as they were named, each from top to bottom."""
    order = {file: number for number, file in reversed(list(enumerate(files)))}
    return sorted(problems, key=lambda p: (order.get(p.file or "", len(order)), p.line or 0, p.column or 0))


def _read(file: str) -> list[str]:
    try:
        text = Path(file).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    return text.removeprefix("\ufeff").splitlines()


def _excerpt(line: str, column: int) -> tuple[str, str]:
    """The part of a line around a column, and what to write before the caret so that it stands below it."""
    from rich.cells import cell_len

    at = min(max(column - 1, 0), len(line))
    start = 0 if len(line) <= _WIDTH or at <= _LEAD else at - _LEAD
    text = _printable(line[start : start + _WIDTH])
    before = text[: at - start]
    indent = "".join("\t" if char == "\t" else " " * cell_len(char) for char in before)
    if start:
        text, indent = f"…{text}", f" {indent}"
    return (f"{text}…" if start + _WIDTH < len(line) else text).rstrip(), indent


def _printable(text: str) -> str:
    """Nothing that a terminal would obey."""
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
