"""Cursors: where a page ended, as a text that means nothing to whoever carries it. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from noetl_celery.errors import InputError

_LARGEST = 2**63


def cursor_of(*parts: str | int | datetime) -> str:
    """The cursor behind a place."""
    plain = [part.isoformat() if isinstance(part, datetime) else part for part in parts]
    return base64.urlsafe_b64encode(json.dumps(plain).encode()).decode().rstrip("=")


def parts_of(cursor: str | None, *kinds: type[Any]) -> tuple[Any, ...] | None:
    """What :func:`cursor_of` was given; None for no cursor. Raises ``InputError`` for what is none of these kinds."""
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        if not isinstance(parts, list) or len(parts) != len(kinds):
            raise ValueError(parts)
        return tuple(_part(part, kind) for part, kind in zip(parts, kinds, strict=True))
    except (ValueError, RecursionError, binascii.Error):
        raise InputError("this cursor is none of this list", hint="take `next` of the page before, as it is") from None


def _part(part: Any, kind: type[Any]) -> Any:
    if kind is datetime and isinstance(part, str):
        moment = datetime.fromisoformat(part)
        if moment.tzinfo is not None:
            return moment
    if kind is int and type(part) is int and 0 <= part < _LARGEST:
        return part
    if kind is str and isinstance(part, str) and b"\0" not in part.encode():
        return part
    raise ValueError(part)


def cut(found: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Of ``limit`` + 1 rows those of the page, and its last one if more come behind it."""
    page = list(found[:limit])
    return page, page[-1] if len(found) > limit else None
