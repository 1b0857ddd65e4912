"""The values that a run brings, over those that its playbook has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from noetl_celery.errors import TemplateError
from noetl_celery.template import TemplateSyntax, compile_value, scope

if TYPE_CHECKING:
    from noetl_celery.playbook.plan import Plan


def deep_merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``; mappings on both sides are merged, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = deep_merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def workload_of(plan: Plan, given: Mapping[str, Any], execution_id: int) -> dict[str, Any]:
    """The workload of a new execution: the playbook's own with ``given`` merged over it.

    Templates in the playbook's own values are rendered, those in ``given`` are data. They see ``execution_id``,
    ``job``, ``spec``, ``now()``, ``payload`` (what is given) and the other values of the workload; a value may have
    the one that was given for it as its own default. Text that does not parse or needs anything else stays as written.
    """
    return dict(_Beginning(plan, given, execution_id))


class _Beginning(Mapping[str, Any]):
    """A workload whose values are rendered when they are asked for; one that asks for itself is not there."""

    def __init__(self, plan: Plan, given: Mapping[str, Any], execution_id: int) -> None:
        self._merged = deep_merged(plan.workload, given)
        self._own, self._given = plan.workload, given
        self._done: dict[str, Any] = {}
        self._asked: set[str] = set()
        self._names = scope(
            execution_id=execution_id, workload=self, ctx={}, results={}, spec=plan.spec, extra={"payload": given}
        )

    def __getitem__(self, key: str) -> Any:
        if key not in self._merged or key in self._asked:
            raise KeyError(key)
        if key not in self._done:
            self._asked.add(key)
            self._done[key] = self._value(key)
            self._asked.remove(key)
        return self._done[key]

    def _value(self, key: str) -> Any:
        if key not in self._own:
            return self._given[key]
        if key in self._given and not isinstance(self._merged[key], Mapping):
            return self._given[key]
        rendered = self._rendered(self._own[key], f"workload.{key}")
        return deep_merged({key: rendered}, {key: self._given[key]})[key] if key in self._given else rendered

    def _rendered(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            return {name: self._rendered(inner, f"{place}.{name}") for name, inner in value.items()}
        if isinstance(value, list):
            return [self._rendered(inner, place) for inner in value]
        if not isinstance(value, str):
            return value
        try:
            return compile_value(value, place=place).render(self._names)
        except (TemplateSyntax, TemplateError):
            return value

    def __contains__(self, key: object) -> bool:
        return key in self._merged and key not in self._asked

    def __iter__(self) -> Iterator[str]:
        return iter(self._merged)

    def __len__(self) -> int:
        return len(self._merged)
