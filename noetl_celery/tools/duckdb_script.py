"""What a task sends to duckdb: its statements and their values. No connection."""

from __future__ import annotations

DUCKDB_SQL_KEYS = ("query", "command", "commands", "sql", "script")
