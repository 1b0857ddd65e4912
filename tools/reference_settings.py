"""The tables of docs/settings.md, from the settings' model."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from noetl_celery.settings import PREFIX, Settings

NO_DEFAULT = "\N{EN DASH}"
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_TYPES = {int: "number", float: "seconds", str: "text", bool: "`true`, `false`"}


def table(argument: str) -> str:
    """Settings from one to another, both named and both included: ``database_url … duckdb_dir``."""
    names = list(Settings.model_fields)
    first, _, last = argument.partition(" … ")
    rows = [_row(name) for name in names[names.index(first) : names.index(last or first) + 1]]
    return "\n".join(["| variable | default | values | meaning |", "|---|---|---|---|", *rows])


def shown(default: object) -> str:
    """A default as the tables show it."""
    if default is None:
        return NO_DEFAULT
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _row(name: str) -> str:
    field = Settings.model_fields[name]
    return f"| `{PREFIX}{name.upper()}` | {shown(field.default)} | {_values(name, field)} | {field.description} |"


def _values(name: str, field: FieldInfo) -> str:
    annotation: Any = field.annotation
    choices = getattr(annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f"`{choice}`" for choice in choices)
    kinds = [kind for kind in choices if kind is not type(None)] or [annotation]
    what = "number" if kinds[0] is float and not name.endswith("_seconds") else _TYPES.get(kinds[0], "")
    if name.endswith("_url"):
        what = "URL"
    elif not what:
        what = "secret" if "Secret" in str(kinds[0]) else "path"
    bounds = [
        f"{sign} {getattr(rule, key):g}"
        for rule in field.metadata
        for key, sign in _BOUNDS.items()
        if hasattr(rule, key)
    ]
    return " ".join([what, *bounds])
