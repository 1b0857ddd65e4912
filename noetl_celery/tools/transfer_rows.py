"""From what a source gives to rows for a table: which key goes into which column, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.tools.keys import bad_config
from noetl_celery.tools.transfer_values import RawJson, kind_of

Row = Mapping[str, Any]

#: where the rows of a response usually are
_LIST_KEYS = ("data", "rows", "items", "results", "records")
_SHOWN = 20
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that have the same columns. ``first``: the number of the first one in the whole transfer, from 1."""

    columns: tuple[str, ...]
    first: int
    rows: list[list[Any]]


def rows_of(value: Any, path: Any = None) -> list[Row]:
    """The rows in a value: a list of mappings, or one mapping, as data or as JSON text.

    ``path`` (``data.items``) leads to them. Without it the result of a postgres task means its rows, and the result of
    an http task its body; a body that is a mapping with a list under one of the usual keys (``data``, ``rows``,
    ``items``, ``results``, ``records``) means that list. Raises ``ToolError`` of kind ``data`` for anything else.
    """
    value = _parsed(value)
    if path not in (None, ""):
        return _checked(_followed(value, str(path)))
    if isinstance(value, Mapping) and "row_count" in value and isinstance(value.get("rows"), list):
        return _checked(value["rows"])
    if isinstance(value, Mapping) and {"status_code", "headers", "body"} <= value.keys():
        return _checked(_list_in(_parsed(value["body"])))
    return _checked(value)


def _list_in(body: Any) -> Any:
    if isinstance(body, Mapping):
        for key in _LIST_KEYS:
            if isinstance(body.get(key), list):
                return body[key]
    return body


def _followed(value: Any, path: str) -> Any:
    """A path into a value; of a response into its body first, so that ``data`` is the body's own."""
    found: Any = _MISSING
    if isinstance(value, Mapping) and {"status_code", "body"} <= value.keys():
        found = find(_parsed(value["body"]), path)
    if found is _MISSING:
        found = find(value, path)
    if found is _MISSING:
        raise ToolError(ErrorInfo("data", f"the source has nothing at the path `{path}`"))
    return _parsed(found)


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value.strip()[:1] in {"{", "["}:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _checked(value: Any) -> list[Row]:
    if value is None or value == "":
        return []
    rows = [value] if isinstance(value, Mapping) else value
    if not isinstance(rows, list | tuple):
        raise ToolError(ErrorInfo("data", f"the source has to give mappings, one for each row, not {kind_of(value)}"))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ToolError(ErrorInfo("data", f"row {number} of the source has to be a mapping, not {kind_of(row)}"))
    return list(rows)


def find(value: Any, path: str) -> Any:
    """The value at a dotted path (``address.city``, ``tags.0``), or a sentinel; a key with dots in it comes first."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for part in path.split("."):
        if isinstance(value, RawJson):
            value = json.loads(value)
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


class Shape:
    """Puts source rows into the columns of a table.

    ``mapping``: target column → path into the row; anything but text, and ``{value: …}``, is a constant. Without it the
    keys of a row are the columns. Names that differ only in case are the same unless the table has both. A key or path
    that a row does not have leaves that column out of this row, so that it keeps its default.
    """

    def __init__(self, mapping: Any, columns: Sequence[str], table: str) -> None:
        """Raises ``ToolError`` of kind ``config`` that names the columns which ``table`` does not have."""
        self._columns = list(columns)
        self._exact = set(columns)
        self._folded: dict[str, str] = {}
        for column in columns:
            self._folded.setdefault(column.lower(), column)
        self._table = table
        self._known: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._mapping = self._read(mapping)

    def _read(self, mapping: Any) -> list[tuple[str, bool, Any]] | None:
        if mapping is None or mapping == {}:
            return None
        if not isinstance(mapping, Mapping):
            raise bad_config(f"`mapping` has to map columns to paths, not {kind_of(mapping)}")
        targets = self._resolve(tuple(mapping))
        return [(target, *_rule(source)) for target, source in zip(targets, mapping.values(), strict=True)]

    def check_source(self, names: Iterable[str]) -> None:
        """For sources with fixed columns. Raises ``ToolError`` if a path begins with a name that is not there."""
        known = set(names)
        lost = [
            str(path)
            for _, constant, path in self._mapping or ()
            if not constant and path not in known and path.partition(".")[0] not in known
        ]
        if lost:
            raise bad_config(f"`mapping` names {_listed(lost)}, but the source has {_listed(sorted(known))}")

    def column(self, name: str) -> str:
        """The table's own spelling of a column. Raises ``ToolError`` of kind ``config`` if there is none."""
        return self._resolve((name,))[0]

    def groups(self, rows: Iterable[Row], first: int) -> Iterator[Group]:
        """The rows in their order, cut where the set of columns changes; ``first``: the first row's number."""
        shaped = ((number, *self._shaped(row, number)) for number, row in enumerate(rows, first))
        for columns, members in groupby(shaped, key=lambda item: item[1]):
            items = list(members)
            yield Group(columns, items[0][0], [values for _, _, values in items])

    def _shaped(self, row: Row, number: int) -> tuple[tuple[str, ...], list[Any]]:
        if self._mapping is None:
            keys = tuple(row)
            columns = self._known.get(keys)
            if columns is None:
                columns = self._known[keys] = self._resolve(keys, number)
            values = list(row.values())
        else:
            pairs = [(column, source if constant else find(row, source)) for column, constant, source in self._mapping]
            pairs = [(column, value) for column, value in pairs if value is not _MISSING]
            columns, values = tuple(column for column, _ in pairs), [value for _, value in pairs]
        if not columns:
            raise ToolError(ErrorInfo("data", f"row {number} has nothing for any column of {self._table}"))
        return columns, values

    def _resolve(self, names: tuple[Any, ...], number: int | None = None) -> tuple[str, ...]:
        texts = [str(name) for name in names]
        found = [name if name in self._exact else self._folded.get(name.lower()) for name in texts]
        unknown = [name for name, column in zip(texts, found, strict=True) if column is None]
        where = f"row {number}: " if number is not None else ""
        if unknown:
            raise bad_config(
                f"{where}{self._table} has no column {_listed(unknown)}; it has {_listed(self._columns)}"
                + ("; `mapping` (column: path) chooses what goes where" if number is not None else "")
            )
        columns = tuple(column for column in found if column is not None)
        if len(set(columns)) < len(columns):
            twice = sorted({column for column in columns if columns.count(column) > 1})
            raise bad_config(f"{where}two keys are for the same column of {self._table}: {_listed(twice)}")
        return columns


def _rule(source: Any) -> tuple[bool, Any]:
    """(constant?, path or value)"""
    if isinstance(source, str):
        return False, source
    if isinstance(source, Mapping) and set(source) == {"value"}:
        return True, source["value"]
    return True, source


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
