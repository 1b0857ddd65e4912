"""Results of any size: a small one stands in its row, a larger one is written once and referred to.

What stands in a JSON column (``row.result``, ``row.task_results``, ``row.payload``, ``stage.result``) is a *document*:
the value itself, or, where it is kept elsewhere, ``{"$noetl.result": {…}}``. The same may stand one key deep in a
mapping: ``results`` of a loop. A value of an author that looks like that is wrapped, so nobody can forge a reference.

=========  ===========================================================================================================
``id``     the body in ``noetl.result``; ``part`` {kind, length, page} and, of a piece of it, ``path`` and ``first``
``stage``  the results of that loop's rows; ``part`` and ``first`` likewise
``value``  a value that looks like a reference
=========  ===========================================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.playbook.plan import ResultPlan
from noetl_celery.store.db import Connection, execute, one
from noetl_celery.store.loaders import ROWS_AT_ONCE, Body, Limits, Read, Rows, per_page, reference_to
from noetl_celery.template import plain, reference, to_json
from noetl_celery.template.lazy import (
    MARK,
    REFERENCE_KEY,
    LazyMapping,
    LazySequence,
    Loader,
    Part,
    Selected,
    StoredText,
    document,
    made,
    stands_out,
    unselected,
)
from noetl_celery.template.size import least_bytes

#: a NUL character in JSON text, told from an escaped backslash before the text "u0000"
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Kept(NamedTuple):
    """A result to write with its reference, in the same transaction."""

    result_id: int
    text: str
    size: int


# -- keeping -----------------------------------------------------------------------------------------------------------


def encoded(value: Any, limits: Limits) -> tuple[str, int]:
    """JSON text of data and its size in bytes.

    Raises ``ToolError`` of kind ``result_type`` for text that PostgreSQL cannot keep, ``result_too_large``.
    """
    if least_bytes(value, limits.most) > limits.most:
        message = f"the result has more than {limits.most:,} bytes as JSON, which NOETL_RESULT_MAX_BYTES allows"
        raise ToolError(ErrorInfo("result_too_large", message))
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:  # a number of more digits than Python writes
        raise ToolError(ErrorInfo("result_type", f"the result cannot be kept: {error}")) from None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        message = "the result has half a surrogate pair, which is no valid Unicode text"
        raise ToolError(ErrorInfo("result_type", message)) from None
    if size > limits.most:
        message = f"the result has {size:,} bytes as JSON; NOETL_RESULT_MAX_BYTES allows {limits.most:,}"
        raise ToolError(ErrorInfo("result_too_large", message))
    if _NUL.search(text):
        raise ToolError(ErrorInfo("result_type", "the result has a NUL character, which PostgreSQL cannot keep"))
    return text, size


def keep(
    value: Any, plan: ResultPlan | None, limits: Limits, new_id: Callable[[], int]
) -> tuple[str, tuple[Kept, ...]]:
    """The text of the document to keep for a task's result, and the bodies to :func:`write` with it.

    Nothing but the ids is made up here, nothing is written. Raises ``ToolError`` as :func:`encoded` does.
    """
    kept = document(value)
    text, size = encoded(kept, limits)
    inline = limits.inline if plan is None or plan.inline_max_bytes is None else plan.inline_max_bytes
    if size <= inline or not isinstance(kept, dict | list | str) or reference(value) is not None:
        return text, ()
    if kept is not value:  # the body is the value as it is: nothing in it is read as a reference
        value = plain(value)
        text, size = encoded(value, limits)
    body = Kept(new_id(), text, size)
    told: dict[str, Any] = {"id": str(body.result_id), "bytes": size, "part": _described(value, size, limits.page)}
    if plan is not None and plan.select and isinstance(value, dict):
        told |= {"select": [list(name) for name in plan.select], "fields": _fields(value, plan.select, limits.inline)}
    return json.dumps({MARK: told}), (body,)


def _described(value: Any, size: int, page_bytes: int) -> dict[str, Any]:
    if isinstance(value, dict | list):
        kind = "mapping" if isinstance(value, dict) else "list"
        return {"kind": kind, "length": len(value), "page": per_page(len(value), size, page_bytes)}
    return {"kind": "value", "length": 0, "page": 1}


def _fields(value: Mapping[str, Any], names: Sequence[Sequence[str]], limit: int) -> dict[str, Any]:
    """The selected fields by dotted name if they are small together, else none: they are looked up when asked for."""
    found = {}
    for name in names:
        at: Any = value
        for key in name:
            if not isinstance(at, dict) or key not in at:
                break
            at = at[key]
        else:
            found[".".join(name)] = at
    return found if len(json.dumps(found)) <= limit else {}


def write(connection: Connection, frame_id: int, bodies: Sequence[Kept]) -> None:
    """Writes bodies of results of this frame's rows. Nothing happens to one that was written before."""
    if bodies:
        execute(
            connection,
            """
            INSERT INTO noetl.result (result_id, execution_id, body, bytes)
            SELECT b.result_id, f.execution_id, b.body::json, b.bytes
            FROM noetl.frame f, unnest(%(ids)s::bigint[], %(bodies)s::text[], %(bytes)s::bigint[])
                                AS b(result_id, body, bytes)
            WHERE f.frame_id = %(frame)s ON CONFLICT (result_id) DO NOTHING
            """,
            frame=frame_id,
            ids=[body.result_id for body in bodies],
            bodies=[body.text for body in bodies],
            bytes=[body.size for body in bodies],
        )


