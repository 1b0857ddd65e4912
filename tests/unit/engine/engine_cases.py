"""One execution told signal by signal, for tests that look at single decisions."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from engine_playbooks import compiled

from noetl_celery.engine import Decision, ExecutionState, Signal, StageState
from noetl_celery.engine.facts import Closed, Unfinished
from noetl_celery.engine.replay import Turn, replay

TERMINAL = ("step.done", "loop.done", "step.failed")


class KnownFacts:
    """The engine's ``Facts``, from dictionaries by stage."""

    def __init__(self) -> None:
        self.reduced: dict[int, list[Mapping[str, Any]]] = {}
        self.results: dict[str, Any] = {}
        self.task_results: dict[str, Mapping[str, Any]] = {}
        self.singles: dict[int, Mapping[str, Any]] = {}
        self.collections: dict[int, list[Any]] = {}
        self.failed: dict[int, list[Mapping[str, Any]]] = {}
        self.ctx: dict[int, Sequence[Mapping[str, Any]]] = {}
        self.ended: dict[int, Closed] = {}
        self.unfinished_frames: list[Unfinished] = []

    def single(self, stage: StageState) -> Mapping[str, Any]:
        return self.singles[stage.stage_id]

    def collection(self, stage: StageState) -> Mapping[str, Any]:
        results = self.collections.get(stage.stage_id, [])
        stats = {"total": len(results), "ok": stage.ok, "failed": stage.failed}
        return {"results": results, "data": results, "count": len(results), "stats": stats}

    def failures(self, stage: StageState, limit: int) -> Sequence[Mapping[str, Any]]:
        return self.failed.get(stage.stage_id, [])[:limit]

    def aggregates(self, stage: StageState, frame_id: int) -> Sequence[Mapping[str, Any]]:
        return self.reduced.get(frame_id, [])

    def ctx_writes(self, stage: StageState, frame_id: int) -> Sequence[Mapping[str, Any]]:
        return self.ctx.get(frame_id, [])

    def closed(self, stage_id: int) -> Closed | None:
        return copy.deepcopy(self.ended.get(stage_id))

    def last(self, step: str) -> Closed | None:
        ended = (closed for closed in reversed(self.ended.values()) if closed.state.step == step)
        return copy.deepcopy(next(ended, None))

    def unfinished(self, stage: StageState, statuses: Sequence[str], after: int, limit: int) -> list[Unfinished]:
        return [frame for frame in self.unfinished_frames if frame.frame_id > after][:limit]


