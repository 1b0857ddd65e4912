"""The catalog of playbooks: changed content makes a new version, unchanged content none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_celery.store.db import Connection, every, execute, one

_COLUMNS = "catalog_id, path, version, fingerprint, content, file, created_at"
#: above every version
_NO_VERSION = 2**31 - 1


def register(
    connection: Connection, path: str, content: str, fingerprint: str, file: str | None
) -> tuple[int, int, bool]:
    """Registers a playbook; returns (catalog_id, version, new). Idempotent for the same content.

    Takes an advisory lock on the path until the transaction ends, so that versions of one path are made in turn.
    """
    execute(connection, "SELECT pg_advisory_xact_lock(hashtextextended(%(path)s, 20260101))", path=path)
    last = latest(connection, path)
    if last is not None and last["fingerprint"] == fingerprint:
        return last["catalog_id"], last["version"], False
    version = last["version"] + 1 if last else 1
    row = one(
        connection,
        """
        INSERT INTO noetl.catalog (path, version, content, fingerprint, file)
        VALUES (%(path)s, %(version)s, %(content)s, %(fingerprint)s, %(file)s) RETURNING catalog_id
        """,
        path=path,
        version=version,
        content=content,
        fingerprint=fingerprint,
        file=file,
    )
    assert row is not None
    return row["catalog_id"], version, True


def latest(connection: Connection, path: str) -> Mapping[str, Any] | None:
    """The newest version of a path."""
    return one(
        connection,
        f"""
        SELECT {_COLUMNS} FROM noetl.catalog
        WHERE path = %(path)s ORDER BY version DESC LIMIT 1
        """,
        path=path,
    )


def version(connection: Connection, path: str, version: str | None) -> Mapping[str, Any] | None:
    """One version of a path by its number; the newest for None or ``latest``."""
    if version in (None, "latest"):
        return latest(connection, path)
    return one(
        connection,
        f"""
        SELECT {_COLUMNS} FROM noetl.catalog
        WHERE path = %(path)s AND version::text = %(version)s
        """,
        path=path,
        version=version,
    )


def get(connection: Connection, catalog_id: int) -> Mapping[str, Any] | None:
    """One version."""
    return one(
        connection,
        f"SELECT {_COLUMNS} FROM noetl.catalog WHERE catalog_id = %(id)s",
        id=catalog_id,
    )


#: how alike names are that somebody may have meant, of 1: ``helo`` and ``hello`` are, ``helo`` and ``shell`` are not
_ALIKE = 0.7


def like(connection: Connection, path: str) -> list[str]:
    """Paths that end in a name like this one's, at most 3, for a hint; folders are often left out, and often shared."""
    rows = every(connection, "SELECT DISTINCT path FROM noetl.catalog ORDER BY path LIMIT 500")
    import difflib

    def name(of: str) -> str:
        return of.rpartition("/")[2]

    known = {name(row["path"]) for row in rows}
    alike = difflib.get_close_matches(name(path), known, n=3, cutoff=_ALIKE)
    names = [name(path)] if name(path) in known else alike
    found = [row["path"] for row in rows if name(row["path"]) in names]
    return difflib.get_close_matches(path, found, n=3, cutoff=0.0)


def listed(connection: Connection, *, after: str = "", limit: int) -> list[dict[str, Any]]:
    """The newest version of each path behind ``after``, in their order: ``{catalog_id, path, version, created_at}``.

    From path to path by the index, past all their versions.
    """
    return every(
        connection,
        """
        WITH RECURSIVE last AS (
            (SELECT catalog_id, path, version, created_at, 1 AS place FROM noetl.catalog
             WHERE path > %(after)s ORDER BY path, version DESC LIMIT 1)
            UNION ALL
            SELECT next.*, last.place + 1 FROM last CROSS JOIN LATERAL (
                SELECT catalog_id, path, version, created_at FROM noetl.catalog c
                WHERE c.path > last.path ORDER BY path, version DESC LIMIT 1) next
            WHERE last.place < %(limit)s
        )
        SELECT catalog_id, path, version, created_at FROM last ORDER BY place
        """,
        after=after,
        limit=limit,
    )


def versions(connection: Connection, path: str, *, before: int | None = None, limit: int) -> list[dict[str, Any]]:
    """The versions of a path below ``before``, newest first: the same fields."""
    return every(
        connection,
        """
        SELECT catalog_id, path, version, created_at FROM noetl.catalog
        WHERE path = %(path)s AND version < %(before)s ORDER BY version DESC LIMIT %(limit)s
        """,
        path=path,
        before=_NO_VERSION if before is None else before,
        limit=limit,
    )
