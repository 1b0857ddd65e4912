"""Values of a playbook to compiled templates; what is wrong goes to the reporter, with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from noetl_celery.playbook.problems import Path, Reporter
from noetl_celery.playbook.source import place_of, plain
from noetl_celery.template import TemplateSyntax, Value, compile_condition, compile_value, constant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Catalog(Protocol):
    """What this package needs to know of the kinds of tools or cursors that are installed."""

    def kinds(self) -> Collection[str]:
        """The kinds there are."""
        ...

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        """What is wrong with the keys as written, as ``(key or None, message)``."""
        ...


class ToolCatalog(Catalog, Protocol):
    """The tools."""

    def raw_keys(self, kind: str) -> frozenset[str]:
        """Keys that are never rendered (code)."""
        ...


class CursorCatalog(Catalog, Protocol):
    """The claim drivers; ``check`` gets the keys of ``loop.cursor`` but ``kind``."""


class ValueCompiler:
    """Compiles what stands at ``path`` of the document. ``owner`` is what messages call it."""

    def __init__(self, step: str, path: Path, report: Reporter) -> None:
        self._name = step
        self._path = path
        self._report = report
        #: every value that was compiled, by what needs its names
        self.row_values: list[Value] = []
        self.route_values: list[Value] = []
        self._into = self.row_values

    def _value(
        self, raw: Any, where: Path, place: str, *, what: str = "", raw_keys: frozenset[str] = frozenset()
    ) -> Value:
        """Compiles a value that stands at ``where`` in the step."""
        path = (*self._path, *where)
        found: list[TemplateSyntax] = []

        def line_of(inner: Path) -> int | None:
            mark = place_of(self._report.document, (*path, *inner))
            return mark.text_line if mark is not None else None

        value = compile_value(
            plain(raw),
            place=self._place(place, what),
            line_of=line_of,
            constant_keys=raw_keys,
            problems=found,
        )
        for error in found:
            key = ".".join(str(part) for part in error.path) or what or str(where[-1])
            self._report.syntax(error, path, step=self._name, what=key)
        return self._kept(value)

    def optional(self, raw: Any, where: Path, place: str) -> Value | None:
        return None if raw is None else self._value(raw, where, place, what=str(where[-1]))

    def _condition(self, raw: Any, where: Path, place: str) -> Value | None:
        if raw is None:
            return None
        path = (*self._path, *where)
        mark = place_of(self._report.document, path)
        line = mark.text_line if mark is not None else None
        try:
            return self._kept(compile_condition(plain(raw), place=self._place(place, "when"), line=line))
        except TemplateSyntax as error:
            self._report.syntax(error, path, step=self._name, what="when")
            return constant(False)

    def _kept(self, value: Value) -> Value:
        self._into.append(value)
        return value

    def _place(self, *parts: str) -> str:
        return ", ".join([f"step '{self._name}'", *(part for part in parts if part)])

    def _written(self, where: Path) -> dict[str, Any]:
        """A mapping of the document as written, as plain data; empty where there is none."""
        data: Any = self._report.document
        for key in (*self._path, *where):
            try:
                data = data[key]
            except (KeyError, IndexError, TypeError):
                return {}
        copied = plain(data)
        return copied if isinstance(copied, dict) else {}

    def _error(self, message: str, where: Path, *, code: str, hint: str | None = None) -> None:
        self._report.error(message, (*self._path, *where), code=code, step=self._name, hint=hint)

    def _needs(self, key: str, message: str, where: Path, *, hint: str | None = None) -> None:
        """An error for a missing key, unless it was there and the model has refused its value already."""
        if self._written(where).get(key) is None:
            self._error(message, where, code="missing-key", hint=hint)

    def _warn(self, message: str, where: Path, *, code: str, hint: str | None = None) -> None:
        self._report.warn(message, (*self._path, *where), code=code, step=self._name, hint=hint)
