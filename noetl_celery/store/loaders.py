"""Where lazy values come from: bodies of kept results, and the results of a loop's rows.

A reference says which: ``id`` names a body in ``noetl.result``, ``stage`` a loop. ``part`` {kind, length, page} is what
stands there; of a piece of it ``path`` and ``first`` say which piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_celery.settings import Settings
from noetl_celery.store.db import Connection, every, one
from noetl_celery.template import plain
from noetl_celery.template.lazy import MARK, Part, Path, TooLarge

#: rows read at once, however small they are: each costs more than its bytes
ROWS_AT_ONCE = 10_000
_LARGEST_INDEX = 2**31 - 1

#: runs work with a connection and returns what it returns
Read = Callable[[Callable[[Connection], Any]], Any]
#: makes the value of a document
Open = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of JSON text: what stands in its row, what is read at once, and the most that one process holds."""

    inline: int = 65_536
    page: int = 1_048_576
    most: int = 16_777_216

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those of the settings."""
        return cls(settings.result_inline_bytes, settings.result_page_bytes, settings.result_max_bytes)


def per_page(length: int, size: int, page_bytes: int) -> int:
    """How many of ``length`` elements of altogether ``size`` bytes are read at once."""
    return max(1, length * page_bytes // max(size, 1))


#: what a statement says of the JSON value ``v``: its value only if it is small or no container
_PART = """
    json_typeof(v) AS kind, octet_length(v::text) AS size,
    CASE WHEN octet_length(v::text) <= %(inline)s OR json_typeof(v) NOT IN ('object', 'array') THEN v END AS value,
    octet_length(v::text) <= %(inline)s OR json_typeof(v) NOT IN ('object', 'array') AS small,
    CASE json_typeof(v) WHEN 'array' THEN json_array_length(v)
                        WHEN 'object' THEN (SELECT count(*) FROM json_object_keys(v)) END AS length
