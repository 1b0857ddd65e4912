"""A playbook's text to its plan, or to everything that is wrong with it in one go."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from noetl_celery.errors import Problem, Problems
from noetl_celery.playbook import graph, lint, model
from noetl_celery.playbook.keychain import keychain_plan
from noetl_celery.playbook.normalise import Normaliser
from noetl_celery.playbook.plan import KeychainPlan, Plan, StepPlan
from noetl_celery.playbook.problems import Path, Reporter, drop_consequences, suggestion
from noetl_celery.playbook.source import YamlMap, plain, read, value_at
from noetl_celery.playbook.steps import StepCompiler
from noetl_celery.playbook.values import CursorCatalog, ToolCatalog, ValueCompiler
from noetl_celery.playbook.workbook import expand

if TYPE_CHECKING:
    from collections.abc import Collection

_PRUNINGS = 4
_EXECUTOR_KEYS = frozenset(model.ExecutorSpec.model_fields)
_API_VERSION = "noetl.io/v2"
_SHADOWED = frozenset(
    {"workload", "ctx", "iter", "args", "output", "outcome", "event", "spec", "job", "execution_id", "now"}
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A playbook that may run: its plan, what is worth a look, and its ``metadata`` as written."""

    plan: Plan
    warnings: tuple[Problem, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


def compile_playbook(
    text: str | bytes, *, file: str, tools: ToolCatalog, cursors: CursorCatalog, warn: bool = True
) -> Compiled:
    """Validates a playbook and compiles it.

    ``file`` is how problems call it. Without ``warn`` nobody looks for what is valid and likely wrong. Raises
    :class:`~noetl_celery.errors.PlaybookInvalid` with all its problems, sorted by line.
    """
    problems = Problems()
    source = read(text, file=file, problems=problems)
    readable = text.decode() if isinstance(text, bytes) else text
    normaliser = Normaliser(file, problems)
    document = expand(normaliser.document(source), normaliser.step, problems, file)
    report = Reporter(readable, file, document, problems)
    compiler = _Compiler(report, tools, cursors)
    plan = compiler.plan()
    drop_consequences(problems)
    problems.raise_errors()
    assert plan is not None, "no plan without a problem"
    if warn:
        lint.check(plan, report, tools)
    warnings = sorted(problems.warnings, key=lambda problem: (problem.line or 0, problem.column or 0))
    return Compiled(plan, tuple(warnings), plain(document["metadata"]))


class _Compiler:
    def __init__(self, report: Reporter, tools: ToolCatalog, cursors: CursorCatalog) -> None:
        self._report = report
        self._document = report.document
        self._tools = tools
        self._cursors = cursors

    def plan(self) -> Plan | None:
        """The plan, or None if the root is too broken; problems are reported either way."""
        root = self._root()
        steps, refs = self._steps()
        if root is None or not steps:
            return None
        entry = self._entry(root, steps)
        arcs = {name: [arc.step for arc in step.next.arcs] for name, step in steps.items()}
        if not self._report.problems.errors:  # which may well be why no arc leads to a step
            self._unreachable(arcs, entry)
        back = graph.back_edges(arcs, entry)
        return Plan(
            path=root.metadata.path or root.metadata.name,
            name=root.metadata.name,
            entry=entry,
            workload=plain(root.workload),
            steps=steps,
            spec=plain(root.spec) if isinstance(root.spec, dict) else {},
            pool=root.executor.spec.pool,
            keychain=self._keychain(),
            results_of=refs & frozenset(steps),
            back_edges=back,
            forward=graph.forward(arcs, back),
        )

    def _root(self) -> model.Document | None:
        version, kind = self._document.get("apiVersion"), self._document.get("kind")
        if version is not None and version != _API_VERSION:
            self._report.error(
                f"apiVersion is {version!r}",
                ("apiVersion",),
                code="not-a-playbook",
                hint=f"this is read: {_API_VERSION}",
            )
        if kind is not None and kind != "Playbook":
            self._report.error(f"kind is {kind!r}, not Playbook", ("kind",), code="not-a-playbook")
        checked = self._document.derived(*self._document)
        for key, right in (("apiVersion", _API_VERSION), ("kind", "Playbook")):
            if key in checked:
                checked[key] = right
        self._executor_keys()
        found = self._validated(model.Document, checked, (), None)
        return found if isinstance(found, model.Document) else None

    def _executor_keys(self) -> None:
        """Any key may stand in ``executor.spec``; one that is nearly one of ours is a slip."""
        spec = value_at(self._document, ("executor", "spec"))
        for key in spec if isinstance(spec, dict) else ():
            near = difflib.get_close_matches(key, _EXECUTOR_KEYS, n=1, cutoff=0.8)
            if near and key not in _EXECUTOR_KEYS:
                path: Path = ("executor", "spec", key)
                self._report.warn(f"`{key}` has no effect", path, code="no-effect", hint=f"did you mean `{near[0]}`?")

    def _validated(self, kind: type[BaseModel], data: Any, path: Path, step: str | None) -> BaseModel | None:
        """The model, after reporting what is wrong; without the wrong parts, so that the rest is looked at too."""
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            self._report.invalid(error, kind, path, step=step)
            return _pruned(kind, plain(data), error)

    def _steps(self) -> tuple[dict[str, StepPlan], frozenset[str]]:
        workflow = self._document.get("workflow")
        if not isinstance(workflow, list):
            return {}, frozenset()
        if not workflow:
            self._report.error("`workflow` has no step", ("workflow",), code="missing-key")
        names = self._step_names(workflow)
        known = [name for name in names if name]
        plans: dict[str, StepPlan] = {}
        refs: set[str] = set()
        for index, data in enumerate(workflow):
            path: Path = ("workflow", index)
            name = names[index]
            if not isinstance(data, YamlMap):
                self._report.error("a step is a mapping: `step: name`, `tool: …`", path, code="wrong-type")
                continue
            step = self._validated(model.Step, data, path, name)
            if isinstance(step, model.Step):
                compiler = StepCompiler(step, path, self._report, self._tools, self._cursors)
                plans.setdefault(step.step, compiler.plan(known))
                for value in (*compiler.row_values, *compiler.route_values):
                    refs |= value.result_refs
        return plans, frozenset(refs)

    def _keychain(self) -> dict[str, KeychainPlan]:
        """The names for secrets: aliases of stored credentials, and values of their own."""
        entries = self._document.get("keychain")
        if entries is not None and not isinstance(entries, list):
            self._report.error("`keychain` is a list of named secrets", ("keychain",), code="wrong-type")
        found: dict[str, KeychainPlan] = {}
        for index, data in enumerate(entries if isinstance(entries, list) else ()):
            path: Path = ("keychain", index)
            entry = self._validated(model.KeychainEntry, data, path, None) if isinstance(data, YamlMap) else None
            if not isinstance(entry, model.KeychainEntry):
                self._report.error("a keychain entry needs `name` and `kind`", path, code="missing-key")
                continue
            if entry.name in found:
                message = f"two keychain entries are called `{entry.name}`"
                self._report.error(message, path, code="duplicate-name")
            values = ValueCompiler(f"keychain '{entry.name}'", path, self._report)
            found[entry.name] = keychain_plan(entry, values, self._report, path)
        return found

    def _step_names(self, workflow: list[Any]) -> list[str | None]:
        names: list[str | None] = []
        for index, data in enumerate(workflow):
            name = str(data["step"]) if isinstance(data, YamlMap) and data.get("step") is not None else None
            if name is not None and name in names:
                first = self._document["workflow"].marks[names.index(name)].line
                path: Path = ("workflow", index, "step")
                message = f"two steps are called `{name}` (the first on line {first})"
                self._report.error(message, path, code="duplicate-name", step=name)
            elif name in _SHADOWED:
                message = f"a step called `{name}` cannot be referred to"
                self._report.warn(message, ("workflow", index, "step"), code="shadowed-name")
            names.append(name)
            self._iterator_name(index, data, name)
        return names

    def _iterator_name(self, index: int, data: Any, step: str | None) -> None:
        loop = data.get("loop") if isinstance(data, YamlMap) else None
        name = loop.get("iterator") if isinstance(loop, YamlMap) else None
        if isinstance(name, str) and name in _SHADOWED:
            message = f"`{name}` means something else in templates: this iterator is found as `iter.{name}` only"
            self._report.warn(message, ("workflow", index, "loop", "iterator"), code="shadowed-name", step=step)

    def _entry(self, root: model.Document, steps: dict[str, StepPlan]) -> str:
        wanted = root.executor.spec.entry_step
        if wanted is not None and wanted not in steps:
            path: Path = ("executor", "spec", "entry_step")
            message = f"entry_step `{wanted}` is no step"
            self._report.error(message, path, code="unknown-step", hint=suggestion(wanted, steps))
        if wanted in steps:
            return str(wanted)
        return "start" if "start" in steps else next(iter(steps))

    def _unreachable(self, arcs: dict[str, list[str]], entry: str) -> None:
        reached: Collection[str] = graph.reached(arcs, entry)
        for index, data in enumerate(self._document["workflow"]):
            name = data.get("step") if isinstance(data, YamlMap) else None
            if isinstance(name, str) and name in arcs and name not in reached:
                path: Path = ("workflow", index, "step")
                self._report.warn(f"no arc leads here from `{entry}`", path, code="unreachable-step", step=name)


def _pruned(kind: type[BaseModel], data: Any, error: ValidationError) -> BaseModel | None:
    """The model of what is left of (a copy of) the data when its wrong parts are taken away; None if nothing is."""
    for _ in range(_PRUNINGS):
        for found in error.errors(include_url=False):
            location = found["loc"][:-1] if found["type"] == "missing" else found["loc"]
            # An item goes with its whole list: the places of the others are found by their index.
            index = next((number for number, part in enumerate(location) if isinstance(part, int)), None)
            if index is not None and (found["type"] == "missing" or isinstance(location[-1], int)):
                location = location[:index]
            if not location:
                return None
            _remove(data, location)
        try:
            return kind.model_validate(data)
        except ValidationError as again:
            error = again
    return None


def _remove(data: Any, location: tuple[int | str, ...]) -> None:
    """Takes a key away, if it is still there."""
    try:
        for part in location[:-1]:
            data = data[part]
        del data[location[-1]]
    except (KeyError, IndexError, TypeError):
        return
