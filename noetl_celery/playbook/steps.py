"""One step of the canonical document to its plan: templates compiled, defaults filled in, references checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from noetl_celery.playbook import model
from noetl_celery.playbook.outputs import result_plan
from noetl_celery.playbook.plan import (
    SAMPLE,
    AdmitRule,
    Arc,
    CursorPlan,
    FramePlan,
    LoopPlan,
    NextPlan,
    Reduction,
    StepPlan,
)
from noetl_celery.playbook.problems import Path, Reporter, suggestion
from noetl_celery.playbook.source import place_of
from noetl_celery.playbook.tasks import TaskCompiler, complaint_code
from noetl_celery.playbook.values import CursorCatalog, ToolCatalog
from noetl_celery.template import Value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_OUTCOME_NAMES = frozenset({"event", "output", "outcome", "response", "error"})
_FRAME_DEFAULTS = {"max_rows": 1, "row_concurrency": 1, "lease_seconds": 120, "heartbeat_seconds": 30}
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)
_LOCKING = re.compile(r"\bfor\s+(no\s+key\s+)?update\b", re.I)
_CHANGING = re.compile(r"\b(update|insert|delete|merge|call)\b|\b(from|select)\s+[\w.]+\s*\(", re.I)


class StepCompiler(TaskCompiler):
    """Compiles one step. ``path`` is where it stands in the document; what is wrong goes to the reporter."""

    def __init__(
        self, step: model.Step, path: Path, report: Reporter, tools: ToolCatalog, cursors: CursorCatalog
    ) -> None:
        super().__init__(step, path, report, tools)
        self._cursors = cursors

    def plan(self, names: Collection[str]) -> StepPlan:
        """The plan; ``names`` are the names of all steps."""
        step = self._step
        mark = place_of(self._report.document, self._path)
        tasks = self._tasks()
        loop = self._loop(step.loop) if step.loop is not None else None
        policy = step.spec.policy
        limits = (
            (step.spec.timeout, ("spec", "timeout")),
            (policy.lifecycle.timeout_s, ("spec", "policy", "lifecycle", "timeout_s")),
            (policy.lifecycle.deadline_s, ("spec", "policy", "lifecycle", "deadline_s")),
        )
        timeout = next((self._value(raw, where, "timeout") for raw, where in limits if raw is not None), None)
        self._into = self.route_values
        assignments = self._assignments(step.set, ("set",), "set")
        following = self._next(step.next, names)
        admit = self._admit(policy.admit)
        default: Literal["best_effort", "fail_fast"] = (
            "best_effort" if loop is not None and loop.mode == "cursor" else "fail_fast"
        )
        return StepPlan(
            name=step.step,
            tasks=tasks,
            loop=loop,
            set=assignments,
            next=following,
            failure_mode=policy.failure.mode or default,
            admit=admit,
            timeout=timeout,
            pool=step.spec.pool,
            line=mark.line if mark is not None else None,
            row_names=_names(self.row_values),
            route_names=_names(self.route_values),
            output=result_plan(self, self._written(()), ()),
        )

    def _admit(self, rules: model.AdmitRules) -> tuple[AdmitRule, ...]:
        where: Path = ("spec", "policy", "admit", "rules")
        self._check_order(rules.rules, where)
        return tuple(
            AdmitRule(self._condition(rule.when, (*where, number, "when"), "admit"), rule.then.allow)
            for number, rule in enumerate(rules.rules)
        )

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _loop(self, loop: model.Loop) -> LoopPlan | None:
        if loop.in_ is not None and loop.cursor is not None:
            message = "`loop` has both `in` and `cursor`"
            self._error(message, ("loop", "in"), code="conflicting-keys", hint="keep one of them")
        if loop.in_ is None and "cursor" not in self._written(("loop",)):
            self._needs("in", "`loop` needs `in` (a collection) or `cursor` (a claim)", ("loop",))
        if loop.iterator is None:
            hint = "write `iterator: item`"
            self._needs("iterator", "`loop` needs `iterator`, the name of an item", ("loop",), hint=hint)
        mode = loop.spec.mode
        if loop.cursor is None and mode == "cursor" and loop.in_ is not None:
            self._error("`mode: cursor` needs `loop.cursor`", ("loop", "spec", "mode"), code="missing-key")
        if loop.cursor is not None and mode not in (None, "cursor"):
            message = f"`mode: {mode}` is ignored: `cursor` makes it a cursor loop"
            self._warn(message, ("loop", "spec", "mode"), code="no-effect")
        flight = ("loop", "spec", "max_in_flight"), ("loop", "spec", "policy", "max_in_flight")
        given = loop.spec.max_in_flight, loop.spec.policy.max_in_flight
        return LoopPlan(
            iterator=loop.iterator or "item",
            mode="cursor" if loop.cursor is not None else "parallel" if mode == "parallel" else "sequential",
            frame=self._frame(loop.spec.frame),
            max_in_flight=next(
                (self._value(raw, path, "loop") for raw, path in zip(given, flight, strict=True) if raw is not None),
                None,
            ),
            items=self.optional(loop.in_, ("loop", "in"), "loop"),
            cursor=self._cursor(loop.cursor) if loop.cursor is not None else None,
            aggregate=tuple(self._reduction(name, given) for name, given in loop.aggregate.items()),
        )

    def _frame(self, frame: model.Frame | None) -> FramePlan:
        path: Path = ("loop", "spec", "frame")
        given = frame if frame is not None else model.Frame()
        numbers = {
            key: self._value(default if getattr(given, key) is None else getattr(given, key), (*path, key), "loop")
            for key, default in _FRAME_DEFAULTS.items()
        }
        return FramePlan(
            **numbers,
            max_seconds=self.optional(given.max_seconds, (*path, "max_seconds"), "loop"),
            max_bytes=self.optional(given.max_bytes, (*path, "max_bytes"), "loop"),
            process=given.process,
            ack=given.ack,
            given=frame is not None,
        )

    def _cursor(self, cursor: model.Cursor) -> CursorPlan:
        path: Path = ("loop", "cursor")
        if cursor.kind not in self._cursors.kinds():
            self._unknown_kind("cursor", cursor.kind, self._cursors.kinds(), (*path, "kind"))
        else:
            config = {key: value for key, value in self._written(path).items() if key != "kind"}
            for key, message in self._cursors.check(cursor.kind, config):
                if key != "claim" or cursor.claim is not None:
                    self._error(message, (*path, key) if key is not None else path, code=complaint_code(message))
        if cursor.claim is None:
            self._needs("claim", "`cursor` needs `claim`, what leases rows", path)
        elif cursor.kind == "postgres" and not changes_rows(cursor.claim):
            hint = "set a status in an UPDATE … RETURNING around the SELECT … FOR UPDATE SKIP LOCKED"
            message = "`claim` changes nothing: it would lease the same rows for ever"
            self._warn(message, (*path, "claim"), code="claim-changes-nothing", hint=hint)
        if cursor.reclaim_after is not None and cursor.reclaim is None:
            self._warn("`reclaim_after` has no effect without `reclaim`", (*path, "reclaim_after"), code="no-effect")
        keys = ("auth", "reclaim", "reclaim_after", "dead_letter", "count", "options")
        optional = {key: self.optional(getattr(cursor, key), (*path, key), "cursor") for key in keys}
        claim = self._value(cursor.claim or "", (*path, "claim"), "cursor", what="claim")
        return CursorPlan(kind=cursor.kind, claim=claim, **optional)

    def _reduction(self, name: str, given: model.Reduction) -> Reduction:
        where: Path = ("loop", "aggregate", name)
        ops = [key for key in model.Reduction.model_fields if key != "limit" and getattr(given, key) is not None]
        if len(ops) != 1:
            hint = "write for example `total: {sum: '{{ output.data.amount }}'}`"
            self._error(f"`{name}` needs one operation", where, code="missing-key", hint=hint)
        op: Any = ops[0] if ops else "count"
        value = self._value(getattr(given, op), (*where, op), "loop", what=f"aggregate {name}")
        return Reduction(name, op, value, given.limit or SAMPLE)

    # -- routing -------------------------------------------------------------------------------------------------------

    def _next(self, following: model.Next | None, names: Collection[str]) -> NextPlan:
        if following is None:
            implicit = (Arc("end"),) if "end" in names and self._step.step != "end" else ()
            return NextPlan(arcs=implicit)
        arcs = [self._arc(arc, ("next", "arcs", number), names) for number, arc in enumerate(following.arcs)]
        return NextPlan(following.spec.mode, following.spec.on_no_match, tuple(arcs))

    def _arc(self, arc: model.ArcModel, where: Path, names: Collection[str]) -> Arc:
        if arc.step not in names and arc.step != "end":
            message, hint = f"an arc to `{arc.step}`, which is no step", suggestion(arc.step, names)
            self._error(message, (*where, "step"), code="unknown-step", hint=hint)
        when = self._condition(arc.when, (*where, "when"), f"arc to '{arc.step}'")
        place = f"arc to '{arc.step}'"
        return Arc(
            step=arc.step,
            when=when,
            set=self._assignments(arc.set, (*where, "set"), place),
            args=self.optional(arc.args, (*where, "args"), place),
            sees_outcome=when is not None and bool(when.names & _OUTCOME_NAMES),
        )


def changes_rows(sql: str) -> bool:
    """Whether a claim can change its source: it says UPDATE, INSERT, DELETE, MERGE, or calls a function."""
    return bool(_CHANGING.search(_LOCKING.sub(" ", _COMMENT.sub(" ", sql))))


def _names(values: Sequence[Value]) -> frozenset[str]:
    return frozenset().union(*(value.names for value in values))