def envelope(data: Any = None, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the store says of a single stage's row."""
    values = dict.fromkeys(("data", "result", "response"), data)
    parts: dict[str, Any] = {"http": {}, "pg": {}, "py": {}, "meta": {}}
    return {"status": "error" if error else "ok", **values, "error": dict(error or {}), **parts, "task_results": None}


class Told:
    """An execution of a workflow. Each method tells one thing and returns what was decided; it goes through JSON."""

    def __init__(self, workflow: Sequence[Mapping[str, Any]] | str, *, start: bool = True, **root: Any) -> None:
        self.plan = compiled(workflow, **root)
        self.state = ExecutionState(1, workload=self.plan.workload)
        self.facts = KnownFacts()
        self.new_id = itertools.count(100).__next__
        self.decisions: list[Decision] = []
        self.args: dict[int, dict[str, Any] | None] = {}
        if start:
            self.tell("start")

    def tell(self, type_: Any, **data: Any) -> Decision:
        return self.tell_all(Signal(type_, data))

    def tell_all(self, *signals: Signal) -> Decision:
        document, ctx = json.loads(json.dumps(self.state.document())), json.loads(json.dumps(self.state.ctx))
        state = ExecutionState(1, self.state.status, self.plan.workload, ctx, self.state.error)
        state.restore(document)
        again = copy.deepcopy(state)
        turn = Turn(signals, datetime(2026, 1, 1, tzinfo=UTC), self.new_id)
        decision = turn.decide(self.plan, state, self.facts)
        record = json.loads(json.dumps(turn.record(state)))
        if state.turns > again.turns:
            assert replay(self.plan, again, record, self.facts) == decision
        assert again == state
        for opening in decision.openings:
            self.args[opening.stage_id] = None if opening.args is None else dict(opening.args)
        for closing in decision.closings:
            if closing.state is not None:
                at_its_end = StageState.of(json.loads(json.dumps(closing.state)))
                self.facts.ended[closing.stage_id] = Closed(at_its_end, self.args[closing.stage_id])
            if closing.status != "CANCELLED":
                self.facts.results[closing.step] = closing.result
        self.state = state
        self.decisions.append(decision)
        return decision

    # -- what workers tell -------------------------------------------------------------------------------------------

    def stage(self, step: str) -> StageState:
        """The open stage of a step."""
        (found,) = [stage for stage in self.state.stages.values() if stage.step == step]
        return found

    def row(self, step: str, data: Any = None, *, error: Mapping[str, Any] | None = None) -> Decision:
        """The row of a plain step has ended."""
        stage = self.stage(step)
        self.facts.singles[stage.stage_id] = envelope(data, error)
        return self.frame(step, failed=int(error is not None), ok=int(error is None))

    def frame(
        self, step: str, *, ok: int = 1, failed: int = 0, slots: int = 1, frame: int = 1, **more: Any
    ) -> Decision:
        """A frame of a loop has ended."""
        stage = self.stage(step).stage_id
        return self.tell("frame.done", stage=stage, frame=frame, slots=slots, ok=ok, failed=failed, **more)

    def filled(self, step: str, *, budget: int = 1, frames: int = 1, slots: int = 1, dry: bool = False) -> Decision:
        data = {"stage": self.stage(step).stage_id, "claim": 0, "budget": budget}
        return self.tell("claim.filled", **data, frames=frames, slots=slots, dry=dry)

    def empty(self, step: str, *, sole: bool, budget: int = 1) -> Decision:
        return self.tell("claim.empty", stage=self.stage(step).stage_id, claim=0, budget=budget, sole=sole)

    def claim_failed(self, step: str, message: str = "syntax error", budget: int = 1) -> Decision:
        error = {"kind": "sql", "message": message}
        return self.tell("claim.failed", stage=self.stage(step).stage_id, claim=0, budget=budget, error=error)

    # -- what came of it ---------------------------------------------------------------------------------------------

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    @property
    def open(self) -> list[str]:
        """The steps that run."""
        return [stage.step for stage in self.state.stages.values()]

    @property
    def visits(self) -> list[str]:
        """Every step that was entered, in order."""
        return [opening.step for decision in self.decisions for opening in decision.openings]

    @property
    def terminal(self) -> list[str]:
        """Terminal events so far, as ``step:event``."""
        events = [event for decision in self.decisions for event in decision.events]
        return [f"{event.node}:{event.type}" for event in events if event.type in TERMINAL]

    def result(self, step: str) -> Any:
        return self.facts.results[step]


def noop(step: str, to: Any = None, **more: Any) -> dict[str, Any]:
    """A plain step; ``to``: names, or whole arcs."""
    return {"step": step, "tool": {"kind": "noop"}, **_next(to), **more}


def router(step: str, to: Any = None, **more: Any) -> dict[str, Any]:
    return {"step": step, **_next(to), **more}


def cursor(step: str, to: Any = None, *, flight: int | None = None, frames: bool = True, **more: Any) -> dict[str, Any]:
    """A cursor loop; ``flight``: its ``max_in_flight``; ``frames``: whether it says anything about frames."""
    spec: dict[str, Any] = {"frame": {"max_rows": 5, "row_concurrency": 2}} if frames else {}
    if flight is not None:
        spec["max_in_flight"] = flight
    loop = {"cursor": {"kind": "queue", "claim": "take"}, "iterator": "row", "spec": spec}
    return {"step": step, "tool": {"kind": "noop"}, "loop": loop, **_next(to), **more}


def collection(step: str, items: Any, to: Any = None, *, pace: Any = None, **more: Any) -> dict[str, Any]:
    """A loop over a collection; ``pace``: its ``loop.spec``."""
    loop = {"in": items, "iterator": "item", "spec": pace or {}}
    return {"step": step, "tool": {"kind": "noop"}, "loop": loop, **_next(to), **more}


def _next(to: Any) -> dict[str, Any]:
    if to is None:
        return {"next": {"arcs": []}}
    if isinstance(to, dict):
        return {"next": to}
    arcs = [{"step": arc} if isinstance(arc, str) else arc for arc in ([to] if isinstance(to, str) else to)]
    return {"next": {"spec": {"mode": "inclusive" if len(arcs) > 1 else "exclusive"}, "arcs": arcs}}
