"""The pure part: medians, ratios, goals, and the order in which contestants take turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.model import OURS, CaseResult, Goal, Values

T = TypeVar("T")

#: totals of a run that are shown per row
PER_ROW = ("messages", "statements", "own_statements", "transactions", "wal_bytes", "events")


def turns(contestants: Sequence[T], rounds: int) -> list[list[T]]:
    """Who runs when: each round all of them, every other round in reverse, so that no one always goes first."""
    return [list(contestants) if number % 2 == 0 else list(reversed(contestants)) for number in range(rounds)]


def derived(values: Values) -> Values:
    """The run with its rate and its counts per row."""
    rows, seconds = values["rows"], values["seconds"]
    more = {f"{name}_per_row": values[name] / rows for name in PER_ROW if name in values and rows}
    if values.get("frames"):
        more["messages_per_frame"] = values.get("messages", 0.0) / values["frames"]
    if rows:
        cpu = sum(values.get(name, 0.0) for name in ("cpu_workers", "cpu_postgres", "cpu_redis", "cpu_client"))
        more["cpu_ms_per_row"] = 1000 * cpu / rows
    return {**values, **more, "rate": rows / seconds if seconds else 0.0}


def medians(samples: Sequence[Values]) -> Values:
    """The median of each figure, over the runs that have it."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: statistics.median(sample[name] for sample in samples if name in sample) for name in names}


def spread(samples: Sequence[Values], figure: str) -> tuple[float, float]:
    """The least and the greatest of a figure."""
    found = [sample[figure] for sample in samples if figure in sample]
    return (min(found), max(found)) if found else (0.0, 0.0)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of all is not above (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[min(len(ordered), int(rank)) - 1]


@dataclass(frozen=True)
class Verdict:
    """What became of a goal; ``value`` is None where something that it needs was not run."""

    goal: Goal
    value: float | None

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        above = self.goal.least is None or self.value >= self.goal.least
        below = self.goal.most is None or self.value <= self.goal.most
        return above and below


def judge(goal: Goal, found: Mapping[str, Values]) -> Verdict:
    """Measures a goal by the medians of each contestant."""
    value = found.get(goal.of, {}).get(goal.figure)
    if value is None or goal.against is None:
        return Verdict(goal, value)
    against = found.get(goal.against, {}).get(goal.other or goal.figure)
    return Verdict(goal, value / against if against else None)


def ratio(found: Mapping[str, Values], name: str, figure: str) -> float | None:
    """How many times as much of a figure we have as ``name``."""
    ours, theirs = found.get(OURS, {}).get(figure), found.get(name, {}).get(figure)
    return None if name == OURS or ours is None or not theirs else ours / theirs


def summary(result: CaseResult) -> dict[str, Values]:
    """The medians of each contestant that was run."""
    return {name: medians(samples) for name, samples in result.samples.items() if samples}
