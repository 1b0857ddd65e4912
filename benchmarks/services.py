"""PostgreSQL and Redis of a run: as a user has them, fsync and synchronous commit on, data on the disk of `--out`."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg.rows import dict_row

from noetl_celery.cli.embedded import EmbeddedServices

#: Redis databases; one for each system, so that keys do not meet
REDIS = {"noetl": 0, "celery": 1, "dramatiq": 2}
#: what the work of the cases is about: statements that name something in these are the work itself
SCHEMA = "bench"
WORK = (f"{SCHEMA}.", "patient_flow.")
_STATEMENT = re.compile(r" \[\d+\] LOG:  (?:statement|execute [^:]*): ?(.*)")
_CONTROL = re.compile(r"(?:BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b", re.IGNORECASE)


@dataclass
class Services:
    """Where they are, and their processes."""

    embedded: EmbeddedServices
    database_url: str
    connection: psycopg.Connection[dict[str, Any]]

    def q(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(statement, values or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description is not None else []

    def value(self, statement: str, *values: Any) -> Any:
        return next(iter(self.q(statement, *values)[0].values()))

    def redis_url(self, system: str) -> str:
        assert self.embedded.broker_url
        return f"{self.embedded.broker_url.rpartition('/')[0]}/{REDIS[system]}"

    def redis_calls(self, command: str) -> int:
        """How often Redis was given a command since it started, by anybody, scripts included."""
        with redis.Redis.from_url(self.redis_url("noetl")) as client:
            found: Any = client.info("commandstats")
        return int(found.get(f"cmdstat_{command}", {}).get("calls", 0))

    def pid(self, name: str) -> int:
        child = next(child for child in self.embedded.children if child.program.name == name)
        assert child.process is not None
        return child.process.pid

    def facts(self) -> dict[str, str]:
        """What one has to know about them to compare with another run."""
        wanted = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
        return {name: str(self.value("SELECT current_setting(%s)", name)) for name in wanted}

    @contextlib.contextmanager
    def statements(self) -> Iterator[list[str]]:
        """The SQL statements that the server was sent inside of the block, by anybody but this connection.

        PostgreSQL logs all of them meanwhile (its package has no pg_stat_statements), so nothing is timed in there.
        """
        log = self.embedded.folder / "logs" / "postgres.log"
        found: list[str] = []
        self._log_statements("all")
        start = log.stat().st_size
        try:
            yield found
        finally:
            self._log_statements("none")
            with log.open("rb") as file:
                file.seek(start)
                found += logged_statements(file.read().decode(errors="replace"), self.connection.info.backend_pid)

    def _log_statements(self, which: str) -> None:
        self.q(f"ALTER SYSTEM SET log_statement = '{which}'")
        self.q("SELECT pg_reload_conf()")
        self.q("SELECT pg_sleep(0.3)")  # each session reads it before its next statement


def logged_statements(text: str, except_pid: int = 0) -> list[str]:
    """The statements in a log of PostgreSQL, each with all of its lines; BEGIN, COMMIT and the like are none."""
    entries: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("\t"):
            if entries and entries[-1]:
                entries[-1].append(line[1:])
            continue
        match = _STATEMENT.search(line)
        entries.append([match[1]] if match and f"[{except_pid}]" not in line else [])  # else: a parameter, an error
    found = ["\n".join(entry).strip() for entry in entries]
    return [statement for statement in found if statement and not _CONTROL.match(statement)]


def is_work(statement: str) -> bool:
    """Whether a statement is the work itself, and not somebody's own book-keeping."""
    return any(name in statement for name in WORK)


@contextlib.contextmanager
def services(out: Path) -> Iterator[Services]:
    """Starts them on a folder in ``out`` that is removed at the end."""
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="services-", dir=out, ignore_cleanup_errors=True) as folder,
        EmbeddedServices(Path(folder)) as embedded,
    ):
        url = embedded.database_url
        assert url
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
            yield Services(embedded, url, connection)
