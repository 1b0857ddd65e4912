"""Connections to the Redis servers that playbooks name: from a credential to a client, from its errors to ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.retry import Retry

from noetl_celery.errors import ErrorInfo, ToolError

CONNECT_SECONDS = 5.0
#: no command that we send waits at the server, so no answer takes longer from a healthy one
REPLY_SECONDS = 10.0
DEFAULT_PORT = 6379
_URL = ("url", "redis_url", "uri")
_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("host", ("host", "redis_host", "hostname")),
    ("port", ("port", "redis_port")),
    ("db", ("db", "redis_db", "database")),
    ("username", ("username", "user", "redis_user")),
    ("password", ("password", "redis_password")),
)
_CLIENTS_KEPT = 64

Client = redis.Redis


class Clients:
    """The clients of a process, one per credential; each keeps its connections, and makes new ones after a fork."""

    def __init__(self) -> None:
        self._clients: dict[tuple[tuple[str, str], ...], Client] = {}

    def get(self, credential: Mapping[str, Any], timeout_seconds: float = REPLY_SECONDS) -> Client:
        """The client of a credential; nothing is sent. ``timeout_seconds`` bounds each command, with 10 at most.

        Read are ``url`` (``redis://``, ``rediss://``, ``unix://``) or ``host``, ``port``, ``db``, ``username``,
        ``password`` and ``ssl``. Raises ``ToolError`` of kind ``credential`` that shows no value.
        """
        limit = min(timeout_seconds, REPLY_SECONDS)
        key = (("", str(limit)), *sorted((str(k), str(v)) for k, v in credential.items() if v is not None))
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= _CLIENTS_KEPT:
                self._clients.clear()  # those in use live on until their users are done
            client = self._clients.setdefault(key, _client(credential, limit))
        return client

    def close(self) -> None:
        """Ends all connections; the clients may be used again after it."""
        for client in list(self._clients.values()):
            client.close()


def _client(credential: Mapping[str, Any], limit: float) -> Client:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": limit,
        "socket_connect_timeout": min(limit, CONNECT_SECONDS),
        # once more at once: a connection that was kept may have ended with its server
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        "client_name": "noetl-celery",
    }
    fields = {name: value for name, keys in _FIELDS if (value := _given(credential, keys)) is not None}
    url = _given(credential, _URL)
    try:
        if url is not None:
            return redis.Redis.from_url(str(url), **options)
        if "host" not in fields:
            raise _bad_credential("the credential has no `url` and no `host`")
        options["ssl"] = str(credential.get("ssl", "")).strip().lower() in {"true", "1", "yes"}
        options["port"], options["db"] = int(fields.pop("port", DEFAULT_PORT)), int(fields.pop("db", 0))
        options.update({name: str(value) for name, value in fields.items()})
        return redis.Redis(**options)
    except (ValueError, TypeError):
        # what it says quotes the part that was not understood, which may well be the password
        wrong = "`url` is not a Redis URL" if url is not None else "`port` or `db` is not a number"
        raise _bad_credential(f"the credential's {wrong}") from None


def _given(credential: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((credential[key] for key in keys if credential.get(key) not in (None, "")), None)


def _bad_credential(message: str) -> ToolError:
    return ToolError(ErrorInfo("credential", message))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Redis's errors as ``ToolError``: ``connection``, ``timeout``, ``auth``, ``config`` or ``redis``.

    ``what`` says in the message what was being done. Retryable is what another moment, or another server, may change.
    """
    try:
        yield
    except redis.RedisError as error:
        kind, retryable = _judge(error)
        hint = _hint(str(error))
        raise ToolError(ErrorInfo(kind, f"{what}: {error}{hint}", code=_code(error), retryable=retryable)) from None


def _judge(error: redis.RedisError) -> tuple[str, bool]:
    # the order matters: to redis-py a wrong password is a lost connection too
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or _code(error) == "NOAUTH":
        return "auth", False
    if isinstance(error, redis.TimeoutError):
        return "timeout", True
    if isinstance(error, redis.ConnectionError | ReadOnlyError | ClusterDownError | TryAgainError | OutOfMemoryError):
        return "connection", True
    return ("config" if _hint(str(error)) else "redis"), False


def _code(error: redis.RedisError) -> str | None:
    """Redis's own word for it, ``WRONGTYPE``, where redis-py has left it in the text."""
    word = str(error).partition(" ")[0]
    return word if word.isupper() and word.isalpha() and len(word) > 3 else None


def _hint(text: str) -> str:
    if text.startswith("WRONGTYPE"):
        return "; `claim` has to name a stream"
    if text.startswith("NOGROUP"):
        return "; create the group (XGROUP CREATE), or leave `options.create` true"
    if "unknown command" in text.lower() or "syntax error" in text.lower():
        return "; Redis 6.2 or newer is needed"
    return ""
