"""Small random playbooks, as text that the real compiler reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from engine_sources import SourceSpec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from noetl_celery.playbook import Plan, compile_playbook


def simulated(examples: int) -> settings:
    """Settings of a property test that runs so many examples: no deadline, and the same ones each time on CI.

    ``TEST_EXAMPLES_FACTOR=20 pytest tests/unit/engine`` searches that much longer.
    """
    return settings(
        max_examples=examples * int(os.environ.get("TEST_EXAMPLES_FACTOR", "1")),
        deadline=None,
        derandomize="CI" in os.environ,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Kinds:
    """A catalog that knows one kind and has nothing to say against any key."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def kinds(self) -> Collection[str]:
        return self._kinds

    def check(self, kind: str, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        return ()

    def raw_keys(self, kind: str) -> frozenset[str]:
        return frozenset()


def compiled(workflow: Sequence[Mapping[str, Any]] | str, **root: Any) -> Plan:
    """The plan of a workflow, given as data or as YAML."""
    steps = yaml.safe_load(workflow) if isinstance(workflow, str) else list(workflow)
    document = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "test"}, **root}
    text = yaml.safe_dump({**document, "workflow": steps}, sort_keys=False)
    return compile_playbook(text, file="test.yaml", tools=Kinds("noop"), cursors=Kinds("queue")).plan


@dataclass(frozen=True)
class Case:
    """A workflow, and the queues that its cursor loops claim from."""

    workflow: list[dict[str, Any]]
    sources: dict[str, SourceSpec] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return compiled(self.workflow)