"""


def _part_of(row: Mapping[str, Any], limits: Limits) -> Part:
    if row["small"]:
        return Part("value", row["value"])
    kind = "mapping" if row["kind"] == "object" else "list"
    length = int(row["length"])
    return Part(kind, length=length, page=per_page(length, row["size"], limits.page))  # type: ignore[arg-type]


class Body:
    """A body in ``noetl.result``, read by paths."""

    def __init__(self, read: Read, limits: Limits, told: Mapping[str, Any]) -> None:
        self._read, self._limits, self._told = read, limits, told
        self._id = int(told["id"])
        #: the whole body, remembered if it is no larger than a page
        self._all: tuple[Any] | None = None

    def _one(self, sql: str, path: Path, **values: Any) -> Mapping[str, Any] | None:
        keys = [str(key) for key in path]
        # Without a path not even `#>`: it would parse the text for nothing.
        at = "r.body #> %(path)s::text[]" if keys else "r.body"
        given = {"id": self._id, "path": keys, **values}
        found: Mapping[str, Any] | None = self._read(lambda connection: one(connection, sql.format(at=at), **given))
        return found

    def part(self, path: Path) -> Part | None:
        row = self._one(
            f"SELECT {_PART} FROM (SELECT {{at}} AS v FROM noetl.result r WHERE r.result_id = %(id)s) AS found",
            path,
            inline=self._limits.inline,
        )
        return None if row is None or row["kind"] is None else _part_of(row, self._limits)

    def keys(self, path: Path) -> Sequence[str]:
        row = self._one(
            """
            SELECT (SELECT json_agg(e.key ORDER BY e.place)
                    FROM json_object_keys({at}) WITH ORDINALITY AS e(key, place)) AS page
            FROM noetl.result r WHERE r.result_id = %(id)s
            """,
            path,
        )
        return row["page"] or () if row else ()

    def entries(self, path: Path, start: int, stop: int) -> Sequence[tuple[str, Any]]:
        row = self._one(
            """
            SELECT (SELECT json_agg(json_build_array(e.key, e.value) ORDER BY e.place)
                    FROM json_each({at}) WITH ORDINALITY AS e(key, value, place)
                    WHERE e.place > %(start)s AND e.place <= %(stop)s) AS page
            FROM noetl.result r WHERE r.result_id = %(id)s
            """,
            path,
            start=start,
            stop=stop,
        )
        return [(key, value) for key, value in (row["page"] or ())] if row else ()

    def elements(self, path: Path, start: int, stop: int) -> Sequence[Any]:
        row = self._one(
            """
            SELECT (SELECT json_agg(e.value ORDER BY e.place)
                    FROM json_array_elements({at}) WITH ORDINALITY AS e(value, place)
                    WHERE e.place > %(start)s AND e.place <= %(stop)s) AS page
            FROM noetl.result r WHERE r.result_id = %(id)s
            """,
            path,
            start=start,
            stop=stop,
        )
        return row["page"] or () if row else ()

    def whole(self, path: Path, stretch: range | None = None) -> Any:
        if stretch is not None:
            return list(self.elements(path, stretch.start, stretch.stop))
        if not path and self._all is not None:
            return self._all[0]
        row = self._one(
            """
            SELECT octet_length(v::text) AS size, CASE WHEN octet_length(v::text) <= %(most)s THEN v END AS value
            FROM (SELECT {at} AS v FROM noetl.result r WHERE r.result_id = %(id)s) AS found
            """,
            path,
            most=self._limits.most,
        )
        if row is None or row["size"] is None:
            raise TooLarge("the result is not there any more")
        _check_size(row["size"], self._limits)
        if not path and row["size"] <= self._limits.page:
            self._all = (row["value"],)
        return row["value"]

    def place(self) -> Mapping[str, Any]:
        return {"result_id": str(self._id), "bytes": self._told["bytes"]}

    def reference(self, path: Path, part: Part, first: int | None = None) -> Mapping[str, Any]:
        if not path and first is None and "path" not in self._told and "first" not in self._told:
            return {MARK: self._told}
        return {MARK: {"id": str(self._id), "bytes": self._told["bytes"], **_where(path, part, first)}}


class Rows:
    """The results of a loop's rows as a list. ``row_index`` counts them through all frames of the stage."""

    def __init__(self, read: Read, limits: Limits, told: Mapping[str, Any], open: Open) -> None:
        self._read, self._limits, self._told, self._open = read, limits, told, open
        self._stage = int(told["stage"])

    def _documents(self, start: int, stop: int) -> list[Mapping[str, Any]]:
        sql = """
            SELECT r.result, octet_length(r.result::text) AS size FROM noetl.frame f JOIN noetl.row r USING (frame_id)
            WHERE f.stage_id = %(stage)s AND r.row_index >= %(start)s AND r.row_index < %(stop)s
            ORDER BY r.row_index
            """
        found: list[Mapping[str, Any]] = self._read(
            lambda connection: every(connection, sql, stage=self._stage, start=start, stop=stop)
        )
        return found

    def part(self, path: Path) -> Part | None:
        (index,) = path
        rows = self._documents(int(index), int(index) + 1)
        return Part("value", self._open(rows[0]["result"])) if rows else None

    def keys(self, path: Path) -> Sequence[str]:
        raise AssertionError("a list has no keys")

    def entries(self, path: Path, start: int, stop: int) -> Sequence[tuple[str, Any]]:
        raise AssertionError("a list has no keys")

    def elements(self, path: Path, start: int, stop: int) -> Sequence[Any]:
        return [self._open(row["result"]) for row in self._documents(start, stop)]

    def whole(self, path: Path, stretch: range | None = None) -> Any:
        if stretch is None:
            _check_size(self._told["bytes"], self._limits)
            stretch = range(self._told["part"]["length"] if "part" in self._told else _LARGEST_INDEX)
        return list(self._gathered(stretch))

    def _gathered(self, stretch: range) -> Iterator[Any]:
        """Element by element, with a count of their bytes: a small row may refer to a large result."""
        size = 0
        for start in range(stretch.start, stretch.stop, ROWS_AT_ONCE):
            rows = self._documents(start, min(start + ROWS_AT_ONCE, stretch.stop))
            for row in rows:
                size += (row["size"] or 4) + _bytes_elsewhere(row["result"])
                _check_size(size, self._limits)
                yield plain(self._open(row["result"]))
            if len(rows) < ROWS_AT_ONCE:
                return

    def place(self) -> Mapping[str, Any]:
        return {"stage_id": str(self._stage), "bytes": self._told["bytes"]}

    def reference(self, path: Path, part: Part, first: int | None = None) -> Mapping[str, Any]:
        told = {"stage": str(self._stage), "bytes": self._told["bytes"]}
        return {MARK: {**told, **_where(path, part, first)}}


