"""What a case is: contestants that do the same work, what is measured of them, and what is to be reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: what one run gave: `seconds`, `rows`, and totals of what was counted; see :mod:`benchmarks.figures`
Values = dict[str, float]
Run = Callable[["Bench", int], Values]
Prepare = Callable[["Bench", int], None]

OURS = "noetl-celery"


@dataclass(frozen=True)
class Command:
    """A process of a system. Ready once ``ready`` was read so many times in its output."""

    arguments: Sequence[str]
    ready: str
    times: int = 1


@dataclass(frozen=True)
class System:
    """The worker processes that a contestant needs; equal ones are not started twice."""

    name: str
    commands: tuple[Command, ...]
    env: tuple[tuple[str, str], ...] = ()
    #: systems of one group take each other's messages: one of them at a time
    group: str = ""
    #: the Redis command that puts one message on a queue
    message_command: str = "lpush"
    #: done once, before it is first started
    setup: Callable[[], None] | None = None


@dataclass(frozen=True)
class Contestant:
    """Somebody who does the work of a case."""

    name: str
    run: Run
    system: System | None = None
    #: rows, where they differ between the contestants of a case; ``quick_rows`` 0: not in a quick run
    rows: int | None = None
    quick_rows: int | None = None
    #: drawn as points of one line, over this
    at: float | None = None
    #: at most so many runs
    repeat: int | None = None

    def size(self, case: Case, quick: bool) -> int:
        own, common = (self.quick_rows, case.quick_rows) if quick else (self.rows, case.rows)
        return common if own is None else own


@dataclass(frozen=True)
class Goal:
    """What a figure of ``of`` is to reach: by itself, or as a multiple of that of ``against``."""

    text: str
    of: str
    figure: str
    against: str | None = None
    #: the figure of ``against``, if it is another one
    other: str | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Case:
    """The same work for all contestants."""

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    rows: int
    quick_rows: int
    warm_rows: int
    prepare: Prepare = field(default=lambda _bench, _rows: None)
    #: the figure that the table begins with and the plot shows
    figure: str = "rate"
    unit: str = "rows/s"
    #: further figures of the first table, with their titles
    more: tuple[tuple[str, str], ...] = ()
    #: what the points of a line are over, if there are such
    axis: str | None = None
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    #: whether statements are counted, in a run of their own that is not timed
    counted: bool = True


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    quick: bool
    repeat: int
    out: Path


@dataclass
class CaseResult:
    """All runs of a case, by contestant, and their medians."""

    case: Case
    samples: dict[str, list[Values]]
    sizes: Mapping[str, int]
    problems: list[str] = field(default_factory=list)