def task(name: str, flaw: str, rules: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    policy = {"spec": {"policy": {"rules": rules}}} if rules is not None else {}
    return {"name": name, "kind": "noop", "flaw": flaw, "input": {"attempt": "{{ _attempt }}"}, **policy, **more}


def calling(name: str, flaw: str, rules: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A task that calls a child; what it is called says what becomes of it."""
    policy = {"spec": {"policy": {"rules": rules}}} if rules is not None else {}
    return {"name": name, "kind": "playbook", "path": flaw, "input": {"attempt": "{{ _attempt }}"}, **policy}


FAILED = "{{ output.status == 'error' }}"
RETRY = {"when": "{{ output.error.retryable }}", "then": {"do": "retry", "attempts": 3, "delay": 1}}
PARK = {"when": "{{ output.error.retryable }}", "then": {"do": "retry", "attempts": 3, "delay": 9, "backoff": "linear"}}
POLICIES: list[list[dict[str, Any]] | None] = [
    None,
    [],
    [RETRY, {"when": FAILED, "then": {"do": "fail"}}],
    [PARK, {"when": FAILED, "then": {"do": "fail"}}],
    [PARK, {"when": FAILED, "then": {"do": "continue", "set_iter": {"gave_up": True}}}],
    [RETRY, {"else": {"then": {"do": "break"}}}],
    [{"when": FAILED, "then": {"do": "jump", "to": "first"}}, {"else": {"then": {"do": "continue"}}}],
]
FLAWS = ["none", "none", "none", "fails", "flaky", "throttles", "hopeless"]


@st.composite
def pipelines(draw: st.DrawFn, step: str, *, flaws: bool) -> list[dict[str, Any]]:
    tasks = []
    for name in ("first", "second")[: draw(st.integers(1, 2))]:
        flaw = draw(st.sampled_from(FLAWS)) if flaws else "none"
        made = draw(st.sampled_from([task, task, task, calling]))
        tasks.append(made(name, flaw, draw(st.sampled_from(POLICIES)) if flaws else None))
    if draw(st.booleans()):
        tasks[-1]["spec"] = tasks[-1].get("spec") or {"policy": {"rules": [{"else": {"then": {"do": "continue"}}}]}}
        for rule in tasks[-1]["spec"]["policy"]["rules"]:
            then = rule["then"] if "then" in rule else rule["else"]["then"]
            rule |= {"then": {**then, "set_ctx": {f"last_{step}": "{{ loop_index | default(0) }}"}}}
            rule.pop("else", None)
    return tasks


@st.composite
def loops(draw: st.DrawFn) -> dict[str, Any]:
    """A ``loop``, without its cursor's queue."""
    spec: dict[str, Any] = {}
    cursor: dict[str, Any] = {"kind": "queue", "claim": "take"}
    if draw(st.booleans()):
        spec["max_in_flight"] = draw(st.integers(1, 4))
    if draw(st.integers(0, 2)) == 2:
        cursor |= {"reclaim": "free"} | draw(st.sampled_from([{}, {"reclaim_after": 10}]))
    match draw(st.sampled_from(["cursor", "cursor", "oldest", "parallel", "sequential"])):
        case "cursor":
            frame = {"max_rows": draw(st.integers(1, 4)), "row_concurrency": draw(st.integers(1, 5))}
            return {"cursor": cursor, "iterator": "row", "spec": {**spec, "frame": frame}}
        case "oldest":
            return {"cursor": cursor, "iterator": "row", "spec": spec}
        case mode:
            items = list(range(draw(st.sampled_from([4, 6, 2, 1, 0]))))
            return {"in": items, "iterator": "item", "spec": {**spec, "mode": mode}}


def _condition(draw: st.DrawFn, *, flaws: bool) -> Any:
    conditions = [None, None, None, "{{ true }}", "{{ false }}"]
    if flaws:
        conditions += ["{{ event.name == 'step.failed' }}", "{{ output.status == 'ok' }}", "{{ error.kind == 'bad' }}"]
    return draw(st.sampled_from(conditions))


@st.composite
def routes(draw: st.DrawFn, number: int, count: int, *, flaws: bool, back: bool) -> dict[str, Any]:
    """``next`` (and what a bounded way back needs) of step ``number`` of ``count``."""
    last = number + 1 >= count
    targets = [] if last else draw(st.lists(st.integers(number + 1, count - 1), min_size=1, max_size=3))
    arcs = [{"step": f"s{target}", "when": _condition(draw, flaws=flaws)} for target in targets]
    arcs = [{name: value for name, value in arc.items() if value is not None} for arc in arcs]
    mode = draw(st.sampled_from(["exclusive", "inclusive", "inclusive"]))
    spec = {"mode": mode}
    if flaws and draw(st.integers(0, 9)) == 9:
        spec["on_no_match"] = "fail"
    step: dict[str, Any] = {}
    if back and draw(st.integers(0, 2)) == 2:
        times = f"times_{number}"
        step["set"] = {f"ctx.{times}": f"{{{{ ctx.{times} | default(0) + 1 }}}}"}
        target = draw(st.integers(0, number))
        arcs.insert(0, {"step": f"s{target}", "when": f"{{{{ ctx.{times} < 3 }}}}"})
    return {**step, "next": {"spec": spec, "arcs": arcs}}


@st.composite
def cases(draw: st.DrawFn, *, flaws: bool = True, back: bool = True, least: int = 1, most: int = 6) -> Case:
    count = draw(st.integers(least, most))
    workflow: list[dict[str, Any]] = []
    sources: dict[str, SourceSpec] = {}
    for number in range(count):
        name = f"s{number}"
        step: dict[str, Any] = {"step": name}
        kind = draw(st.sampled_from(["plain", "plain", "loop", "loop", "loop", "router"]))
        if kind != "router":
            step["tool"] = draw(pipelines(name, flaws=flaws))
        if kind == "loop":
            step["loop"] = draw(loops())
            if "cursor" in step["loop"]:
                sources[name] = SourceSpec(
                    draw(st.sampled_from([3, 5, 8, 1, 0])), draw(st.booleans()), draw(st.booleans())
                )
        spec: dict[str, Any] = {}
        if flaws and draw(st.booleans()):
            spec["policy"] = {"failure": {"mode": draw(st.sampled_from(["fail_fast", "best_effort"]))}}
        if flaws and draw(st.integers(0, 4)) == 4:
            spec["timeout"] = draw(st.integers(1, 60))
        if draw(st.integers(0, 7)) == 7:
            rules = [{"when": "{{ ctx.n is defined }}", "then": {"allow": True}}, {"else": {"then": {"allow": False}}}]
            spec.setdefault("policy", {})["admit"] = {"rules": rules}
        if spec:
            step["spec"] = spec
        workflow.append({**step, **draw(routes(number, count, flaws=flaws, back=back))})
    return Case(workflow, sources)