def collection(connection: Connection, stage_id: int, limits: Limits) -> Any:
    """The results of a loop's rows, in order: a list if they are small, also together, else lazy."""
    row = one(
        connection,
        """
        SELECT count(*) AS n, coalesce(sum(octet_length(r.result::text) + 1), 0) AS bytes,
               coalesce(bool_or(strpos(r.result::text, %(mark)s) > 0), false) AS refers
        FROM noetl.frame f JOIN noetl.row r USING (frame_id) WHERE f.stage_id = %(stage)s
        """,
        stage=stage_id,
        mark=MARK,
    )
    assert row is not None
    count, size = int(row["n"]), int(row["bytes"])
    opener = Opener.within(connection, limits)
    rows = Rows(opener.read, limits, {"stage": str(stage_id), "bytes": size}, opener.open)
    page = min(ROWS_AT_ONCE, per_page(count, size, limits.page))
    if size > limits.inline or row["refers"]:
        return LazySequence(rows, (), count, page)
    return [element for start in range(0, count, page) for element in rows.elements((), start, start + page)]


def brief(kept: Any) -> Any:
    """What reports show of a document: small values as they are, else selected fields, where it is and how large."""
    if not isinstance(kept, dict):
        return kept
    if MARK in kept:
        told = kept[MARK]
        if "value" in told:
            return told["value"]
        place = {"stage_id": told["stage"]} if "stage" in told else {"result_id": told["id"]}
        return {**told.get("fields", {}), REFERENCE_KEY: place, "bytes": told["bytes"]}
    return {key: brief(item) if stands_out(item) else item for key, item in kept.items()}


def chunks(value: Any) -> Iterator[str]:
    """JSON text of a value, piece by piece: what is lazy is read page by page, so it may have any size."""
    value = unselected(value)
    if isinstance(value, LazySequence):
        yield from _joined("[", ((None, element) for element in value), "]")
    elif isinstance(value, LazyMapping) or (isinstance(value, dict) and any(map(stands_out, value.values()))):
        yield from _joined("{", value.items(), "}")
    else:
        yield to_json(value)


def _joined(begin: str, items: Iterable[tuple[str | None, Any]], end: str) -> Iterator[str]:
    comma = ""
    yield begin
    for key, item in items:
        yield comma if key is None else f"{comma}{to_json(key)}: "
        yield from chunks(item)
        comma = ", "
    yield end


# -- opening -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opener:
    """Makes values of documents; what is kept elsewhere becomes lazy, and is read with ``read`` when it is asked for.

    In a transaction ``read`` uses its connection, and what was opened ends with it; elsewhere ``Database.run``.
    """

    read: Read
    limits: Limits

    @classmethod
    def within(cls, connection: Connection, limits: Limits) -> Opener:
        """For use in the transaction of ``connection``."""
        return cls(lambda work: work(connection), limits)

    def open(self, kept: Any) -> Any:
        """The value that a document stands for."""
        if not isinstance(kept, dict):
            return kept
        if MARK in kept:
            return self._referred(kept[MARK])
        if any(isinstance(item, dict) and MARK in item for item in kept.values()):
            return {key: self.open(item) if stands_out(item) else item for key, item in kept.items()}
        return kept

    def open_each(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """A mapping of documents by name: each opened by itself."""
        return {name: self.open(item) for name, item in kept.items()}

    def at(self, place: Mapping[str, Any]) -> Any:
        """The value at what ``_ref`` of a result says; ``KeyError`` if there is none."""
        if "stage_id" in place:
            found = self.read(lambda connection: collection(connection, int(place["stage_id"]), self.limits))
            return self.open(document(found))
        told = self.read(lambda connection: reference_to(connection, int(place["result_id"]), self.limits))
        return self._referred(told)

    def _referred(self, told: Mapping[str, Any]) -> Any:
        if "value" in told:
            return told["value"]
        loader: Loader = (
            Rows(self.read, self.limits, told, self.open) if "stage" in told else Body(self.read, self.limits, told)
        )
        part = Part(**told["part"]) if "part" in told else Part("value")
        path = tuple(told.get("path", ()))
        if part.kind == "value":
            value = loader.whole(path)
            return StoredText(value, {MARK: told}) if isinstance(value, str) else value
        if part.kind == "list":
            return LazySequence(loader, path, part.length, part.page, told.get("first"))
        whole = made(loader, path, part)
        if "select" in told and isinstance(whole, LazyMapping):
            return Selected(whole, told["select"], told["fields"])
        return whole
