"""Extensions of duckdb that were installed as Python packages, so that a worker needs no network for them.

A package ``duckdb-extension-<name>`` holds the file that duckdb would download. duckdb itself checks its signature.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import duckdb

from noetl_celery.tools import duckdb_errors, sql

_ALIASES = {"postgres": "postgres_scanner", "sqlite": "sqlite_scanner", "mysql": "mysql_scanner", "s3": "httpfs"}


def extension_command(statement: sql.Statement) -> tuple[str, str] | None:
    """``("LOAD" or "INSTALL", name)`` if the statement is just that."""
    parts = [
        (token.kind, statement.text[token.start : token.end])
        for token in sql.tokens(statement.text)
        if token.kind not in {"space", "comment"}
    ]
    if len(parts) != 2 or parts[0][1].upper() not in {"LOAD", "INSTALL"} or parts[1][0] not in {"word", "quoted"}:
        return None
    return parts[0][1].upper(), parts[1][1].strip("'\"").lower()


def load_bundled(connection: duckdb.DuckDBPyConnection, command: str, name: str) -> bool:
    """Does what the command asks for with an installed package; False if there is none. Raises ``duckdb.Error``."""
    file = bundled(name)
    if file is None:
        return False
    if command == "LOAD":
        quoted = str(file).replace("'", "''")
        connection.execute(f"LOAD '{quoted}'")
    return True


def load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Loads an extension: from a package, as installed before, or from the network. Raises ``ToolError``."""
    try:
        if load_bundled(connection, "LOAD", name):
            return
        connection.execute(f"INSTALL {name}")
        connection.execute(f"LOAD {name}")
    except duckdb.Error as error:
        raise duckdb_errors.extension_error(_ALIASES.get(name, name), " ".join(str(error).split())) from None


@cache
def bundled(name: str) -> Path | None:
    """The file of an extension for this version of duckdb, if a package has it."""
    name = _ALIASES.get(name, name)
    if not name.isidentifier():
        return None
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        file = Path(place) / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        if file.is_file():
            return file
    return None
