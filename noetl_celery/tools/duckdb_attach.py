"""``auth`` of duckdb: credentials become secrets, and PostgreSQL databases are attached under their alias."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import duckdb
from psycopg import conninfo as pq_conninfo

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools import duckdb_extensions, pg, pg_script, sql
from noetl_celery.tools.base import Credential
from noetl_celery.tools.duckdb_files import MEMORY, identifier, literal
from noetl_celery.tools.duckdb_script import DuckScript, run
from noetl_celery.tools.keys import auth_of, bad_config, is_blank

_POSTGRES = frozenset({"postgres", "postgresql", "pg"})
#: kind of storage → the schemes of its addresses
_STORAGE: Mapping[str, tuple[str, ...]] = {"gcs": ("gs://", "gcs://"), "s3": ("s3://",), "r2": ("r2://",)}
_KEY_ID = ("key_id", "access_key_id", "access_key", "aws_access_key_id", "hmac_key_id")
_SECRET = ("secret", "secret_key", "secret_access_key", "aws_secret_access_key", "hmac_secret", "secret_key_hmac")
#: what a secret of type postgres cannot hold
_IN_ATTACH = ("sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding", "target_session_attrs")

_locks: dict[str, threading.Lock] = {}
_locks_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Grant:
    """One credential under the alias by which the script knows it."""

    alias: str
    kind: str
    #: ``HOST``, ``PASSWORD``, … of the secret
    fields: Mapping[str, str]
    #: of a PostgreSQL database: what the secret cannot hold
    attach_with: str = ""


def grants(config: Mapping[str, Any], lookup: Callable[[str], Credential], script: DuckScript) -> list[Grant]:
    """The credentials that the script uses. Others stay where they are, and need no extension.

    ``auth`` is the name of a PostgreSQL credential, which is then the alias too, or maps aliases to credentials. A
    PostgreSQL alias is used if the script names it, storage if the script has an address of its kind or names it.
    Raises ``ToolError`` of kind ``credential`` or ``config``.
    """
    auth = auth_of(config)
    if is_blank(auth):
        return []
    if isinstance(auth, str):
        auth = {auth: {"credential": auth}}
    if not isinstance(auth, Mapping) or not all(isinstance(value, str | Mapping) for value in auth.values()):
        raise bad_config("`auth` has to be the name of a credential, or to map aliases to credentials")
    words = script.words()
    text = "\n".join(statement.text for statement in script.statements).lower()
    found: list[Grant] = []
    for alias, given in auth.items():
        entry = {"credential": given} if isinstance(given, str) else dict(given)
        named = str(alias).lower() in words
        kind = _kind(entry, str(alias), text if not named else "")
        if kind in _POSTGRES:
            if named:
                found.append(_postgres(str(alias), _fields(entry, lookup)))
        elif named or any(scheme in text for scheme in _STORAGE[kind]):
            found.append(_storage(str(alias), kind, _fields(entry, lookup)))
    return found


def _kind(entry: Mapping[str, Any], alias: str, text: str) -> str:
    kind = str(entry.get("type") or entry.get("tool") or entry.get("kind") or "postgres").lower()
    if kind == "hmac":
        scope = str(entry.get("scope") or "").lower()
        return "s3" if scope.startswith("s3://") else "gcs"
    kind = {"gs": "gcs", "google": "gcs", "aws": "s3"}.get(kind, kind)
    if kind not in _POSTGRES and kind not in _STORAGE:
        known = ", ".join(("postgres", *_STORAGE, "hmac"))
        raise bad_config(f"`auth.{alias}`: unknown type `{kind}`; known: {known}")
    return kind


def _fields(entry: Mapping[str, Any], lookup: Callable[[str], Credential]) -> dict[str, Any]:
    scope = {"scope": entry["scope"]} if entry.get("scope") else {}
    fields = {**pg_script.credential_of({"auth": entry}, lookup), **scope}
    hiding.learn_credential(fields)  # duckdb's own messages may quote them
    return fields


def _postgres(alias: str, credential: Mapping[str, Any]) -> Grant:
    parts = pq_conninfo.conninfo_to_dict(pg.conninfo(credential))
    names = {"host": "HOST", "hostaddr": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    fields = {names[key]: str(value) for key, value in parts.items() if key in names and value is not None}
    fields["DATABASE"] = str(parts["dbname"])
    extra = {key: str(parts[key]) for key in _IN_ATTACH if parts.get(key)}
    return Grant(alias, "postgres", fields, pq_conninfo.make_conninfo("", **extra) if extra else "")


def _storage(alias: str, kind: str, credential: Mapping[str, Any]) -> Grant:
    fields: dict[str, str] = {}
    for field, keys in (("KEY_ID", _KEY_ID), ("SECRET", _SECRET)):
        value = next((credential[key] for key in keys if not is_blank(credential.get(key))), None)
        if value is None:
            message = f"`auth.{alias}`: the credential has no `{keys[0]}` (also read: {', '.join(keys[1:])})"
            raise ToolError(ErrorInfo("credential", message))
        fields[field] = str(value)
    for field in ("scope", "region", "endpoint", "session_token", "url_style", "account_id"):
        if not is_blank(credential.get(field)):
            fields[field.upper()] = str(credential[field])
    return Grant(alias, kind, fields)


@contextmanager
def granted(connection: duckdb.DuckDBPyConnection, path: str, given: list[Grant], script: DuckScript) -> Iterator[None]:
    """Makes the secrets, attaches PostgreSQL databases that the script does not attach itself, and undoes both.

    Secrets and attached databases belong to the database, not to a connection: tasks of this process that use the same
    file wait for each other here. Raises ``ToolError``.
    """
    _preload(connection, script)
    if not given:
        yield
        return
    with nullcontext() if path == MEMORY else _lock_of(path):
        try:
            for grant in given:
                _grant(connection, grant, script)
            yield
        finally:
            for grant in given:
                _forget(connection, grant)


def _preload(connection: duckdb.DuckDBPyConnection, script: DuckScript) -> None:
    """duckdb fetches what a script needs by itself, but not from where our packages are."""
    if duckdb_extensions.bundled("postgres") and any(word.startswith("postgres") for word in script.words()):
        duckdb_extensions.load(connection, "postgres")


def _grant(connection: duckdb.DuckDBPyConnection, grant: Grant, script: DuckScript) -> None:
    duckdb_extensions.load(connection, "postgres" if grant.kind == "postgres" else "httpfs")
    values = ", ".join(f"{field} {literal(value)}" for field, value in grant.fields.items())
    name = identifier(grant.alias)
    run(connection, f"CREATE OR REPLACE SECRET {name} (TYPE {grant.kind}, {values})")
    if grant.kind == "postgres" and not _attaches(script, grant.alias):
        run(connection, f"DETACH DATABASE IF EXISTS {name}")
        with_ = literal(grant.attach_with)
        run(connection, f"ATTACH {with_} AS {name} (TYPE postgres, SECRET {name})")


def _attaches(script: DuckScript, alias: str) -> bool:
    """Whether the script has an ATTACH that names this alias."""
    return any(
        sql.leading_words(statement, 1) == ["ATTACH"] and alias.lower() in DuckScript([statement]).words()
        for statement in script.statements
    )


def _forget(connection: duckdb.DuckDBPyConnection, grant: Grant) -> None:
    name = identifier(grant.alias)
    for statement in (f"DETACH DATABASE IF EXISTS {name}", f"DROP SECRET IF EXISTS {name}"):
        with suppress(duckdb.Error):  # the database goes with its last connection anyway
            connection.execute(statement)


def _lock_of(path: str) -> threading.Lock:
    with _locks_lock:
        return _locks.setdefault(path, threading.Lock())
