"""Secrets that this process knows, and texts without them.

Whoever hands a secret to a tool or a template tells it here (:func:`learn_credential`, :func:`learn_named`). Whatever
people read is hidden where it is made: every error of the package (``errors.py``), what comes with a failed outcome,
events, log lines, tracebacks. Data is never touched: what a playbook returns, stores or sends is its own act.

One memory per process, safe to share between threads; a forked child keeps what its parent knew.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
#: shorter values are not hidden: they may be part of any word
SHORTEST = 6
#: secrets of rows and executions are remembered so many at a time, those of stored credentials and settings all
MOST_PASSING = 1_000
#: parts of a document that are looked at, nearest to its root first; executions whose workload is known
MOST_PARTS, MOST_EXECUTIONS = 2_000, 1_000
#: lines of a longer secret (a key in PEM form) that are hidden one by one as well
_LINE = 16

_NAMED = re.compile(
    r"passw|passphrase|secret|(?:^|_|-)token$|api[_-]?key|access_?key|authorization|private_?key|(?:^|_)dsn$", re.I
)
#: keys that speak about a secret without holding it
_ABOUT = re.compile(r"(?:_|-)(?:name|id|ref|path|file|url|type|header|kind|ttl|expires|seconds)$", re.I)
#: fields of credentials that are no secrets, though an address among them may hold a password
_PUBLIC = frozenset(
    {
        *("_type", "type", "name", "kind", "host", "db_host", "hostname", "server", "hostaddr", "port", "db_port"),
        *("user", "db_user", "username", "dbname", "db_name", "database", "db", "db_schema", "schema", "search_path"),
        *("sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "channel_binding", "options"),
        *("header", "header_name", "in", "location", "scope", "region", "endpoint", "url_style", "account_id"),
        *("credential", "tool", "source", "description", "dsn", "url", "uri", "connection_string", "base_url"),
    }
)
_IN_ADDRESS = re.compile(r"(?P<before>[a-z][a-z0-9+.\-]*://(?P<user>[^\s/:@'\"]*):)(?P<secret>[^\s/'\"]+)(?=@)", re.I)
_IN_CONNINFO = re.compile(r"(?P<name>\bpassword=)(?:'(?P<quoted>(?:[^'\\]|\\.)+)'|(?P<bare>[^\s'&]+))", re.I)

#: what else is in a connection string; code and SQL have words like `password` too
_CONNINFO = re.compile(r"\b(?:host|hostaddr|dbname|user)=")
_SCHEME = re.compile(r"\s*(?:bearer|basic|token)\s+(?P<secret>\S+)\s*$", re.I)

_lock = threading.Lock()
#: the known secrets with their spellings
_lasting: dict[str, frozenset[str]] = {}
_passing: OrderedDict[str, frozenset[str]] = OrderedDict()
_executions: OrderedDict[int, None] = OrderedDict()
#: all spellings of all known secrets, the longest first; None: to be made anew
_spellings: tuple[str, ...] | None = ()


def learn(secret: str) -> None:
    """Remembers one secret for a while."""
    _remember([secret], lasting=False)


def learn_credential(fields: Mapping[str, Any], *, lasting: bool = False) -> None:
    """Remembers the fields of a credential, but for those that say where and who (host, user, …). ``lasting``: it is
    one of a few, and not made anew for each execution."""
    texts = list(_texts(fields))
    # A password that is the user's name as well is no secret, but a word that stands in many messages.
    told = {text for key, text in texts if key.lower() in _PUBLIC}
    for key, text in texts:
        inside = _inside(text)
        secrets = inside if inside or key.lower() in _PUBLIC else [text]
        _remember([secret for secret in secrets if secret not in told], lasting=lasting)


def learn_named(document: Any, *, lasting: bool = False) -> None:
    """Remembers what stands under keys that are named like secrets (``password``, ``api_key``), and passwords inside
    addresses, anywhere in a document."""
    for key, text in _texts(document):
        inside = _inside(text)
        if inside or is_named(key):
            _remember(inside or [text], lasting=lasting)


def learn_workload(execution_id: int, workload: Mapping[str, Any]) -> None:
    """:func:`learn_named` for a workload; quick for one that is known, as it never changes."""
    with _lock:
        known = execution_id in _executions
        _executions[execution_id] = None
        _executions.move_to_end(execution_id)
        while len(_executions) > MOST_EXECUTIONS:
            _executions.popitem(last=False)
    if not known:
        learn_named(workload)


@lru_cache(maxsize=4096)
def is_named(key: str) -> bool:
    """Is the key named like one that holds a secret?"""
    return _NAMED.search(key) is not None and _ABOUT.search(key) is None


def hidden(text: str) -> str:
    """``text`` without the known secrets, however they are written in it, and without passwords in addresses and
    connection strings."""
    for spelling in _known():
        if spelling in text:
            text = text.replace(spelling, MASK)
    if "://" in text:
        text = _IN_ADDRESS.sub(rf"\g<before>{MASK}", text)
    return _IN_CONNINFO.sub(rf"\g<name>{MASK}", text) if "password=" in text else text


def without(value: Any) -> Any:
    """JSON data whose texts are hidden. The value itself if there is nothing to hide in it."""
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, Mapping):
        return {key: without(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without(item) for item in value]
    return value


def _texts(document: Any) -> Iterator[tuple[str, str]]:
    """Texts of a document with the key they stand under; of a large one those nearest to its root."""
    waiting: deque[tuple[str, Any]] = deque([("", document)])
    for _ in range(MOST_PARTS):
        if not waiting:
            return
        key, value = waiting.popleft()
        if isinstance(value, str):
            yield key, value
        elif type(value) is dict or isinstance(value, Mapping):
            waiting.extend([(str(name), item) for name, item in value.items()])
        elif isinstance(value, list | tuple):
            waiting.extend((key, item) for item in value[:MOST_PARTS])


def _inside(text: str) -> list[str]:
    """Passwords in a URL or a connection string, as they are written and as they are meant; the token of a header."""
    found: list[str] = []
    if "://" in text:
        found = [match["secret"] for match in _IN_ADDRESS.finditer(text) if match["secret"] != match["user"]]
    if "password=" in text and _CONNINFO.search(text):
        found += [match["quoted"] or match["bare"] for match in _IN_CONNINFO.finditer(text)]
    if found:
        found += [unquote(secret) for secret in found]
    scheme = _SCHEME.match(text)
    return found if scheme is None else [*found, scheme["secret"]]


def _remember(secrets: list[str], *, lasting: bool) -> None:
    global _spellings
    for secret in secrets:
        secret = secret.strip()
        if len(secret) < SHORTEST or secret in _lasting:
            continue
        with _lock:
            if lasting:
                _lasting[secret] = frozenset(_written(secret))
            elif secret in _passing:
                _passing.move_to_end(secret)
                continue
            else:
                _passing[secret] = frozenset(_written(secret))
                while len(_passing) > MOST_PASSING:
                    _passing.popitem(last=False)
            _spellings = None


def _known() -> tuple[str, ...]:
    global _spellings
    known = _spellings
    if known is None:
        with _lock:
            known = tuple(sorted(frozenset().union(*_lasting.values(), *_passing.values()), key=len, reverse=True))
            _spellings = known
    return known


def _written(secret: str) -> Iterator[str]:
    """The ways in which a secret is written: as it is, in URLs, in JSON, in Python and in SQL."""
    yield from (secret, quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
    yield secret.replace("'", "''")
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield " ".join(secret.split())
        yield from (line for line in lines if len(line) >= _LINE and not line.startswith("-----"))
