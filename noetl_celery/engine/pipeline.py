"""One row's way through a step's tasks: a state machine without I/O.

The lane asks ``next()`` what to do, does it, and tells ``apply()`` what came of it. ``position`` is all that
must be saved to go on elsewhere: a parked row, or one that is handed to another lane, continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from noetl_celery.engine.assign import assign, storable
from noetl_celery.engine.loops import seconds
from noetl_celery.engine.policy import attempts_allowed, choose, retry_delay
from noetl_celery.errors import ErrorInfo, TemplateError
from noetl_celery.outcome import Outcome
from noetl_celery.playbook.plan import Assignments, CallPlan, Rule, StepPlan, TaskPlan
from noetl_celery.template import NoError, Value
from noetl_celery.template.lazy import document

#: the keys of an envelope that all hold what the task returned
DATA_KEYS = ("data", "result", "response")


@dataclass(slots=True)
class Position:
    """Where a row is: the task to run, its attempt (from 1), and everything that the tasks before it left."""

    task: int = 0
    attempt: int = 1
    jumps: int = 0
    iter: dict[str, Any] = field(default_factory=dict)
    #: bare names written by ``set``
    names: dict[str, Any] = field(default_factory=dict)
    #: task name → result
    results: dict[str, Any] = field(default_factory=dict)
    #: envelope of the last task that ran
    output: dict[str, Any] | None = None
    #: the child execution that its task waits for
    child: int | None = None
    #: decided already: the row has failed for good with this error, whatever its tasks would do
    failed: dict[str, Any] | None = None
    #: dotted path → value, in the order written; merged into the execution's ``ctx`` when the frame ends
    ctx: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """JSON to save; ``Position(**document)`` restores it, once the documents of its results are opened."""
        saved = asdict(self)
        saved["results"] = {name: document(value) for name, value in self.results.items()}
        if self.output is not None:
            saved["output"] |= {key: document(self.output[key]) for key in DATA_KEYS}
        return saved


@dataclass(frozen=True, slots=True)
class Run:
    """Run this task with these rendered keys and inputs."""

    task: TaskPlan
    config: Mapping[str, Any]
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """Start this child playbook, or look at the one that ``child`` names; ``apply`` what it came to."""

    task: TaskPlan
    path: str
    input: Mapping[str, Any]
    version: str | None = None
    return_step: str | None = None
    #: seconds that the child may take
    timeout: float | None = None
    child: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait ``seconds``, then ask again. ``throttled``: the target asked for it, so the row keeps its place there."""

    seconds: float
    throttled: bool = False
    error: ErrorInfo | None = None
    #: the attempt that comes after it, and how many there may be
    attempt: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The row is OK; ``data`` is the last task's result."""

    data: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The row failed for good with this error, in this task."""

    error: ErrorInfo
    task: str | None


End = TypeVar("End", Done, Failed)

_NO_NAMES: Mapping[str, Any] = {}


class Pipeline:
    """Drives one row. ``names`` builds the mapping that templates see at a position; it is asked anew each time."""

    def __init__(
        self,
        step: StepPlan,
        position: Position,
        names: Callable[[Position, Mapping[str, Any] | None, Mapping[str, Any]], Mapping[str, Any]],
        *,
        random: Callable[[], float],
        jump_budget: int,
    ) -> None:
        self.step = step
        self.position = position
        self._names = names
        self._random = random
        self._jump_budget = jump_budget
        self._ended: Done | Failed | None = None

    @property
    def task(self) -> TaskPlan:
        return self.step.tasks[self.position.task]

    def next(self) -> Run | Call | Done | Failed:
        """What to do now. A template that cannot be rendered fails the row: no retry would change it."""
        if self._ended is not None:
            return self._ended
        position = self.position
        if position.failed is not None:
            return self._end(Failed(ErrorInfo(**position.failed), None))
        if position.task >= len(self.step.tasks):
            return Done((position.output or {}).get("data"))
        task = self.task
        try:
            arguments = self._rendered(task.input, None)
            given = arguments if isinstance(arguments, Mapping) else {}
            if task.call is not None:
                return self._child(task, task.call, given)
            config = self._rendered(task.config, given)
        except TemplateError as error:
            return self._end(_template_failure(error, task.name))
        return Run(task, config, given)

    def _rendered(self, value: Value, args: Mapping[str, Any] | None) -> Any:
        """A value of the current task; names are put together only for one that looks some up."""
        return value.render(self.names(self.position.output, args) if value.names else _NO_NAMES)

    def _child(self, task: TaskPlan, call: CallPlan, given: Mapping[str, Any]) -> Call:
        names = self.names(self.position.output, given)

        def text(value: Value | None) -> str | None:
            return None if value is None else str(value.render(names))

        return Call(
            task,
            path=str(call.path.render(names)),
            input=given,
            version=text(call.version),
            return_step=text(call.return_step),
            timeout=seconds(call.timeout, names, f"`timeout` of task '{task.name}'"),
            child=self.position.child,
        )

    def apply(self, outcome: Outcome) -> Wait | Done | Failed | None:
        """Takes what the current task returned; None means: ask ``next()`` again."""
        task, position = self.task, self.position
        position.child = None
        outcome.meta["attempt"] = position.attempt
        envelope = outcome.envelope()
        if outcome.error is not None:
            envelope["error"]["task"] = task.name
        # Most tasks have no policy: nothing looks a name up then.
        names = self.names(envelope, rule=True) if task.rules else _NO_NAMES
        try:
            rule = choose(task.rules, names, ok=outcome.ok)
            if rule.do == "retry":
                return self._retry(rule, names, outcome, envelope)
            if rule.do == "fail":
                self._assign(rule.set, envelope)
                return self._fail(outcome, envelope)
            position.output = envelope
            position.results[task.name] = outcome.data
            if outcome.ok:
                self._assign(task.set, outcome.data, bare=True)
            else:
                self._leave_null(task.set, envelope)
            self._assign(rule.set, envelope)
            return self._move(rule, task)
        except TemplateError as error:
            return self._end(_template_failure(error, task.name))

    def end_names(self, extra: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """What templates about the whole row see when it has ended: ``output`` is the last envelope."""
        output = self.position.output
        more = {"_attempt": self.position.attempt, **(extra or {})}
        if output is not None:
            more |= {"output": output, "outcome": output}
        return self._names(self.position, None, more)

    def names(
        self, output: Any, args: Mapping[str, Any] | None = None, *, bare: bool = False, rule: bool = False
    ) -> Mapping[str, Any]:
        """What templates see here. ``bare``: ``output`` is a result; ``rule``: an envelope that a rule looks at."""
        extra: dict[str, Any] = {
            "_task": self.task.name,
            "_attempt": self.position.attempt,
            "_prev": (self.position.output or {}).get("data"),
        }
        if output is not None or bare:
            extra |= {"output": output, "outcome": output}
        if rule:
            extra |= {"response": output["data"], "error": output["error"] or NoError()}
        return self._names(self.position, args, extra)

    def _retry(
        self, rule: Rule, names: Mapping[str, Any], outcome: Outcome, envelope: dict[str, Any]
    ) -> Wait | Failed | None:
        position = self.position
        attempts = attempts_allowed(rule, names)
        if position.attempt >= attempts:
            return self._fail(outcome, envelope)
        least = outcome.error.retry_after if outcome.error else None
        delay = retry_delay(rule, names, position.attempt, least, self._random)
        self._assign(rule.set, envelope)
        position.attempt += 1
        throttled = outcome.error is not None and outcome.error.kind == "rate_limit"
        return Wait(delay, throttled, outcome.error, position.attempt, attempts)

    def _fail(self, outcome: Outcome, envelope: dict[str, Any]) -> Failed:
        """The row ends with this outcome; arcs that handle the failure see all of it."""
        self.position.output = envelope
        return self._end(Failed(outcome.error or _failed_by_rule(self.task), self.task.name))

    def _move(self, rule: Rule, task: TaskPlan) -> Done | Failed | None:
        position = self.position
        position.attempt = 1
        if rule.do == "break":
            return self._end(Done((position.output or {}).get("data")))
        if rule.do == "jump":
            position.jumps += 1
            if position.jumps > self._jump_budget:
                message = f"the pipeline jumped more than {self._jump_budget} times; it seems to have no end"
                return self._end(Failed(ErrorInfo("jump_budget", message), task.name))
            position.task = self.step.task_index[str(rule.to)]
        else:
            position.task += 1
        return None

    def _assign(self, pairs: Assignments, output: Any, *, bare: bool = False) -> None:
        position = self.position
        for target, value in pairs:
            # Names anew for each: what the one before wrote is there for the next, in ``ctx`` as well.
            rendered = storable(value.render(self.names(output, bare=bare, rule=not bare)), f"`{target}`")
            scope_name, _, path = target.partition(".")
            if scope_name == "ctx" and path:
                position.ctx[path] = rendered
            elif scope_name == "iter" and path:
                assign(position.iter, path, rendered)
            else:
                assign(position.names, target, rendered)

    def _leave_null(self, pairs: Assignments, envelope: Mapping[str, Any]) -> None:
        """A task that failed sets nothing; bare names that nobody else gives are null for the tasks after it."""
        known = self.names(envelope) if pairs else _NO_NAMES
        for target, _ in pairs:
            if "." not in target and target not in known:
                self.position.names[target] = None

    def _end(self, end: End) -> End:
        self._ended = end
        return end


def _template_failure(error: TemplateError, task: str) -> Failed:
    return Failed(ErrorInfo("template", str(error)), task)


def _failed_by_rule(task: TaskPlan) -> ErrorInfo:
    return ErrorInfo("policy", f"a policy rule of task '{task.name}' says so, though the task itself was ok")
