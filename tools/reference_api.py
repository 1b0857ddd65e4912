"""The classes of docs/python-api.md, from their docstrings and signatures."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import noetl_celery
from noetl_celery import errors

#: for the package itself: they speak of its tables and plans
INNER = frozenset({"announce", "event_feed", "looks", "news", "outcome", "plan", "read", "register_playbook", "run"})
_ROLE = re.compile(r":\w+:`(?:~?[\w.]+\.)?(\w+)(?: <[^`]*>)?`")
_TITLED_ROLE = re.compile(r":\w+:`([\w.]+) <[^`]*>`")


def members(names: str) -> str:
    """The classes of the package with these names, each with its public methods."""
    return "\n\n".join(part for name in names.split() for part in _class(getattr(noetl_celery, name)))


def _class(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}"
    if issubclass(kind, errors.NoetlError):
        parent = kind.__mro__[1].__name__
        yield f"{_prose(kind.__doc__)}\n\nA `{parent}`; `code` is `{kind.code}`, `exit_code` {kind.exit_code}."
        return
    if not dataclasses.is_dataclass(kind):
        yield f"```python\n{kind.__name__}{_signature(kind.__init__)}\n```"
    yield _prose(kind.__doc__)
    if dataclasses.is_dataclass(kind):
        fields = [f"{field.name}: {field.type}" + _default(field) for field in dataclasses.fields(kind)]
        yield "```python\n" + "\n".join(fields) + "\n```"
    for name, member in vars(kind).items():
        if not name.startswith("_") and name not in INNER:
            yield from _member(name, member)


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}".replace("'", '"')


def _member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        yield f"#### {name}\n\n{_prose(member.__doc__)}"
    elif inspect.isfunction(member):
        told = "async " if inspect.iscoroutinefunction(member) else ""
        yield f"#### {name}\n\n```python\n{told}{name}{_signature(member)}\n```\n\n{_prose(member.__doc__)}"


class _Written:
    """An annotation as it is written: ``inspect`` would show it in quotes."""

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


def _signature(function: Any) -> str:
    """As written, without ``self``."""
    signature = inspect.signature(function, follow_wrapped=True)
    kept = [
        one.replace(annotation=_Written(one.annotation)) for one in signature.parameters.values() if one.name != "self"
    ]
    answer = inspect.Signature.empty if function.__name__ == "__init__" else _Written(signature.return_annotation)
    return str(signature.replace(parameters=kept, return_annotation=answer)).replace("'", '"')


def _prose(text: str | None) -> str:
    """A docstring as Markdown."""
    plain = inspect.cleandoc(text or "").replace("``", "`")
    plain = _TITLED_ROLE.sub(r"`\1`", plain)
    return _ROLE.sub(r"`\1`", plain)
