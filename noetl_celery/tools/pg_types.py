"""How values travel between PostgreSQL and playbooks: what psycopg has no JSON-safe Python value for stays text."""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.string import TextLoader

from noetl_celery.template.jsonable import to_json

#: psycopg makes objects of its own from these
_AS_TEXT = (
    *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
    *("int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange", "tstzmultirange"),
)


def _text(data: Buffer) -> str:
    return bytes(data).decode()


class _Date(DateLoader):
    """``infinity`` and years that Python does not know stay text instead of failing the whole result."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return _text(data)


class _Timestamp(TimestampLoader):
    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return _text(data)


class _Timestamptz(TimestamptzLoader):
    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return _text(data)


class _JsonText(Dumper):
    """Mappings and lists become JSON of an undeclared type: it fits json, jsonb and text columns alike."""

    oid = 0

    def dump(self, obj: Any) -> Buffer:
        return to_json(obj).encode()


@cache
def adapters() -> AdaptersMap:
    """psycopg's adapters with ours; made once per process and shared by all user connections."""
    ours = AdaptersMap(psycopg.adapters)
    for name in _AS_TEXT:
        ours.register_loader(name, TextLoader)
    ours.register_loader("date", _Date)
    ours.register_loader("timestamp", _Timestamp)
    ours.register_loader("timestamptz", _Timestamptz)
    for kind in (dict, list, tuple):
        ours.register_dumper(kind, _JsonText)
    return ours
