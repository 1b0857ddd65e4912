"""Values on their way into a column: from what a source gave to the text that a database reads.

What the database can read itself stays text (``"42"`` for an integer, ISO 8601 for a timestamp): its own rules are the
ones that count. Here is only what it would misread: mappings and lists, booleans for numbers, base64, empty text.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from noetl_celery.template.jsonable import jsonable, to_json

Cast = Callable[[Any], str | None]


class RawJson(str):
    """JSON text of a json column of the source: passed on as it is, and no JSON string."""

    __slots__ = ()


class CannotCast(Exception):
    """This value cannot go into a column of this kind; the message says what it is, not what is in it."""


def as_text(value: Any) -> str | None:
    """For text columns: numbers and booleans as JSON spells them, containers as JSON, bytes as base64."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | decimal.Decimal):
        return str(value)
    plain = _plain(value)
    return plain if isinstance(plain, str) else to_json(plain)


def as_number(value: Any) -> str | None:
    """For numeric columns: booleans are 1 and 0, a float without fraction has none."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)
    if isinstance(value, int | decimal.Decimal):
        return str(value)
    return _scalar(value)


def as_boolean(value: Any) -> str | None:
    """For boolean columns; the numbers 1 and 0 too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | decimal.Decimal):
        if value not in (0, 1):
            raise CannotCast("a number other than 0 and 1")
        return "true" if value else "false"
    return _scalar(value)


def as_scalar(value: Any) -> str | None:
    """For times, UUIDs, enumerations and whatever else has one text; empty text is NULL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | decimal.Decimal):
        return str(value)
    return _scalar(value)


def as_json(value: Any) -> str | None:
    """For json columns: text that is a JSON object or array as it is, other text as a JSON string."""
    if value is None or isinstance(value, RawJson):
        return value
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return None
        return value if text[0] in "{[" and _is_json(text) else json.dumps(value, ensure_ascii=False)
    return to_json(_plain(value))


def as_bytes(value: Any) -> bytes | None:
    """For columns of bytes: text is base64, or hexadecimal after ``\\x``."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise CannotCast(kind_of(value))
    try:
        if value.startswith("\\x"):
            return bytes.fromhex(value[2:])
        return base64.b64decode("".join(value.split()), validate=True)
    except (ValueError, binascii.Error):
        raise CannotCast("text that is no base64") from None


def as_list(value: Any) -> list[Any] | str | None:
    """For list columns: a list, the JSON text of one, or text that the database reads itself; empty text is NULL."""
    if value is None or isinstance(value, list):
        return value
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if not isinstance(value, str):
        raise CannotCast(kind_of(value))
    text = value.strip()
    if text.startswith("[") and _is_json(text):
        parsed: list[Any] = json.loads(text)
        return parsed
    return text or None


def kind_of(value: Any) -> str:
    """What a value is, for messages: ``text``, ``a number``, ``a mapping`` …"""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "text" if value else "empty text"
    if isinstance(value, int | float | decimal.Decimal):
        return "a number"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return f"a value of type {type(value).__name__}"


def _scalar(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, dt.date | dt.time | dt.timedelta | uuid.UUID):
        return str(jsonable(value))
    if isinstance(value, Mapping | list | tuple | set | frozenset | bytes | bytearray | memoryview):
        raise CannotCast(kind_of(value))
    plain = _plain(value)
    if not isinstance(plain, str):
        raise CannotCast(kind_of(value))
    return plain


def _plain(value: Any) -> Any:
    try:
        return jsonable(value)
    except TypeError as error:
        raise CannotCast(str(error)) from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
