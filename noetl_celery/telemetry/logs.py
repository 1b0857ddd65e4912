"""Log lines that say what they are about: as text, or as one JSON object a line. Secrets are hidden in both.

What a thread works on is noted once (:func:`about`), and looked at only when a line is written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from noetl_celery.hiding import hidden, without
from noetl_celery.settings import Settings

#: what a line may be about, in this order; ids are text, as no JSON number can be relied on to hold them
FIELDS = ("execution_id", "step", "frame_id", "row", "task")

_about: ContextVar[tuple[Mapping[str, Any], int | None]] = ContextVar("about", default=({}, None))


def about(names: Mapping[str, Any], row: int | None = None) -> None:
    """From now on lines of this thread are about these :data:`FIELDS`; ``row`` is the row's index."""
    _about.set((names, row))


@contextmanager
def apart() -> Iterator[None]:
    """What is noted inside is forgotten outside."""
    token = _about.set(_about.get())
    try:
        yield
    finally:
        _about.reset(token)


def named(record: logging.LogRecord) -> dict[str, str]:
    """What a line is about: what was given with it (``extra``), else what its thread works on."""
    names, row = _about.get()
    found = {}
    for field in FIELDS:
        value = getattr(record, field, None)
        value = names.get(field, row if field == "row" else None) if value is None else value
        if value is not None:
            found[field] = str(value)
    return found


def formatter(settings: Settings) -> logging.Formatter:
    """What makes lines as ``NOETL_LOG_FORMAT`` says."""
    return JsonLines() if settings.log_format == "json" else TextLines()


class TextLines(logging.Formatter):
    """For people: the names of what a line is about stand at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        names = [f"{name}={value}" for name, value in named(record).items()]
        return hidden(f"{line} [{' '.join(names)}]" if names else line)


class JsonLines(JsonFormatter):
    """For machines: ``time``, ``level``, ``logger``, ``message``, what it is about, ``exception``."""

    def __init__(self) -> None:
        super().__init__(json_ensure_ascii=False)

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.message,
            **named(record),
            **({"exception": message_dict["exc_info"]} if "exc_info" in message_dict else {}),
        }
        log_data.update(without(line))


def say(settings: Settings, text: str) -> None:
    """One line of a process that has no logger, on standard error."""
    record = logging.LogRecord("noetl_celery", logging.INFO, "", 0, text, None, None)
    as_text = settings.log_format == "text"
    sys.stderr.write(f"noetl-celery: {text}\n" if as_text else f"{formatter(settings).format(record)}\n")
    sys.stderr.flush()
