"""What a user hands in, checked without any service: playbooks, workloads, ids, credentials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noetl_celery.errors import InputError

if TYPE_CHECKING:
    from noetl_celery.playbook import Compiled

_LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Playbook:
    """A playbook that was read and found to be in order, not yet registered."""

    file: str
    text: str
    compiled: Compiled = field(repr=False)


def read_playbook(source: str | Path, *, text: str | None = None) -> Playbook:
    """Reads and validates a playbook without any service; ``text`` instead of the file's content, if given.

    Raises :class:`~noetl_celery.errors.PlaybookInvalid` with everything that is wrong, ``InputError`` for a file that
    cannot be read.
    """
    from noetl_celery.cursors.registry import CursorRegistry
    from noetl_celery.playbook import compile_playbook
    from noetl_celery.tools.registry import ToolRegistry

    content: str | bytes
    if text is None:
        try:
            content = Path(source).read_bytes()
        except OSError as error:
            raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise InputError(f"{str(source)!r} is no file name: {error}") from error
    else:
        content = text
    compiled = compile_playbook(content, file=str(source), tools=ToolRegistry(), cursors=CursorRegistry())
    return Playbook(str(source), content.decode() if isinstance(content, bytes) else content, compiled)


def checked_workload(workload: Any) -> dict[str, Any]:
    """A workload as plain JSON data that PostgreSQL can store; None is an empty one. Raises ``InputError``."""
    from noetl_celery.template.jsonable import jsonable

    if workload is None:
        return {}
    if not isinstance(workload, Mapping):
        raise InputError(f"the workload must be a mapping (a JSON object), not {type(workload).__name__}")
    try:
        plain = jsonable(dict(workload))
        _check_text(plain, "workload")
    except (TypeError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"the workload cannot be written as JSON: {said}") from error
    assert isinstance(plain, dict)
    return plain


def _check_text(value: Any, path: str) -> None:
    """PostgreSQL's jsonb takes neither U+0000 nor halves of surrogate pairs."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, path)
            _check_text(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_text(item, f"{path}[{index}]")
    elif isinstance(value, str) and any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value):
        raise TypeError(f"{path} holds a character that PostgreSQL cannot store (U+0000, or half a surrogate pair)")


def checked_id(given: int | str, what: str = "execution id") -> int:
    """A 64-bit id from what somebody typed. Raises ``InputError`` for what is none."""
    text = str(given).strip()
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > _LARGEST_ID:
        raise InputError(f"{text[:40]!r} is no {what}", hint="an id is a number")
    return int(text)


def check_credential(name: str, type_: str, fields: Mapping[str, Any]) -> None:
    """Refuses what is sure not to work with ``InputError``, which names what is missing and never a value."""
    if not name.strip():
        raise InputError("a credential needs a name")
    if not type_.strip():
        raise InputError(f"credential '{name}' needs a type: postgres, http, or the kind of a plugin's tool")
    if type_ not in ("postgres", "postgresql"):
        return
    from noetl_celery.errors import ToolError
    from noetl_celery.tools.pg import conninfo

    if any("{{" in value for value in fields.values() if isinstance(value, str)):
        return
    try:
        conninfo(fields)
    except ToolError as error:
        raise InputError(error.message) from None
