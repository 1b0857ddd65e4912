"""Turning what Python, PostgreSQL and HTTP give us into plain JSON values, and those into text.

One rule for everything that leaves a tool or enters a template's ``tojson``: dates in ISO 8601, decimals as numbers
where a float shows the same digits and as text where it would lie, bytes as base64, UUIDs as text, NaN and infinities
as null. What cannot be converted is named, never silently turned into ``repr`` text.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from noetl_celery.template.lazy import Lazy, plain

_MAX_DEPTH = 200
_ATOMS = frozenset({str, int, bool, type(None)})
_TEXTUAL = (
    uuid.UUID,
    pathlib.PurePath,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
)


def jsonable(value: Any) -> Any:
    """Returns ``value`` as plain JSON data: dict with text keys, list, str, int, float, bool or None.

    A value that is plain already is returned as it is, not copied: whoever changes the result in place changes the
    original. Raises :class:`TypeError` naming the type (and where it is) for a value that has no JSON form, a mapping
    key that is not text, a number, a bool, None, a date or a UUID, and a structure that contains itself. A lazy value
    is loaded; :class:`~noetl_celery.template.lazy.TooLarge` is a :class:`TypeError` too.
    """
    if _is_plain(value, 0):
        return value
    return _convert(value, (), set())


def is_plain(value: Any) -> bool:
    """Whether :func:`jsonable` would return ``value`` as it is."""
    return _is_plain(value, 0)


def to_json(value: Any, indent: int | None = None) -> str:
    """The JSON text of any value that :func:`jsonable` accepts; no HTML escaping, no ASCII escaping."""
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _is_plain(value: Any, depth: int) -> bool:
    """True if ``value`` is JSON data already; too deep counts as not plain, and is looked at closely."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is float:
        return math.isfinite(value)
    if depth > _MAX_DEPTH:
        return False
    # Loops: for small containers, of which every result has some, making a generator takes twice as long.
    if kind is list:
        for item in value:  # noqa: SIM110
            if type(item) not in _ATOMS and not _is_plain(item, depth + 1):
                return False
        return True
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or (type(item) not in _ATOMS and not _is_plain(item, depth + 1)):
                return False
        return True
    return False


def _convert(value: Any, path: tuple[str, ...], above: set[int]) -> Any:
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple(value)
    if isinstance(value, Lazy):
        return plain(value)
    if isinstance(value, Mapping):
        return _container(value, path, above, _convert_mapping)
    if isinstance(value, list | tuple | set | frozenset):
        return _container(value, path, above, _convert_items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _container(value, path, above, lambda _, p, a: _convert_mapping(fields, p, a))
    for base, convert in _SIMPLE_BASES:
        if isinstance(value, base):
            return convert(value)
    return _convert_foreign(value, path, above)


def _container(
    value: Any, path: tuple[str, ...], above: set[int], convert: Callable[[Any, tuple[str, ...], set[int]], Any]
) -> Any:
    if id(value) in above:
        raise TypeError(f"a {type(value).__name__} that contains itself has no JSON form{_where(path)}")
    if len(path) > _MAX_DEPTH:
        raise TypeError(f"a value nested deeper than {_MAX_DEPTH} levels has no JSON form here")
    above.add(id(value))
    try:
        return convert(value, path, above)
    finally:
        above.discard(id(value))


def _convert_mapping(value: Mapping[Any, Any], path: tuple[str, ...], above: set[int]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for key, item in value.items():
        text = key if type(key) is str else _key_text(key, path)
        if text in converted:
            raise TypeError(f"two keys of a mapping have the same JSON form {text!r}{_where(path)}")
        converted[text] = item if type(item) in _ATOMS else _convert(item, (*path, text), above)
    return converted


def _convert_items(value: Iterable[Any], path: tuple[str, ...], above: set[int]) -> list[Any]:
    return [
        item if type(item) in _ATOMS else _convert(item, (*path, str(index)), above) for index, item in enumerate(value)
    ]


def _convert_foreign(value: Any, path: tuple[str, ...], above: set[int]) -> Any:
    """Values of other libraries that say themselves what they are: numpy numbers and arrays, pydantic models."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return _convert(dump(), path, above)
    to_list = getattr(value, "tolist", None)
    if callable(to_list) and hasattr(value, "dtype"):
        plain = to_list()
        if type(plain) is not type(value):
            return _convert(plain, path, above)
    raise TypeError(f"a value of type {_type_name(value)} has no JSON form{_where(path)}")


def _key_text(key: Any, path: tuple[str, ...]) -> str:
    if isinstance(key, enum.Enum):
        return _key_text(key.value, path)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, str | int | float | decimal.Decimal | uuid.UUID):
        return str(key)
    if isinstance(key, dt.date | dt.time):
        return key.isoformat()
    raise TypeError(f"a mapping key of type {_type_name(key)} has no JSON form{_where(path)}")


def _decimal(value: decimal.Decimal) -> int | float | str | None:
    if not value.is_finite():
        return None
    if value == value.to_integral_value() and value.as_tuple().exponent == 0:
        number = int(value)
        return number if abs(number) <= 2**53 else str(value)
    as_float = float(value)
    if math.isfinite(as_float) and decimal.Decimal(repr(as_float)) == value:
        return as_float
    return str(value)


def _float(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _duration(value: dt.timedelta) -> str:
    """ISO 8601 (``P1DT2H3M4.5S``); a negative duration carries one sign in front."""
    sign = "-" if value < dt.timedelta(0) else ""
    value = abs(value)
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    days = f"{value.days}D" if value.days else ""
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or fraction or not (days or clock):
        clock += f"{seconds}{fraction}S"
    return f"{sign}P{days}{'T' + clock if clock else ''}"


def _base64(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(bytes(value)).decode("ascii")


def _same(value: Any) -> Any:
    return value


_SIMPLE: dict[type, Callable[[Any], Any]] = {
    str: _same,
    int: _same,
    bool: _same,
    type(None): _same,
    float: _float,
    decimal.Decimal: _decimal,
    dt.datetime: lambda value: value.isoformat(),
    dt.date: lambda value: value.isoformat(),
    dt.time: lambda value: value.isoformat(),
    dt.timedelta: _duration,
    uuid.UUID: str,
    bytes: _base64,
    bytearray: _base64,
    memoryview: _base64,
}
_SIMPLE_BASES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: jsonable(value.value)),
    (str, lambda value: str.__str__(value)),
    (int, lambda value: int(value)),
    (float, _float),
    (decimal.Decimal, _decimal),
    ((dt.date, dt.time), lambda value: value.isoformat()),
    (dt.timedelta, _duration),
    (_TEXTUAL, str),
    ((bytes, bytearray), _base64),
)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _where(path: tuple[str, ...]) -> str:
    return f" (at {'.'.join(path)})" if path else ""
