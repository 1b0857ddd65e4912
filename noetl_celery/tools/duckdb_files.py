"""Where duckdb's databases are, and how one is opened: a file has one process at a time, its threads share it."""

from __future__ import annotations

import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import duckdb_errors
from noetl_celery.tools.keys import bad_config, is_blank
from noetl_celery.tools.limits import limits

MEMORY = ":memory:"
#: how long a task waits for a file that another process has open
LOCK_SECONDS = 15.0
#: an execution's own file goes when nobody has used it for so long
KEEP_SECONDS = 7 * 86_400
_OWN_FILE = re.compile(r"\d+\.duckdb(?:\.wal)?")
_INTERRUPT_SECONDS = 0.05


def folder() -> Path:
    """Where executions have their own files, made if needed.

    Raises ``ToolError`` if it cannot be made, or if the default one is somebody else's.
    """
    chosen = limits().duckdb_dir
    path = chosen or Path(tempfile.gettempdir()) / f"noetl-duckdb-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        foreign = chosen is None and path.lstat().st_uid != os.getuid()
    except OSError as error:
        raise bad_config(f"the folder {path} for duckdb files cannot be made: {error.strerror}") from None
    if foreign:
        raise bad_config(f"the folder {path} for duckdb files belongs to another user; set NOETL_DUCKDB_DIR")
    return path


def path_of(database: Any, execution_id: str | None) -> str:
    """The database that a task means, as an absolute path or ``:memory:``.

    Without a name it is the execution's own file, which all its tasks share. Raises ``ToolError`` for what is no name.
    """
    if is_blank(database):
        if not execution_id:
            return MEMORY
        place = folder()
        own = place / f"{execution_id}.duckdb"
        if not own.exists():
            _forget_old(place)
        return os.path.realpath(own)
    if not isinstance(database, str) or "\0" in database or "://" in database:
        raise bad_config(f"`database` has to be the path of a file or `{MEMORY}`, not {database!r}")
    name = database.strip()
    if name == MEMORY:
        return MEMORY
    # one spelling for each file: duckdb would open two spellings twice
    path = os.path.realpath(Path(name).expanduser())
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bad_config(f"the folder of `database` {name} cannot be made: {error.strerror}") from None
    return path


def _forget_old(place: Path) -> None:
    limit = time.time() - KEEP_SECONDS
    with suppress(OSError):  # somebody else tidies up as well
        for file in place.iterdir():
            if _OWN_FILE.fullmatch(file.name) and file.stat().st_mtime < limit:
                file.unlink()


@contextmanager
def connection(path: str, deadline: float | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database, interrupted at ``deadline`` and closed at the end.

    A file is free for other processes as soon as its last connection here is closed. Raises ``ToolError`` of kind
    ``locked``, retryable, if another process keeps it for too long.
    """
    made = _connected(path, deadline)
    try:
        made.execute("SET TimeZone = 'UTC'")  # results do not depend on the machine
        if path == MEMORY:
            made.execute(f"SET temp_directory = {literal(str(folder() / 'tmp'))}")
        with _interrupted_at(made, deadline):
            yield made
    finally:
        made.close()


def _connected(path: str, deadline: float | None) -> duckdb.DuckDBPyConnection:
    give_up = time.monotonic() + LOCK_SECONDS
    give_up = give_up if deadline is None else min(give_up, deadline)
    pause = 0.005
    while True:
        try:
            made = duckdb.connect(path)
            if path != MEMORY:
                with suppress(OSError):
                    os.utime(path)  # in use, so not forgotten
            return made
        except duckdb.Error as error:
            if not duckdb_errors.is_lock(error):
                raise duckdb_errors.tool_error(error) from None
        if time.monotonic() >= give_up:
            text = f"the file {path} is in use by another process; duckdb lets one process at a time open a file"
            raise ToolError(ErrorInfo("locked", text, retryable=True))
        time.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 1.5, 0.2)


@contextmanager
def _interrupted_at(made: duckdb.DuckDBPyConnection, deadline: float | None) -> Iterator[None]:
    """Interrupts again and again: an interrupt between two statements goes unheard."""
    if deadline is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        if not done.wait(max(0.0, deadline - time.monotonic())):
            while not done.wait(_INTERRUPT_SECONDS):
                made.interrupt()

    watcher = threading.Thread(target=watch, name="noetl-duckdb-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def literal(text: str) -> str:
    """Text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
