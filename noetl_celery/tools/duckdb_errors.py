"""duckdb's errors as ours: the kind by their class, the message with the line of the author's SQL."""

from __future__ import annotations

import re

import duckdb

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.hiding import hidden

_LINE_LENGTH = 200
#: the first class that fits decides: (kind, retryable)
_KINDS: tuple[tuple[type[duckdb.Error], str, bool], ...] = (
    (duckdb.InterruptException, "timeout", False),
    (duckdb.ParserException, "syntax", False),
    (duckdb.SyntaxException, "syntax", False),
    (duckdb.ConstraintException, "constraint", False),
    (duckdb.ConversionException, "data", False),
    (duckdb.OutOfRangeException, "data", False),
    (duckdb.TypeMismatchException, "data", False),
    (duckdb.PermissionException, "permission", False),
    (duckdb.TransactionException, "serialization", True),
    (duckdb.OutOfMemoryException, "memory", False),
    (duckdb.HTTPException, "connection", True),
    (duckdb.ConnectionException, "connection", True),
    (duckdb.InternalException, "duckdb", False),
    (duckdb.FatalException, "duckdb", False),
)
#: duckdb has one class for everything outside of it
_LOST_POSTGRES = re.compile(r"connect to Postgres|server closed the connection|connection to server")
#: the last: another thread of this process is just closing the file
_LOCK = re.compile(
    r"(?:set|get) lock on file|Conflicting lock|used by another process|Unique file handle conflict", re.IGNORECASE
)
_EXTENSION = re.compile(r"extension ['\"](?:[^'\"]*/)?(\w+)(?:\.duckdb_extension)?['\"]", re.IGNORECASE)
_UNAVAILABLE = re.compile(r"Failed to download|automatically install|INSTALL|could not be loaded", re.IGNORECASE)
_PREFIX = re.compile(r"^(?:[A-Z][\w-]* )+Error: |^INTERRUPT Error: ")
_PLACE = re.compile(r"\n+LINE (\d+): .*\Z", re.DOTALL)


def is_lock(error: duckdb.Error) -> bool:
    """Whether a file could not be opened because somebody else has it at this moment."""
    return _LOCK.search(str(error)) is not None


def tool_error(error: duckdb.Error, sql: str | None = None, *, first_line: int = 1) -> ToolError:
    """The error that a tool raises: kind, message, ``line 3: "…"``.

    ``sql``: the statement as its author wrote it, which begins in line ``first_line`` of the author's text.
    """
    text = str(error)
    place = _PLACE.search(text)
    message = " ".join(_PREFIX.sub("", text[: place.start()] if place else text).split())
    missing = _EXTENSION.search(text)
    if missing is not None and _UNAVAILABLE.search(text):
        return extension_error(missing[1], message)
    kind, retryable = _kind(error, text)
    if place is not None and sql is not None:
        number = int(place[1])
        lines = sql.split("\n")
        shown = hidden(lines[min(number, len(lines)) - 1].rstrip())
        shown = shown if len(shown) <= _LINE_LENGTH else shown[:_LINE_LENGTH] + "…"
        message = f'{message}, line {first_line + number - 1}: "{shown}"'
    elif sql is not None and kind != "timeout":
        message = f"{message}, in the statement of line {first_line}"
    if kind == "timeout":
        message = "the time of this task was over before its SQL had run"
    return ToolError(ErrorInfo(kind, message, retryable=retryable))


def _kind(error: duckdb.Error, text: str) -> tuple[str, bool]:
    if is_lock(error):
        return "locked", True
    if isinstance(error, duckdb.IOException) and not isinstance(error, duckdb.HTTPException):
        return ("connection", True) if _LOST_POSTGRES.search(text) else ("io", False)
    return next(((kind, retryable) for known, kind, retryable in _KINDS if isinstance(error, known)), ("sql", False))


def extension_error(name: str, reason: str) -> ToolError:
    """The error for an extension that cannot be used, with what to do about it."""
    package = f"duckdb-extension-{name.replace('_', '-')}=={duckdb.__version__}"
    text = (
        f"duckdb's extension `{name}` cannot be used on this worker: {reason.split(' For more info')[0].rstrip('.')}. "
        f"Where the worker runs: pip install {package}, or run INSTALL {name} once with access to the network"
    )
    return ToolError(ErrorInfo("extension", text))
