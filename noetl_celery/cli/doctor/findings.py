"""A check, what it finds, and the run of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import psycopg
from redis.exceptions import RedisError

from noetl_celery.cli.doctor.place import Place
from noetl_celery.errors import NoetlError
from noetl_celery.hiding import hidden
from noetl_celery.store.db import first_line

Level = Literal["ok", "warning", "problem"]
Need = Literal["postgres", "schema", "redis", "nodes"]

_MISSING = {
    "postgres": "PostgreSQL is away",
    "schema": "the schema is not at the revision of this version",
    "redis": "Redis is away",
    "nodes": "no worker can be asked",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: ``hint`` says what to do about it. ``check`` is filled in by :func:`examine`."""

    level: Level
    message: str
    hint: str = ""
    check: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One look at a :class:`~noetl_celery.cli.doctor.place.Place`, for which ``needs`` have to be there.

    ``run`` only reads. It may raise what the services' drivers raise: then it could not be checked.
    """

    name: str
    needs: tuple[Need, ...]
    run: Callable[[Place], Iterable[Finding]]


def ok(message: str) -> Finding:
    return Finding("ok", message)


def warning(message: str, hint: str = "") -> Finding:
    return Finding("warning", message, hint)


def problem(message: str, hint: str = "") -> Finding:
    return Finding("problem", message, hint)


def examine(
    place: Place, checks: Sequence[Check], told: Callable[[Check], object] = lambda check: None
) -> Iterator[Finding]:
    """Runs the checks in their order. One that cannot be run says so, and the others go on. ``told`` hears of each
    before it begins."""
    for check in checks:
        told(check)
        for finding in _examined(place, check):
            yield replace(finding, check=check.name, message=hidden(finding.message), hint=hidden(finding.hint))


def _examined(place: Place, check: Check) -> list[Finding]:
    missing = next((need for need in check.needs if not getattr(place, need)), None)
    if missing is not None:
        return [warning(f"not checked: {_MISSING[missing]}")]
    try:
        return list(check.run(place))
    except (psycopg.Error, RedisError, NoetlError, OSError) as error:
        return [problem(f"could not be checked: {first_line(error)}", "look at the service, and ask again")]
