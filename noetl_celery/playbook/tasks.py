"""The tasks of a step to their plans: tools' keys, input, policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from noetl_celery.playbook import model
from noetl_celery.playbook.code import names_of_context
from noetl_celery.playbook.outputs import result_plan
from noetl_celery.playbook.plan import Assignments, CallPlan, Rule, TaskPlan
from noetl_celery.playbook.problems import Path, Reporter, suggestion
from noetl_celery.playbook.source import Mark, place_of, plain
from noetl_celery.playbook.values import ToolCatalog, ValueCompiler
from noetl_celery.template import TemplateSyntax, Value, compile_value

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
        "older",
    }
)
_NEED_PLUGINS = frozenset(
    {"snowflake", "nats", "ducklake", "container", "agent", "subscription", "script", "secrets", "gcs", "mcp"}
)


CHILD_KIND = "playbook"
#: kinds that are no tools: the language itself gives them their meaning
_LANGUAGE_KINDS = frozenset({CHILD_KIND, "workbook"})


class TaskCompiler(ValueCompiler):
    """Compiles the tasks of one step."""

    def __init__(self, step: model.Step, path: Path, report: Reporter, tools: ToolCatalog) -> None:
        super().__init__(step.step, path, report)
        self._step = step
        self._tools = tools

    def _tasks(self) -> tuple[TaskPlan, ...]:
        names = [self._task_name(task, index) for index, task in enumerate(self._step.tool)]
        for index, name in enumerate(names):
            if name in names[:index]:
                self._error(f"two tasks are called `{name}`", ("tool", index, "name"), code="duplicate-name")
        return tuple(self._task(task, name, index, names) for index, (task, name) in enumerate(self._pairs(names)))

    def _pairs(self, names: list[str]) -> list[tuple[model.Task, str]]:
        return list(zip(self._step.tool, names, strict=True))

    def _task_name(self, task: model.Task, index: int) -> str:
        if len(self._step.tool) == 1 and task.name is None:
            return self._step.step
        return task.name or f"task_{index + 1}"

    def _task(self, task: model.Task, name: str, index: int, names: list[str]) -> TaskPlan:
        where: Path = ("tool", index)
        written = self._written(where)
        place = "" if name == self._step.step else f"task '{name}'"
        mark = place_of(self._report.document, (*self._path, *where))
        config = {key: value for key, value in written.items() if key not in _NOT_CONFIG}
        step_input, task_input = plain(self._step.input), plain(task.input)
        if task.kind == CHILD_KIND and "payload" in config:
            task_input = config.pop("payload") | task_input if task_input else config.pop("payload")
        if isinstance(step_input, dict) and isinstance(task_input, dict):
            merged: Any = {**step_input, **task_input}
        else:
            merged = task_input or step_input
        self._check_input_syntax(step_input, task_input, where, place)
        call, raw_keys = None, frozenset[str]()
        if task.kind == CHILD_KIND:
            call, config = self._call(config, where, place), {}
        else:
            raw_keys = self._check_tool(task.kind, config, where, f"{place} ({task.kind})" if place else task.kind)
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
            output=result_plan(self, written, where),
            call=call,
            older=task.older,
            looks_up=self._looked_up(config, raw_keys),
        )

    def _looked_up(self, config: Mapping[str, Any], raw_keys: frozenset[str]) -> frozenset[str]:
        """The names that code looks up at run time; results of steps among them have to be loaded for it."""
        code = config.get("code")
        if "code" not in raw_keys or not isinstance(code, str):
            return frozenset()
        found = names_of_context(code)
        for name in filter(model.IDENTIFIER.match, found):
            self._kept(compile_value(f"{{{{ {name} }}}}", place=self._place("code"), problems=[]))
        return found

    def _call(self, config: dict[str, Any], where: Path, place: str) -> CallPlan | None:
        """A child playbook; the keys of a mapping that is wrong are reported."""
        try:
            given = model.Call.model_validate(config)
        except ValidationError as error:
            self._report.invalid(error, model.Call, (*self._path, *where), step=self._name)
            return None
        return CallPlan(
            path=self._value(given.path, (*where, "path"), place),
            version=self.optional(given.version, (*where, "version"), place),
            return_step=self.optional(given.return_step, (*where, "return_step"), place),
            timeout=self.optional(given.timeout, (*where, "timeout"), place),
        )

    def _check_tool(self, kind: str, config: Mapping[str, Any], where: Path, called: str) -> frozenset[str]:
        """Reports what the tool says of its keys; returns those that are never rendered."""
        if kind not in self._tools.kinds():
            self._unknown_kind("tool", kind, {*self._tools.kinds(), *_LANGUAGE_KINDS}, (*where, "kind"))
            return frozenset({"code"})
        for key, message in self._tools.check(kind, config):
            said, hint = said_and_hint(message)
            place = (*where, key) if key is not None else (*where, "kind")
            self._error(f"{called}: {said}", place, code=complaint_code(message), hint=hint)
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
            self._report.syntax(error, base, step=self._name, what="input")
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
            attempts=self.optional(then.attempts, (*inside, "attempts"), place),
            backoff=then.backoff or "none",
            delay=self.optional(then.delay, (*inside, "delay"), place),
            max_delay=self.optional(then.max_delay, (*inside, "max_delay"), place),
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


def complaint_code(message: str) -> str:
    """Tools say in words what is wrong with their keys; a key that they do not know is the commonest of it."""
    return "unknown-key" if "unknown key `" in message else "tool-config"


def said_and_hint(message: str) -> tuple[str, str | None]:
    """A tool's complaint about a key in its two parts: what is wrong, and what to write instead."""
    said, separator, hint = message.partition(": ")
    return (said, hint) if separator and said.startswith("unknown key `") else (message, None)
