"""The keys of a tool's configuration: what may stand there, and what to write instead."""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from noetl_celery.errors import ErrorInfo, ToolError

Complaint = tuple[str | None, str]

#: accepted in every tool; some of them mean something to the playbook only
COMMON = frozenset(
    {
        "kind",
        "name",
        "desc",
        "input",
        "args",
        "set",
        "auth",
        "credential",
        "assert",
        "task",
        "pool",
        "timeout",
        "output",
    }
)


def unknown_keys(config: Mapping[str, Any], known: Collection[str]) -> list[Complaint]:
    """A complaint for each key that is neither in ``known`` nor common, with the nearest known one."""
    allowed = sorted(COMMON | set(known))
    complaints: list[Complaint] = []
    for key in config:
        if key in allowed:
            continue
        near = difflib.get_close_matches(str(key), allowed, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "known keys: " + ", ".join(sorted(known))
        complaints.append((str(key), f"unknown key `{key}`: {hint}"))
    return complaints


def present(config: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Those of ``keys`` that ``config`` has with a value."""
    return [key for key in keys if not is_blank(config.get(key))]


def is_blank(value: Any) -> bool:
    """None, empty text (also only spaces) and empty containers: as good as not given."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value or value.isspace()
    return isinstance(value, list | tuple | dict) and not value


def is_template(value: Any) -> bool:
    """True for text that is not known before it is rendered."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def one_of(config: Mapping[str, Any], keys: Sequence[str], *, required: bool) -> list[Complaint]:
    """Complains unless exactly one of ``keys`` (at most one, if not required) is given."""
    given = present(config, keys)
    names = ", ".join(f"`{key}`" for key in keys)
    if len(given) > 1:
        return [(given[1], f"only one of {names} can be given")]
    if required and not given:
        empty = next((key for key in keys if key in config), None)
        return [(empty, f"needs one of {names}" + (f"; `{empty}` is empty" if empty else ""))]
    return []


def seconds(value: Any, key: str) -> float | None:
    """A rendered number of seconds, or None if not given. Raises ``ToolError`` for anything else, zero and less."""
    if value is None or value == "":
        return None
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not 0 < number < float("inf"):
        raise bad_config(f"`{key}` has to be a number of seconds above 0, not {value!r}")
    return number


def deadline_of(config: Mapping[str, Any], deadline: float | None) -> float | None:
    """The earlier of a call's deadline and that of its own ``timeout``, which begins now."""
    limit = seconds(config.get("timeout"), "timeout")
    if limit is None:
        return deadline
    own = time.monotonic() + limit
    return own if deadline is None else min(own, deadline)


def check_seconds(config: Mapping[str, Any], key: str) -> list[Complaint]:
    """The same for a key as written: templates pass."""
    value = config.get(key)
    if is_template(value):
        return []
    try:
        seconds(value, key)
    except ToolError as error:
        return [(key, error.message)]
    return []


def bad_config(message: str) -> ToolError:
    """The error for configuration that turned out wrong once its templates were rendered."""
    return ToolError(ErrorInfo("config", message))


def auth_of(config: Mapping[str, Any]) -> Any:
    """``auth``, also written ``credential``."""
    auth = config.get("auth")
    return config.get("credential") if is_blank(auth) else auth