def elements_of(source: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A query of ``(place, value)`` for the documents of the list that a reference stands for, and its parameters.

    Places count from 0; ``%(start)s`` and ``%(stop)s`` bound them. What only looks like a reference is wrapped.
    """
    told = source[MARK]
    given = {"first": told.get("first") or 0, "mark": MARK, "path": [str(key) for key in told.get("path", ())]}
    if "stage" in told:
        return (
            """
            SELECT r.row_index - %(first)s AS place, coalesce(r.result, 'null'::json) AS value
            FROM noetl.frame f JOIN noetl.row r USING (frame_id)
            WHERE f.stage_id = %(source)s AND r.row_index >= %(first)s + %(start)s
              AND r.row_index < %(first)s + %(stop)s
            """,
            {**given, "source": int(told["stage"])},
        )
    return (
        """
        SELECT e.place - 1 - %(first)s AS place,
               CASE WHEN strpos(e.value::text, %(mark)s) = 0 THEN e.value
                    ELSE json_build_object(%(mark)s::text, json_build_object('value', e.value)) END AS value
        FROM noetl.result r, json_array_elements(r.body #> %(path)s::text[]) WITH ORDINALITY AS e(value, place)
        WHERE r.result_id = %(source)s AND e.place > %(first)s + %(start)s AND e.place <= %(first)s + %(stop)s
        """,
        {**given, "source": int(told["id"])},
    )


def _bytes_elsewhere(document: Any) -> int:
    """The bytes that a document refers to."""
    if not isinstance(document, dict):
        return 0
    nested = (item for item in document.values() if isinstance(item, dict) and MARK in item)
    return sum(int(found[MARK].get("bytes", 0)) for found in (document, *nested) if MARK in found)


def _where(path: Path, part: Part, first: int | None) -> dict[str, Any]:
    told: dict[str, Any] = {"part": {"kind": part.kind, "length": part.length, "page": part.page}}
    if path:
        told["path"] = list(path)
    if first is not None:
        told["first"] = first
    return told


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.most:
        raise TooLarge(
            f"the value has {size:,} bytes as JSON or more, and NOETL_RESULT_MAX_BYTES allows {limits.most:,} at once: "
            "index it, slice it or loop over it"
        )


def reference_to(connection: Connection, result_id: int, limits: Limits) -> Mapping[str, Any]:
    """The reference to a body, made anew. Raises ``KeyError`` if there is no such body."""
    row = one(
        connection,
        f"SELECT r.bytes, {_PART} FROM noetl.result r, LATERAL (SELECT r.body) AS v(v) WHERE r.result_id = %(id)s",
        id=result_id,
        inline=0,
    )
    if row is None:
        raise KeyError(result_id)
    part = _part_of(row, limits)
    described = {"kind": part.kind, "length": part.length, "page": part.page}
    return {"id": str(result_id), "bytes": row["bytes"], "part": described}
