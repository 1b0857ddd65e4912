"""The plan: a playbook, validated once into an immutable form with compiled templates.

The engine and the lanes work on this, never on YAML. A plan is cached per catalog version, is safe to share
between threads, and holds nothing of any execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from noetl_celery.template import Value

Do = Literal["continue", "retry", "jump", "break", "fail"]
Backoff = Literal["none", "fixed", "linear", "exponential"]

#: ``(target, value)`` pairs of a ``set``; the target is normalised to ``ctx.x``, ``iter.x`` or a bare ``x``
Assignments = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One policy rule; ``when`` is None for ``else`` and bare rules. Delays in seconds."""

    when: Value | None
    do: Do = "continue"
    to: str | None = None
    attempts: Value | None = None
    backoff: Backoff = "none"
    delay: Value | None = None
    max_delay: Value | None = None
    set: Assignments = ()


@dataclass(frozen=True, slots=True)
class CallPlan:
    """``kind: playbook``: the child to start; ``timeout`` in seconds. Its input becomes the child's workload."""

    path: Value
    version: Value | None = None
    return_step: Value | None = None
    timeout: Value | None = None


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """How a result is kept: up to ``inline_max_bytes`` of JSON in its row (None: as the settings say).

    ``select``: the fields (paths of keys) of a larger mapping that templates see instead of all of it; none: all.
    """

    inline_max_bytes: int | None = None
    select: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task of a pipeline. ``rules`` is None when the task has no policy (ok → continue, error → fail)."""

    name: str
    kind: str
    #: every key of the tool but ``input``; rendered to a dict before it runs
    config: Value
    input: Value
    rules: tuple[Rule, ...] | None = None
    set: Assignments = ()
    line: int | None = None
    #: a child playbook instead of a tool
    call: CallPlan | None = None
    #: made from an older form, whose events have names of their own: its retries, or the end of its sequence
    older: Literal["retry", "sequence"] | None = None
    #: how its result is kept, where the task says so
    output: ResultPlan | None = None
    #: names that its code looks up in ``context``
    looks_up: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FramePlan:
    """``loop.spec.frame``: each a compiled value, rendered when the stage starts. Times in seconds, sizes in bytes."""

    max_rows: Value
    row_concurrency: Value
    lease_seconds: Value
    heartbeat_seconds: Value
    max_seconds: Value | None = None
    max_bytes: Value | None = None
    process: Literal["row", "frame"] = "row"
    ack: Literal["batch", "row"] = "batch"
    #: False where the playbook says nothing about frames (the oldest form of cursor loops)
    given: bool = False


@dataclass(frozen=True, slots=True)
class CursorPlan:
    """``loop.cursor``. ``claim`` is rendered for every claim; ``%(name)s`` bindings stay in it."""

    kind: str
    auth: Value | None
    claim: Value
    reclaim: Value | None = None
    reclaim_after: Value | None = None
    dead_letter: Value | None = None
    count: Value | None = None
    options: Value | None = None


#: values that a sample keeps unless it says how many
SAMPLE = 20


@dataclass(frozen=True, slots=True)
class Reduction:
    """One entry of ``loop.aggregate``: ``value`` is rendered for every row that is OK, and folded by ``op``."""

    name: str
    op: Literal["count", "sum", "min", "max", "mean", "first", "last", "sample"]
    value: Value
    #: values kept by ``sample``
    limit: int = SAMPLE


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """``loop``: exactly one of ``items`` (``loop.in``) and ``cursor`` is set."""

    iterator: str
    mode: Literal["sequential", "parallel", "cursor"]
    frame: FramePlan
    max_in_flight: Value | None
    items: Value | None = None
    cursor: CursorPlan | None = None
    aggregate: tuple[Reduction, ...] = ()


@dataclass(frozen=True, slots=True)
class Arc:
    step: str
    when: Value | None = None
    set: Assignments = ()
    args: Value | None = None
    #: ``when`` refers to ``event``, ``output``, ``outcome`` or ``error``: only such arcs may follow a failure
    sees_outcome: bool = False


@dataclass(frozen=True, slots=True)
class NextPlan:
    mode: Literal["exclusive", "inclusive"] = "exclusive"
    on_no_match: Literal["quiet", "fail"] = "quiet"
    arcs: tuple[Arc, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmitRule:
    """``spec.policy.admit.rules``: the first whose ``when`` holds (None: else) says whether the step may start."""

    when: Value | None
    allow: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. No ``tasks``: a router. ``next`` already holds the implicit arc to ``end`` where there is one."""

    name: str
    tasks: tuple[TaskPlan, ...] = ()
    loop: LoopPlan | None = None
    set: Assignments = ()
    next: NextPlan = field(default_factory=NextPlan)
    failure_mode: Literal["fail_fast", "best_effort"] = "fail_fast"
    admit: tuple[AdmitRule, ...] = ()
    timeout: Value | None = None
    pool: str | None = None
    line: int | None = None
    #: top-level names used by the templates of its tasks, loop, claim (for loading step results: ``& plan.steps``)
    row_names: frozenset[str] = frozenset()
    #: top-level names used by its set, arcs and admission
    route_names: frozenset[str] = frozenset()
    #: how the result of a row is kept, where the step says so
    output: ResultPlan | None = None

    @property
    def task_index(self) -> Mapping[str, int]:
        return {task.name: index for index, task in enumerate(self.tasks)}


@dataclass(frozen=True, slots=True)
class KeychainPlan:
    """``keychain``: a name for secrets. ``credential``: one that is stored; ``fields``: values given here."""

    name: str
    credential: Value | None = None
    fields: Value | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole playbook. ``results_of``: steps of whose tasks some template asks ``<step>.results.<task>``."""

    path: str
    name: str
    entry: str
    workload: Mapping[str, Any]
    steps: Mapping[str, StepPlan]
    spec: Mapping[str, Any] = field(default_factory=dict)
    pool: str | None = None
    keychain: Mapping[str, KeychainPlan] = field(default_factory=dict)
    results_of: frozenset[str] = frozenset()
    #: ``(step, successor)`` arcs that close a cycle in a depth-first search from the entry
    back_edges: frozenset[tuple[str, str]] = frozenset()
    #: for each step, every step reached from it by forward edges (itself not included)
    forward: Mapping[str, frozenset[str]] = field(default_factory=dict)
