"""Where tokens go: arcs, and the fan-in rule.

Every arrival at a step is a waiting token first; ``released`` says which of them may run. A token is held while
another token of one of its fan-outs (running or waiting) stands at a step from which its own is reached by forward
edges. Forward edges have no cycle, so among waiting tokens one is always free. A back edge is never held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl_celery.engine.state import ExecutionState, Waiting
from noetl_celery.playbook.plan import Arc, NextPlan, Plan


def matching_arcs(next_plan: NextPlan, names: Mapping[str, Any], *, failed: bool) -> tuple[Arc, ...]:
    """The arcs to follow: the first that holds (exclusive) or all that hold (inclusive).

    After a failure only arcs whose ``when`` looks at the outcome may match. Raises ``TemplateError``.
    """
    found: list[Arc] = []
    for arc in next_plan.arcs:
        if failed and not arc.sees_outcome:
            continue
        if arc.when is None or arc.when.test(names):
            found.append(arc)
            if next_plan.mode == "exclusive":
                break
    return tuple(found)


def released(plan: Plan, state: ExecutionState) -> list[Waiting] | None:
    """The next group of waiting tokens that may run as one stage, or None if all of them are held."""
    for token in state.waiting:
        if not _held(plan, state, token):
            if token.back:
                return [token]
            return [token, *(other for other in state.waiting if other is not token and _joins(token, other))]
    return None


def shared_lineage(state: ExecutionState, group: list[Waiting]) -> tuple[int, ...]:
    """The fan-outs that the merged token still shares with somebody: the others have been joined completely."""
    own = {fan_out: None for token in group for fan_out in token.lineage}
    others = {fan_out for lineage in _lineages(state, except_for=group) for fan_out in lineage}
    return tuple(fan_out for fan_out in own if fan_out in others)


def _held(plan: Plan, state: ExecutionState, token: Waiting) -> bool:
    if token.back or not token.lineage:
        return False
    mine = set(token.lineage)
    places = [(stage.step, stage.lineage) for stage in state.stages.values()]
    places += [(other.step, other.lineage) for other in state.waiting if other is not token]
    return any(
        step != token.step and not mine.isdisjoint(lineage) and token.step in plan.forward.get(step, frozenset())
        for step, lineage in places
    )


def _joins(token: Waiting, other: Waiting) -> bool:
    return not other.back and other.step == token.step and not set(token.lineage).isdisjoint(other.lineage)


def _lineages(state: ExecutionState, except_for: list[Waiting]) -> Iterator[tuple[int, ...]]:
    yield from (stage.lineage for stage in state.stages.values())
    yield from (token.lineage for token in state.waiting if not any(token is own for own in except_for))
