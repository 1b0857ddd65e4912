"""Pages out of templates: the environment, its filters, and what every page is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from noetl_celery import __version__
from noetl_celery.hiding import hidden
from noetl_celery.template.jsonable import to_json
from noetl_celery.words import rate_text, seconds_text

#: characters of a value that a table shows
SHORT = 160


def page(
    request: Request, template: str, code: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """A whole page."""
    return HTMLResponse(part(template, access=request.app.state.access, **values), code, headers)


def part(template: str, **values: Any) -> str:
    """A template as text."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("noetl_celery.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": seconds_text,
        "number": lambda value: f"{value:,}",
        "rate": rate_text,
        "time": _time,
        "json": to_json,
        "pretty": lambda value: hidden(json.dumps(value, indent=2, ensure_ascii=False, default=str)),
        "short": _short,
    }
    environment.globals |= {"version": __version__}
    return environment


def _time(value: datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if value else ""


def _short(value: Any, limit: int = SHORT) -> str:
    """A value on one line, without secrets that are known."""
    text = value if isinstance(value, str) else to_json(value)
    text = " ".join(hidden(text).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@cache
def static(name: str) -> bytes:
    """A file that comes with the package."""
    return (files("noetl_celery.web") / "static" / name).read_bytes()
