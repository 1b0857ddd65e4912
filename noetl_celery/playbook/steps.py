"""One step of the canonical document to its plan: templates compiled, defaults filled in, references checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, Protocol

from noetl_celery.playbook import model
from noetl_celery.playbook.plan import (
    AdmitRule,
    Arc,
    Assignments,
    CursorPlan,
    FramePlan,
    LoopPlan,
    NextPlan,
    Rule,
    StepPlan,
    TaskPlan,
)
from noetl_celery.playbook.problems import Path, Reporter, suggestion
from noetl_celery.playbook.source import Mark, place_of, plain
from noetl_celery.template import TemplateSyntax, Value, compile_condition, compile_value, constant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: keys of a task that are not the tool's
_NOT_CONFIG = frozenset(
    {
        "name",
        "kind",
        "input",
        "set",
        "policy",
        "desc",
        "assert",
        "output",
        "output_select",
        "inline_max_bytes",
        "labels",
    }
)
_OUTCOME_NAMES = frozenset({"event", "output", "outcome", "error"})
_NEED_PLUGINS = frozenset(
    {"snowflake", "nats", "ducklake", "container", "agent", "subscription", "script", "secrets", "gcs", "mcp"}
)
_FRAME_DEFAULTS = {"max_rows": 1, "row_concurrency": 1, "lease_seconds": 120, "heartbeat_seconds": 30}
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)
_LOCKING = re.compile(r"\bfor\s+(no\s+key\s+)?update\b", re.I)
_CHANGING = re.compile(r"\b(update|insert|delete|merge|call)\b|\b(from|select)\s+[\w.]+\s*\(", re.I)


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


class StepCompiler:
    """Compiles one step. ``path`` is where it stands in the document; what is wrong goes to the reporter."""

    def __init__(
        self, step: model.Step, path: Path, report: Reporter, tools: ToolCatalog, cursors: CursorCatalog
    ) -> None:
        self._step = step
        self._path = path
        self._report = report
        self._tools = tools
        self._cursors = cursors
        #: every value that was compiled, by what needs its names
        self.row_values: list[Value] = []
        self.route_values: list[Value] = []
        self._into = self.row_values

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
        )

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _tasks(self) -> tuple[TaskPlan, ...]:
        names = [self._task_name(task, index) for index, task in enumerate(self._step.tool)]
        for index, name in enumerate(names):
            if name in names[:index]:
                self._error(f"two tasks are called `{name}`", ("tool", index, "name"), code="duplicate-name")
        return tuple(self._task(task, name, index, names) for index, (task, name) in enumerate(self._pairs(names)))

    def _pairs(self, names: list[str]) -> list[tuple[model.Task, str]]:
        return list(zip(self._step.tool, names, strict=True))

    def _task_name(self, task: model.Task, index: int) -> str:
        if len(self._step.tool) == 1 and (task.name is None or task.kind == "workbook"):
            return self._step.step
        return task.name or f"task_{index + 1}"

    def _task(self, task: model.Task, name: str, index: int, names: list[str]) -> TaskPlan:
        where: Path = ("tool", index)
        written = self._written(where)
        place = "" if name == self._step.step else f"task '{name}'"
        mark = place_of(self._report.document, (*self._path, *where))
        keep = _NOT_CONFIG - {"name"} if task.kind == "workbook" else _NOT_CONFIG
        config = {key: value for key, value in written.items() if key not in keep}
        raw_keys = self._check_tool(task.kind, config, where, f"{place} ({task.kind})" if place else task.kind)
        step_input, task_input = plain(self._step.input), plain(task.input)
        if isinstance(step_input, dict) and isinstance(task_input, dict):
            merged: Any = {**step_input, **task_input}
        else:
            merged = task_input or step_input
        self._check_input_syntax(step_input, task_input, where, place)
        rules = None
        if task.policy is not None:
            rules = tuple(
                self._rule(rule, (*where, "policy", "rules", number), place, names)
                for number, rule in enumerate(task.policy.rules)
            )
            self._check_order(task.policy.rules, (*where, "policy", "rules"))
        return TaskPlan(
            name=name,
            kind=task.kind,
            config=self._value(config, where, place, raw_keys=raw_keys),
            input=self._merged_input(merged, where, place),
            rules=rules,
            set=self._assignments(task.set, (*where, "set"), place),
            line=mark.line if mark is not None else None,
        )

    def _check_tool(self, kind: str, config: Mapping[str, Any], where: Path, called: str) -> frozenset[str]:
        """Reports what the tool says of its keys; returns those that are never rendered."""
        if kind not in self._tools.kinds():
            self._unknown_kind("tool", kind, self._tools.kinds(), (*where, "kind"))
            return frozenset({"code"})
        for key, message in self._tools.check(kind, config):
            self._error(
                f"{called}: {message}",
                (*where, key) if key is not None else (*where, "kind"),
                code=_complaint_code(message),
            )
        return self._tools.raw_keys(kind)

    def _unknown_kind(self, what: str, kind: str, known: Collection[str], where: Path) -> None:
        kinds = ", ".join(sorted(known))
        if kind in _NEED_PLUGINS:
            self._error(
                f"{what} kind `{kind}` needs a plugin that is not installed",
                where,
                code="unknown-kind",
                hint=f"known: {kinds}",
            )
            return
        near = suggestion(kind, known)
        hint = f"{near + ' ' if near else ''}known: {kinds}"
        self._error(f"unknown {what} kind `{kind}`", where, code="unknown-kind", hint=hint)

    def _check_input_syntax(self, step_input: Any, task_input: Any, where: Path, place: str) -> None:
        if isinstance(step_input, str) and task_input:
            message = "`input` of the step is a template, so its tasks cannot add to it"
            self._error(message, ("input",), code="conflicting-keys")

    def _merged_input(self, merged: Any, where: Path, place: str) -> Value:
        """The input of step and task as one value; each key's errors at its own place."""
        written = self._written((*where, "input"))

        def line_of(path: Path) -> Mark | None:
            inside_task = isinstance(written, dict) and path and path[0] in written
            base: Path = (*where, "input") if inside_task or not self._step.input else ("input",)
            return place_of(self._report.document, (*self._path, *base, *path))

        found: list[TemplateSyntax] = []
        value = compile_value(
            merged,
            place=self._place(place, "input"),
            line_of=lambda path: mark.text_line if (mark := line_of(path)) is not None else None,
            problems=found,
        )
        for error in found:
            own = isinstance(written, dict) and error.path and error.path[0] in written
            base = (*self._path, *((*where, "input") if own or not self._step.input else ("input",)))
            self._report.syntax(error, base, step=self._step.step, what="input")
        return self._kept(value)

    # -- policies ------------------------------------------------------------------------------------------------------

    def _rule(self, rule: model.PolicyRule, where: Path, place: str, names: list[str]) -> Rule:
        then, inside = rule.then, (*where, "then")
        if then.do == "jump" and then.to is None:
            self._needs("to", "`do: jump` needs `to`, the name of a task of this step", inside)
        elif then.do == "jump" and then.to not in names:
            hint = suggestion(str(then.to), names) or f"tasks: {', '.join(names)}"
            message = f"`jump` to `{then.to}`, which is no task of this step"
            self._error(message, (*inside, "to"), code="unknown-task", hint=hint)
        given = place or "policy"
        merged: list[tuple[str, Value]] = list(self._assignments(then.set, (*inside, "set"), given))
        merged += self._assignments(then.set_iter, (*inside, "set_iter"), given, prefix="iter")
        merged += self._assignments(then.set_ctx, (*inside, "set_ctx"), given, prefix="ctx")
        return Rule(
            when=self._condition(rule.when, (*where, "when"), place),
            do=then.do,
            to=then.to,
            attempts=self._optional(then.attempts, (*inside, "attempts"), place),
            backoff=then.backoff or "none",
            delay=self._optional(then.delay, (*inside, "delay"), place),
            max_delay=self._optional(then.max_delay, (*inside, "max_delay"), place),
            set=tuple(merged),
        )

    def _check_order(self, rules: Sequence[model.PolicyRule | model.Admit], where: Path) -> None:
        for number, rule in enumerate(rules[:-1]):
            if rule.when is None:
                message = "rules after one without `when` are never reached"
                self._warn(message, (*where, number + 1), code="unreachable-rule")
                return

    def _assignments(self, given: Mapping[str, Any], where: Path, place: str, *, prefix: str = "") -> Assignments:
        found = []
        for key, raw in given.items():
            target = key if not prefix or key.startswith(f"{prefix}.") else f"{prefix}.{key}"
            scope_, _, name = target.rpartition(".")
            if scope_ not in ("", "ctx", "iter") or not model.IDENTIFIER.match(name):
                hint = "write `ctx.x`, `iter.x` or a bare name"
                self._error(f"`{key}` cannot be set", (*where, key), code="set-target", hint=hint)
                continue
            found.append((target, self._value(raw, (*where, key), place, what=f"set {key}")))
        return tuple(found)

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
        if loop.aggregate is not None:
            self._warn("`aggregate` has no effect yet", ("loop", "aggregate"), code="no-effect")
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
            items=self._optional(loop.in_, ("loop", "in"), "loop"),
            cursor=self._cursor(loop.cursor) if loop.cursor is not None else None,
            aggregate=self._optional(loop.aggregate, ("loop", "aggregate"), "loop"),
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
            max_seconds=self._optional(given.max_seconds, (*path, "max_seconds"), "loop"),
            max_bytes=self._optional(given.max_bytes, (*path, "max_bytes"), "loop"),
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
                    self._error(message, (*path, key) if key is not None else path, code=_complaint_code(message))
        if cursor.claim is None:
            self._needs("claim", "`cursor` needs `claim`, what leases rows", path)
        elif cursor.kind == "postgres" and not changes_rows(cursor.claim):
            hint = "set a status in an UPDATE … RETURNING around the SELECT … FOR UPDATE SKIP LOCKED"
            message = "`claim` changes nothing: it would lease the same rows for ever"
            self._warn(message, (*path, "claim"), code="claim-changes-nothing", hint=hint)
        for key in ("reclaim", "reclaim_after", "dead_letter", "count"):
            if getattr(cursor, key) is not None:
                self._warn(f"`{key}` has no effect yet", (*path, key), code="no-effect")
        keys = ("auth", "reclaim", "reclaim_after", "dead_letter", "count", "options")
        optional = {key: self._optional(getattr(cursor, key), (*path, key), "cursor") for key in keys}
        claim = self._value(cursor.claim or "", (*path, "claim"), "cursor", what="claim")
        return CursorPlan(kind=cursor.kind, claim=claim, **optional)

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
            args=self._optional(arc.args, (*where, "args"), place),
            sees_outcome=when is not None and bool(when.names & _OUTCOME_NAMES),
        )

    # -- values --------------------------------------------------------------------------------------------------------

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
            self._report.syntax(error, path, step=self._step.step, what=key)
        return self._kept(value)

    def _optional(self, raw: Any, where: Path, place: str) -> Value | None:
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
            self._report.syntax(error, path, step=self._step.step, what="when")
            return constant(False)

    def _kept(self, value: Value) -> Value:
        self._into.append(value)
        return value

    def _place(self, *parts: str) -> str:
        return ", ".join([f"step '{self._step.step}'", *(part for part in parts if part)])

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
        self._report.error(message, (*self._path, *where), code=code, step=self._step.step, hint=hint)

    def _needs(self, key: str, message: str, where: Path, *, hint: str | None = None) -> None:
        """An error for a missing key, unless it was there and the model has refused its value already."""
        if self._written(where).get(key) is None:
            self._error(message, where, code="missing-key", hint=hint)

    def _warn(self, message: str, where: Path, *, code: str, hint: str | None = None) -> None:
        self._report.warn(message, (*self._path, *where), code=code, step=self._step.step, hint=hint)


def _complaint_code(message: str) -> str:
    """Tools say in words what is wrong with their keys; a key that they do not know is the commonest of it."""
    return "unknown-key" if "unknown key `" in message else "tool-config"


def changes_rows(sql: str) -> bool:
    """Whether a claim can change its source: it says UPDATE, INSERT, DELETE, MERGE, or calls a function."""
    return bool(_CHANGING.search(_LOCKING.sub(" ", _COMMENT.sub(" ", sql))))


def _names(values: Sequence[Value]) -> frozenset[str]:
    return frozenset().union(*(value.names for value in values))
