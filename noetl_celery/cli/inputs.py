"""Reading ``--workload``, ``--set`` and ``--data``: text to plain data, or one clear :class:`InputError`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from noetl_celery.errors import InputError


def json_mapping(text: str, option: str) -> dict[str, Any]:
    """The JSON object that an option gives: itself, ``@file``, or ``-`` for standard input.

    Messages name the place of an error (line and column), never the content: it may be secret.
    """
    source, content = _content(text, option)
    value = _parsed(content, source)
    if not isinstance(value, dict):
        raise InputError(f"{source} must be a JSON object ({{…}}), not {_kind(value)}")
    return value


def assignments(settings: Sequence[str]) -> dict[str, Any]:
    """What ``--set a.b=3 --set c=text`` says: dotted keys make nested mappings; a value is JSON if it parses."""
    result: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(part.strip() for part in parts):
            raise InputError(f"--set {setting!r} is not of the form key=value", hint="for example --set limits.rows=50")
        _assign(result, parts, _value(text), setting)
    return result


def _assign(target: dict[str, Any], parts: list[str], value: Any, setting: str) -> None:
    for part in parts[:-1]:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {setting!r} goes below {part!r}, which an earlier --set gave a value")
        target = inner
    target[parts[-1]] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _content(text: str, option: str) -> tuple[str, str]:
    """How messages call the source, and what it holds."""
    try:
        if text == "-":
            return f"{option} (standard input)", sys.stdin.buffer.read().decode("utf-8-sig")
        if text.startswith("@"):
            return f"{option} {text}", Path(text[1:]).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{option} {text} is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{option} {text} cannot be read: {said}") from error
    return option, text


def _parsed(content: str, source: str) -> Any:
    try:
        return json.loads(content, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        hint = None if content.strip() else "it is empty"
        if content.strip() and content.lstrip()[0] not in '{["' and ":" not in content:
            hint = "a file is given as @file"
        raise InputError(f"{source} is not JSON: {error.msg} ({where})", hint=hint) from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply") from None
    except ValueError as error:
        # NaN and Infinity, and numbers of thousands of digits
        said = str(error).partition(";")[0]
        raise InputError(f"{source} is not JSON: {said}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return names[type(value)]
