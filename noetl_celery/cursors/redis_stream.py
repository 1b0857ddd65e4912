"""Claims from a Redis stream, as a consumer group: every entry to one claim of all executions that share the group.

Promise: each entry is handed out at least once. It is handed out again only if nothing was heard of it for as long as
the lease: its worker, or the acknowledgement, was lost, or its row was parked. Redis has no transaction that a frame
could be part of: what was delivered and never recorded stays pending in the group, and comes back after the lease.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from noetl_celery.cursors.base import Claimed, ClaimRequest, Cursor, Record, Verdict
from noetl_celery.cursors.redis_client import Client, Clients, translated
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.template import jsonable
from noetl_celery.tools.keys import auth_of, is_blank, is_template

log = logging.getLogger(__name__)

#: the key of a row that always holds its entry's id, whatever the entry's own fields are called
ENTRY_ID = "__entry_id"
DEFAULT_GROUP = "noetl"
#: as long as a frame's own lease
DEFAULT_LEASE_SECONDS = 120.0
_OPTIONS = ("group", "start", "create", "lease_seconds")
_ENTRY = re.compile(r"\d+(?:-\d+)?")
_AT_ONCE = 1000
#: times that others may be quicker with the same idle entries before we leave those to them
_RACES = 5
#: Removes consumers that hold nothing and have been silent for ARGV[2] ms. In one step: to remove a consumer is to
#: forget what it holds, so it must not be handed an entry between the look and the removal.
_REMOVE_SILENT = """
local removed = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts['pending'] == 0 and facts['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts['name'])
    removed = removed + 1
  end
end
return removed
"""


@dataclass(frozen=True, slots=True)
class _Group:
    """A consumer group of a stream, as one claim sees it."""

    client: Client
    stream: str
    name: str
    consumer: str
    lease_ms: int
    start: str
    create: bool


class RedisStreamCursor(Cursor):
    """The driver ``redis_stream``; needs Redis 6.2 or newer.

    ``claim`` is the name of the stream. ``options``: ``group`` (``noetl``); ``start``, where a group that is made
    begins: ``0`` with the oldest entry, ``$`` with the next one, or an entry's id; ``create: false`` makes no group;
    ``lease_seconds`` (120), after which an entry that nobody works on and nobody acknowledged is handed out again.

    A row is ``{id, stream, **fields, __entry_id}``: values are text, or base64 where they are no UTF-8; fields named
    ``id`` or ``stream`` win over the entry's id and the stream's name. An entry that was deleted or trimmed before it
    was handed out again is gone.
    """

    kind = "redis_stream"
    acknowledges = True

    def __init__(self) -> None:
        self._clients = Clients()

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        problems: list[tuple[str | None, str]] = []
        if is_blank(auth_of(config)):
            problems.append(
                ("auth", "a redis_stream cursor needs `auth`: the name of a credential with `url` or `host`")
            )
        if not isinstance(config.get("claim"), str) or is_blank(config.get("claim")):
            problems.append(("claim", "a redis_stream cursor needs `claim`: the name of a stream"))
        if not is_blank(config.get("reclaim")):
            problems.append(("reclaim", "entries come back by themselves: set `options.lease_seconds`"))
        options = config.get("options")
        if isinstance(options, Mapping):
            problems += [("options", message) for message in _wrong_options(options)]
        elif not (is_blank(options) or is_template(options)):
            problems.append(("options", "`options` has to be a mapping"))
        return problems

    def same_place(self, credential: Mapping[str, Any], conninfo: str) -> bool:
        """Never: Redis is not the database."""
        return False

    def claim(self, request: ClaimRequest, record: Record) -> Claimed:
        """Entries that were pending for longer than the lease, then new ones, ``__frame_max_rows`` per claim."""
        per_claim = max(1, int(request.bindings.get("__frame_max_rows") or 1))
        group = self._group(request)
        with translated(f"the stream `{group.stream}` cannot be read"):
            rows = _with_group(group, lambda: _entries(group, per_claim * request.budget))
            if not rows:
                remove_silent_consumers(group.client, group.stream, group.name, silent_ms=group.lease_ms)
        if rows:
            record(rows, {"stream": group.stream, "group": group.name})
        batches = tuple(tuple(rows[at : at + per_claim]) for at in range(0, len(rows), per_claim))
        return Claimed(batches, dry=len(batches) < request.budget)

    def settle(self, source: Mapping[str, Any], credential: Mapping[str, Any]) -> Verdict:
        """``committed``, always: the entries were ours before they were recorded. Asks nobody."""
        return "committed"

    def acknowledge(
        self,
        claim: str,
        options: Mapping[str, Any],
        credential: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Takes the rows' entries off the group's pending ones (XACK). Twice is once; unknown entries are nothing."""
        stream, group = claim.strip(), _text_option(options, "group", DEFAULT_GROUP)
        client = self._clients.get(credential)
        with translated(f"entries of the stream `{stream}` cannot be acknowledged"):
            for ids in _ids(rows):
                client.xack(stream, group, *ids)

    def keep(self, request: ClaimRequest, rows: Sequence[Mapping[str, Any]]) -> float:
        """Makes the rows' entries as good as just delivered (XCLAIM). Those that are acknowledged stay so."""
        group = self._group(request)
        with translated(f"entries of the stream `{group.stream}` cannot be kept"):
            for ids in _ids(rows):
                group.client.xclaim(group.stream, group.name, group.consumer, 0, ids, justid=True)
        return group.lease_ms / 3000

    def dead_letter(
        self,
        statement: str,
        options: Mapping[str, Any],
        credential: Mapping[str, Any],
        row: Mapping[str, Any],
        error: Mapping[str, Any],
    ) -> None:
        """Adds an entry to the stream that ``statement`` names, for each entry of the row: ``entry`` (its id),
        ``row`` and ``error`` as JSON."""
        stream = statement.strip()
        if not stream:
            raise ToolError(ErrorInfo("config", "`dead_letter` has to name a stream; it is empty"))
        client = self._clients.get(credential)
        with translated(f"the stream `{stream}` takes no dead letter"):
            for entry in _entries_of(row):
                row_text, error_text = json.dumps(entry), json.dumps(dict(error))
                client.xadd(stream, {"entry": str(entry[ENTRY_ID]), "row": row_text, "error": error_text})

    def close(self) -> None:
        """Ends this process's connections; the driver may be used again after it."""
        self._clients.close()

    def _group(self, request: ClaimRequest) -> _Group:
        stream = request.claim.strip()
        wrong = [*([] if stream else ["`claim` has to name a stream; it is empty"]), *_wrong_values(request.options)]
        if wrong:
            raise ToolError(ErrorInfo("config", wrong[0]))
        return _Group(
            client=self._clients.get(request.credential, request.timeout_seconds),
            stream=stream,
            name=_text_option(request.options, "group", DEFAULT_GROUP),
            # one per execution: enough to see in Redis who holds what
            consumer=f"execution-{request.bindings.get('execution_id', 'none')}",
            lease_ms=max(1, int(float(request.options.get("lease_seconds") or DEFAULT_LEASE_SECONDS) * 1000)),
            start=_text_option(request.options, "start", "0"),
            create=str(request.options.get("create", True)).lower() != "false",
        )


def _ids(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The entries of rows, so many as one command may name."""
    for at in range(0, len(rows), _AT_ONCE):
        yield [row[ENTRY_ID] for row in rows[at : at + _AT_ONCE]]


def _text_option(options: Mapping[str, Any], name: str, default: str) -> str:
    value = options.get(name)
    return default if is_blank(value) else str(value).strip()


def _wrong_options(options: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in options:
        if key not in _OPTIONS:
            near = difflib.get_close_matches(str(key), _OPTIONS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "known: " + ", ".join(_OPTIONS)
            problems.append(f"unknown option `{key}`: {hint}")
    return problems + _wrong_values({key: value for key, value in options.items() if not is_template(value)})


def _wrong_values(options: Mapping[str, Any]) -> list[str]:
    problems = []
    start = _text_option(options, "start", "0")
    if start != "$" and not _ENTRY.fullmatch(start):
        problems.append(f"`options.start` has to be `0` (the oldest entry), `$` (the next one) or an id, not {start!r}")
    if str(options.get("create", True)).lower() not in {"true", "false"}:
        problems.append("`options.create` has to be true or false")
    lease = options.get("lease_seconds")
    try:
        if lease is not None and not 0 < float(lease) < float("inf"):
            raise ValueError
    except (TypeError, ValueError):
        problems.append(f"`options.lease_seconds` has to be a number of seconds above 0, not {lease!r}")
    return problems


def _with_group(group: _Group, read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Reads; makes the group (and its stream) if it is missing. Somebody else may make it at the same time."""
    try:
        return read()
    except redis.ResponseError as error:
        if not (group.create and str(error).startswith("NOGROUP")):
            raise
    try:
        group.client.xgroup_create(group.stream, group.name, id=group.start, mkstream=True)
    except redis.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
    return read()


def _entries(group: _Group, count: int) -> list[dict[str, Any]]:
    found = _idle_entries(group, count)
    if len(found) < count:
        answer: Any = group.client.xreadgroup(group.name, group.consumer, {group.stream: ">"}, count=count - len(found))
        found += [entry for _, entries in answer or () for entry in entries]
    return [_row(group.stream, entry_id, fields) for entry_id, fields in found]


def _idle_entries(group: _Group, count: int) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
    """Takes over entries that nobody acknowledged within the lease."""
    client = group.client
    for _ in range(_RACES):
        pending: Any = client.xpending_range(group.stream, group.name, "-", "+", count, idle=group.lease_ms)
        ids = [entry["message_id"] for entry in pending]
        if not ids:
            break
        answer: Any = client.xclaim(group.stream, group.name, group.consumer, group.lease_ms, ids)
        taken = [(entry_id, fields) for entry_id, fields in answer if fields is not None]
        _forget_deleted(group, set(ids) - {entry_id for entry_id, _ in taken})
        if taken:
            return taken
    return []


def _forget_deleted(group: _Group, ids: set[bytes]) -> None:
    """Acknowledges those that are no longer in the stream: before Redis 7 they would stay pending for ever."""
    gone = [entry_id for entry_id in ids if not group.client.xrange(group.stream, entry_id, entry_id)]
    if gone:
        log.warning("%d entries of the stream %s were deleted while they were pending", len(gone), group.stream)
        group.client.xack(group.stream, group.name, *gone)


def _row(stream: str, entry_id: bytes, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    own = {str(jsonable(_text(name))): jsonable(_text(value)) for name, value in fields.items()}
    name = entry_id.decode()
    return {"id": name, "stream": stream, **own, ENTRY_ID: name}


def _entries_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The claimed entries that a row's ``iter`` holds: one, or a frame of them."""
    return [
        entry
        for value in row.values()
        for entry in (value if isinstance(value, list) else [value])
        if isinstance(entry, Mapping) and ENTRY_ID in entry
    ]


def _text(value: bytes) -> str | bytes:
    """Text where it can be kept as text: PostgreSQL takes no NUL."""
    try:
        return value if b"\0" in value else value.decode()
    except UnicodeDecodeError:
        return value


def remove_silent_consumers(client: Client, stream: str, group: str, *, silent_ms: int) -> None:
    """Removes consumers that hold no entry and have asked for none for so long: there is one per execution, and they
    would pile up. A server that allows no scripts keeps them."""
    try:
        client.eval(_REMOVE_SILENT, 1, stream, group, str(silent_ms))
    except redis.ResponseError as error:
        log.debug("consumers of the group %s are not tidied up: %s", group, error)
