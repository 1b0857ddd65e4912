"""What every command shares: how errors look, where output goes, with which code we exit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from noetl_celery.errors import NoetlError, PlaybookInvalid, WaitTimeout
from noetl_celery.hiding import hidden
from noetl_celery.words import seconds_text as seconds_text

OK, FAILED, INVALID, RUNNING, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141
EXIT_CODES = {"COMPLETED": OK, "FAILED": FAILED, "CANCELLED": FAILED}
RED, YELLOW, GREEN = "31", "33", "32"
STATUS_COLOURS = {
    "COMPLETED": GREEN,
    "FAILED": RED,
    "CANCELLED": YELLOW,
    "CANCELLING": YELLOW,
    "PAUSED": YELLOW,
}


def live(stream: TextIO) -> bool:
    """May lines be drawn there again and again?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured(stream: TextIO) -> bool:
    """May colours be written there? Only to a terminal, and not under NO_COLOR (https://no-color.org)."""
    return live(stream) and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str | None, stream: TextIO) -> str:
    """``text`` in a colour (an SGR code) where the stream shows colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and coloured(stream) else text


def painted_status(status: str, stream: TextIO) -> str:
    """A status in its colour."""
    return paint(status, STATUS_COLOURS.get(status), stream)


def out(text: str = "", end: str = "\n") -> None:
    """A line (or a piece) of a command's result, on stdout. Raises :class:`ReaderGone`."""
    try:
        sys.stdout.write(f"{text}{end}")
    except BrokenPipeError:
        raise ReaderGone from None


def flush() -> None:
    """Writes out what stdout still holds. Raises :class:`ReaderGone`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def out_json(value: Any) -> None:
    """One JSON object on one line of stdout; times as ISO 8601."""
    from noetl_celery.template.jsonable import to_json

    out(to_json(value))


class _Voice:
    quiet = False


def hush(quiet: bool) -> None:
    """From now on :func:`note` says nothing; errors are said all the same."""
    _Voice.quiet = quiet


def quiet() -> bool:
    """Are notes unwanted?"""
    return _Voice.quiet


def note(text: str) -> None:
    """A line for people, on stderr, where it does not disturb what is piped on."""
    if not _Voice.quiet:
        say(text)


def say(text: str) -> None:
    """A line on stderr that has to be read."""
    sys.stderr.write(f"{hidden(text)}\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """Something that works and should still be looked at."""
    note(f"{paint('warning:', YELLOW, sys.stderr)} {text}")


def complain(text: str) -> None:
    """What went wrong."""
    say(f"{paint('error:', RED, sys.stderr)} {text}")


def show_error(error: NoetlError) -> int:
    """Says what is wrong; the exit code that goes with it. Each problem of a playbook comes with its place."""
    if isinstance(error, PlaybookInvalid):
        from noetl_celery.cli.problems import Sources, shown

        sources = Sources()
        for problem in error.problems:
            for line in shown(problem, sources, sys.stderr):
                say(line)
        files = dict.fromkeys(problem.file for problem in error.problems)
        count = len(error.problems)
        complain(f"{count} problem{'' if count == 1 else 's'} in {', '.join(str(file) for file in files)}")
    else:
        complain(str(error))
    return error.exit_code


def table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lines of columns as wide as their content."""
    lines = [headers, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headers))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def short_json(value: Any, limit: int = 200) -> str:
    """A value as JSON text, cut to about ``limit`` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class ReaderGone(Exception):
    """Whoever read our output has closed it (``… | head``): there is nobody to tell anything any more."""


class Detached(Exception):
    """Ctrl-C while waiting: the command ends, the execution goes on."""

    def __init__(self, execution_id: int) -> None:
        super().__init__(execution_id)
        self.execution_id = execution_id


@contextmanager
def detaching(execution_id: int) -> Iterator[None]:
    """Turns Ctrl-C into :class:`Detached`, and a timeout's hint into what can be done next."""
    try:
        yield
    except KeyboardInterrupt:
        raise Detached(execution_id) from None
    except WaitTimeout as error:
        raise WaitTimeout(error.message, hint=f"it goes on; noetl-celery wait {execution_id}") from error
