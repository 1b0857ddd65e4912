"""Named classes that are built in, or installed as entry points: how tools and cursor drivers are found."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from noetl_celery.errors import InputError

log = logging.getLogger(__name__)

Complaints = Sequence[tuple[str | None, str]]


class Plugins:
    """The kinds of one entry point group, and those that are built in as ``module:Class``.

    An entry point may replace a built-in kind. Nothing of a plugin is imported before its kind is asked for, so one
    that is broken holds up nothing else. ``what`` is ``tool`` or ``cursor``, for messages.
    """

    def __init__(self, group: str, built_in: Mapping[str, str], what: str) -> None:
        self._group, self._built_in, self._what = group, built_in, what
        self._sources: Mapping[str, EntryPoint] | None = None

    def names(self) -> list[str]:
        """Every kind that :meth:`make` knows, sorted."""
        return sorted({*self._built_in, *self._entry_points()})

    def make(self, kind: str, others: Collection[str] = ()) -> Any:
        """A new instance. Raises ``InputError`` for an unknown kind, and for one whose import or making fails.

        ``others``: kinds that the caller has besides, for the hint.
        """
        point = self._entry_points().get(kind)
        target = self._built_in.get(kind) if point is None else point.value
        if target is None:
            known = sorted({*self.names(), *others})
            near = difflib.get_close_matches(str(kind), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "known kinds: " + ", ".join(known)
            raise InputError(f"unknown {self._what} kind `{kind}`", hint=hint)
        try:
            return point.load()() if point is not None else _import(target)()
        except Exception as error:
            raise InputError(
                f"the {self._what} kind `{kind}` cannot be loaded: {type(error).__name__}: {error}",
                hint=self._origin(kind),
            ) from error

    def refused(self, kind: str, made: Any) -> InputError:
        """The error for an instance that does not do what its group asks for."""
        return InputError(
            f"the plugin of {self._what} kind `{kind}` is not a {self._what}: {type(made).__name__}",
            hint=self._origin(kind),
        )

    def checked(self, kind: str, check: Callable[[], Complaints]) -> Complaints:
        """What ``check`` complains about; whatever it raises becomes a complaint about ``kind``."""
        try:
            return list(check())
        except InputError as error:
            return [("kind", str(error))]
        except Exception as error:
            log.exception("the check of %s kind %s failed", self._what, kind)
            return [("kind", f"the {self._what} kind `{kind}` cannot check this: {type(error).__name__}: {error}")]

    def _entry_points(self) -> Mapping[str, EntryPoint]:
        if self._sources is None:
            self._sources = {point.name: point for point in entry_points(group=self._group)}
        return self._sources

    def _origin(self, kind: str) -> str | None:
        point = self._entry_points().get(kind)
        if point is None:
            return None
        package = f" of the package {point.dist.name} {point.dist.version}" if point.dist is not None else ""
        return f"entry point `{kind} = {point.value}`{package}: repair or uninstall it"


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
