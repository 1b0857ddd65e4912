"""The ``duckdb`` tool: SQL on a duckdb database in this process, with PostgreSQL attached where a task asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noetl_celery.tools import duckdb_attach, duckdb_files, duckdb_script
from noetl_celery.tools import script as loading
from noetl_celery.tools.base import Reply, ToolCall
from noetl_celery.tools.keys import (
    Complaint,
    bad_config,
    check_seconds,
    deadline_of,
    is_blank,
    is_template,
    unknown_keys,
)
from noetl_celery.tools.limits import Room

_KNOWN = frozenset({*duckdb_script.SQL_KEYS, "params", "database", "threads", "memory_limit", "gcs_credential"})
_FETCH_ROWS = 1000
#: stands for SQL that nobody knows yet, as every template does
_LATER = "{{ script }}"


class DuckdbTool:
    """Runs a script; the result is the list of rows of its last statement that returned any.

    All statements are one transaction, unless the script or ``auth`` brings in another database: then each is its own.
    """

    kind = "duckdb"
    raw_keys: frozenset[str] = frozenset()
    keys: frozenset[str] = _KNOWN

    def check(self, config: Mapping[str, Any]) -> Sequence[Complaint]:
        """Keys, the SQL that has to be there, limits."""
        complaints = unknown_keys(config, _KNOWN)
        source = config.get("script")
        if isinstance(source, Mapping):
            complaints += loading.check(source)
            config = {**config, "script": loading.inline(source) or _LATER}
        complaints += duckdb_script.problems(config)
        threads = config.get("threads")
        if not is_blank(threads) and not is_template(threads) and not _is_count(threads):
            complaints.append(("threads", f"`threads` has to be a number above 0, not {threads!r}"))
        return complaints + check_seconds(config, "timeout")

    def run(self, call: ToolCall) -> Any:
        """The rows. Raises ``ToolError`` with the kind and the line of SQL of what went wrong; ``locked`` if another
        process keeps the file."""
        config = call.config
        if isinstance(config.get("script"), Mapping):
            config = {**config, "script": loading.load(call)}
        deadline = deadline_of(config, call.deadline)
        script = duckdb_script.read(config)
        grants = duckdb_attach.grants(config, call.credential, script)
        path = duckdb_files.path_of(config.get("database"), call.names.get("execution_id"))
        together = script.together and not any(grant.kind == "postgres" for grant in grants)
        rows: list[Any] = []
        with (
            duckdb_files.connection(path, deadline) as connection,
            duckdb_attach.granted(connection, path, grants, script),
        ):
            for setting in _settings(config):
                duckdb_script.run(connection, setting)
            with duckdb_script.transaction(connection, together):
                for statement in script.statements:
                    if duckdb_script.execute(connection, statement, script):
                        rows = _fetched(duckdb_script.chunks(connection, _FETCH_ROWS, statement, script))
        return Reply(rows)

    def close(self) -> None:
        """Nothing is kept between tasks, but for connections to servers of scripts."""
        loading.close()


def _fetched(chunks: Iterable[list[dict[str, Any]]]) -> list[Any]:
    rows: list[Any] = []
    room = Room()
    for chunk in chunks:
        room.take(chunk)
        rows += chunk
    return rows


def _settings(config: Mapping[str, Any]) -> list[str]:
    """``threads`` and ``memory_limit``; they hold for everybody who has the same file open in this process."""
    found: list[str] = []
    threads, memory = config.get("threads"), config.get("memory_limit")
    if not is_blank(threads):
        if not _is_count(threads):
            raise bad_config(f"`threads` has to be a number above 0, not {threads!r}")
        found.append(f"SET threads = {int(str(threads))}")
    if not is_blank(memory):
        found.append(f"SET memory_limit = {duckdb_files.literal(str(memory))}")
    return found


def _is_count(value: Any) -> bool:
    text = str(value).strip()
    return not isinstance(value, bool) and text.isdecimal() and int(text) > 0
