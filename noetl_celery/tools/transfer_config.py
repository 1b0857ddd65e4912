"""The keys of a transfer: what may stand there, and the plan that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_celery.errors import ToolError
from noetl_celery.tools import duckdb_script, http_request, pg_script
from noetl_celery.tools.keys import Complaint, bad_config, is_blank, is_template, one_of, unknown_keys
from noetl_celery.tools.transfer_names import split_name

DEFAULT_CHUNK_ROWS = 1000
#: written → what it means
MODES: Mapping[str, str] = {
    "append": "append",
    "insert": "append",
    "upsert": "upsert",
    "replace": "replace",
    "truncate": "replace",
}
_KIND_KEYS = ("kind", "type", "tool")
_AUTH = ("auth", "credential")
_PATHS = ("path", "data_path")
#: kind of source → its keys
SOURCE_KEYS: Mapping[str, frozenset[str]] = {
    "data": frozenset({"data", "rows", *_PATHS}),
    "http": frozenset(
        {
            *("method", "params", "headers", "timeout", "timeout_seconds", "follow_redirects", "verify_ssl"),
            *(*http_request.URL_KEYS, *http_request.BODY_KEYS, *_AUTH, *_PATHS),
        }
    ),
    "postgres": frozenset({*pg_script.SQL_KEYS, "params", *_AUTH}),
    "duckdb": frozenset({*duckdb_script.SQL_KEYS, "params", "database", *_AUTH}),
}
_WRITES = frozenset({"table", "mode", "mapping", "key", "keys"})
TARGET_KEYS: Mapping[str, frozenset[str]] = {
    "postgres": _WRITES | {*_AUTH},
    "duckdb": _WRITES | {"database"},
}
_KNOWN = frozenset({"source", "target", "mapping", "mode", "key", "keys", "chunk_size"})


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer, checked. ``key``: the columns of an upsert, None for the table's primary key."""

    source_kind: str
    source: Mapping[str, Any]
    target_kind: str
    target: Mapping[str, Any]
    mode: str
    key: list[str] | None
    mapping: Any
    chunk_rows: int


def problems(config: Mapping[str, Any]) -> Sequence[Complaint]:
    """What is wrong with the keys as written; templates pass until they are rendered."""
    complaints = unknown_keys(config, _KNOWN)
    for end, kinds in (("source", SOURCE_KEYS), ("target", TARGET_KEYS)):
        complaints += _end_problems(config, end, kinds)
    target = config.get("target")
    for place in (config, target if isinstance(target, Mapping) else {}):
        mode = place.get("mode")
        if not is_blank(mode) and not is_template(mode) and str(mode) not in MODES:
            complaints.append(("target" if place is target else "mode", _bad_mode(mode)))
    if not is_blank(config.get("chunk_size")) and not is_template(config["chunk_size"]):
        try:
            _chunk_rows(config["chunk_size"])
        except ToolError as error:
            complaints.append(("chunk_size", error.message))
    return complaints


def _end_problems(config: Mapping[str, Any], end: str, kinds: Mapping[str, frozenset[str]]) -> list[Complaint]:
    fields = config.get(end)
    if isinstance(fields, str) and is_template(fields):
        return []
    if not isinstance(fields, Mapping):
        return [(end if end in config else None, f"needs `{end}`: a mapping with `kind` and what belongs to it")]
    kind = _kind(fields)
    if is_template(kind):
        return []
    if kind not in kinds:
        known = ", ".join(f"`{name}`" for name in kinds)
        what = f"unknown kind `{kind}` of `{end}`" if kind else f"`{end}` needs a `kind`"
        return [(end, f"{what}; known: {known}")]
    own = {key: value for key, value in fields.items() if key not in _KIND_KEYS}
    allowed = kinds[kind]
    found: list[Complaint] = [
        (end, f"unknown key `{key}` in `{end}` of kind `{kind}`; known keys: {', '.join(sorted(allowed))}")
        for key in own
        if key not in allowed
    ]
    return found + [(end, f"`{end}`: {message}") for message in _contents(end, kind, own)]


def _contents(end: str, kind: str, fields: Mapping[str, Any]) -> list[str]:
    """What is missing, or wrong, in a source or target of a known kind."""
    messages: list[str] = []
    if end == "target":
        table = fields.get("table")
        if is_blank(table):
            messages.append("needs `table`")
        elif not is_template(table):
            try:
                split_name(table)
            except ToolError as error:
                messages.append(error.message)
    elif kind == "data" and "data" not in fields and "rows" not in fields:
        messages.append("needs `data`: a mapping, or a list of mappings")
    elif kind == "http":
        messages += [message for _, message in one_of(fields, http_request.URL_KEYS, required=True)]
        messages += [message for _, message in one_of(fields, http_request.BODY_KEYS, required=False)]
    elif kind == "postgres":
        messages += [message for _, message in pg_script.problems(fields)]
    elif kind == "duckdb":
        messages += [message for _, message in duckdb_script.problems(fields)]
    if kind == "postgres" and all(is_blank(fields.get(key)) for key in _AUTH):
        messages.append("needs `auth`: the name of a postgres credential")
    return messages


def read(config: Mapping[str, Any]) -> Transfer:
    """The transfer that a rendered configuration asks for. Raises ``ToolError`` of kind ``config``."""
    for _, message in problems(config):
        raise bad_config(message)
    source, target = dict(config["source"]), dict(config["target"])
    mode = _either(config, target, "mode") or "append"
    key = _either(config, target, "key")
    if is_blank(key):
        key = _either(config, target, "keys")
    return Transfer(
        source_kind=_kind(source),
        source={name: value for name, value in source.items() if name not in _KIND_KEYS},
        target_kind=_kind(target),
        target=target,
        mode=MODES[str(mode)],
        key=None if is_blank(key) else _names(key),
        mapping=_either(config, target, "mapping"),
        chunk_rows=_chunk_rows(config.get("chunk_size")),
    )


def path_of(source: Mapping[str, Any]) -> Any:
    """Where in a response or in data the rows are; None if it does not say."""
    return next((source[key] for key in _PATHS if not is_blank(source.get(key))), None)


def _kind(fields: Mapping[str, Any]) -> str:
    return str(next((fields[key] for key in _KIND_KEYS if not is_blank(fields.get(key))), ""))


def _either(config: Mapping[str, Any], target: Mapping[str, Any], key: str) -> Any:
    value = target.get(key)
    return config.get(key) if is_blank(value) else value


def _names(key: Any) -> list[str]:
    names = key.split(",") if isinstance(key, str) else key
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name.strip() for name in names):
        raise bad_config("`key` has to be the name of a column, or a list of names")
    return [name.strip() for name in names]


def _bad_mode(mode: Any) -> str:
    return f"unknown mode `{mode}`; known: {', '.join(f'`{name}`' for name in MODES)}"


def _chunk_rows(given: Any) -> int:
    if is_blank(given):
        return DEFAULT_CHUNK_ROWS
    text = str(given).strip()
    if isinstance(given, bool) or not text.isdecimal() or int(text) < 1:
        raise bad_config(f"`chunk_size` has to be a number of rows above 0, not {given!r}")
    return int(text)
