"""The engine's one function: what follows from these signals?

It changes ``state`` in place (the caller loaded it for this purpose and writes it back with the decision), and is
deterministic: the ids that it draws and the time come from the caller. The same function runs in production, in tests,
in the simulator, and in ``replay``, which rebuilds an execution from what was written of its turns.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from noetl_celery.engine.aggregate import finished, fold
from noetl_celery.engine.assign import assign, merge_paths, storable
from noetl_celery.engine.decision import Closing, Decision, Event, Opening, Reopening, Timer
from noetl_celery.engine.facts import Closed, Facts
from noetl_celery.engine.loops import due_again, due_claims, due_slice, loop_settings, seconds
from noetl_celery.engine.routing import matching_arcs, released, shared_lineage
from noetl_celery.engine.shapes import (
    empty_collection,
    loop_meta,
    node_type,
    stage_envelope,
    template_error,
    type_name,
)
from noetl_celery.engine.state import FINAL, ExecutionState, Signal, StageState, Waiting
from noetl_celery.errors import TemplateError
from noetl_celery.playbook.plan import Arc, Plan, StepPlan
from noetl_celery.template import LazySequence, reference, scope, time_is

#: steps entered by one call: so many without any work between them only in a circle of routers that has no end
OPENINGS_PER_TURN = 1_000
FAILURES_SHOWN = 20


def decide(
    plan: Plan, state: ExecutionState, signals: Sequence[Signal], facts: Facts, new_id: Callable[[], int], now: datetime
) -> Decision:
    """Takes each signal in order, then lets everything settle: stages end, tokens move on, claims are issued.

    Signals about stages that are no longer open are ignored, so a stale note does no harm. An execution that has
    ended changes only if it is told to run failed work again. ``now`` is what templates see as the time.
    """
    turn = _Turn(plan, state, facts, new_id)
    with time_is(now):
        for signal in signals:
            if state.status not in FINAL or signal.type == "retry":
                turn.take(signal)
        if state.status not in FINAL:
            turn.settle()
    return turn.decision


class _Turn:
    def __init__(self, plan: Plan, state: ExecutionState, facts: Facts, new_id: Callable[[], int]) -> None:
        self.plan, self.state, self.facts, self.new_id = plan, state, facts, new_id
        self.decision = Decision()
        self.fresh: dict[str, Any] = {}
        self.fresh_tasks: dict[str, Mapping[str, Any]] = {}

    # -- signals -------------------------------------------------------------------------------------------------

    def take(self, signal: Signal) -> None:
        state = self.state
        match signal.type:
            case "start":
                if state.status == "PENDING":
                    state.status = "PAUSED" if state.paused else "RUNNING"
                    self.event("playbook.started", "RUNNING", context={"workload": state.workload})
                    state.waiting.append(Waiting(self.plan.entry, ()))
            case "cancel" if not state.cancelling:
                state.cancelling, state.status = True, "CANCELLING"
                if reason := signal.data.get("reason"):
                    state.error = state.error or {"kind": "cancelled", "message": reason, "step": None, "task": None}
                state.waiting.clear()
                for stage in state.stages.values():
                    self.stop(stage, children=True)
            case "pause":
                state.paused, state.status = True, "PAUSED" if state.status == "RUNNING" else state.status
                self.decision.recalls += [stage.stage_id for stage in state.stages.values() if stage.tickets]
            case "resume":
                state.paused, state.status = False, "RUNNING" if state.status == "PAUSED" else state.status
            case "retry":
                self.retry(signal.data.get("step"))
            case _:
                of = state.stages.get(int(signal.data.get("stage", 0)))
                if of is not None:
                    self.take_stage_signal(of, signal)

    def take_stage_signal(self, stage: StageState, signal: Signal) -> None:
        data = signal.data
        if signal.type in ("claim.filled", "claim.empty", "claim.failed", "claim.recalled"):
            stage.tickets -= 1
            stage.claims -= data["budget"]
            stage.sole = False
        match signal.type:
            case "claim.filled":
                stage.open_frames += data["frames"]
                stage.frames += data["frames"]
                stage.slots += data["slots"]
                # A re-claim that fell due meanwhile still wants its claim.
                stage.dry, stage.probe = bool(data.get("dry")), stage.reclaim
                if stage.stopping:
                    self.decision.stops.append(stage.stage_id)
            case "claim.empty":
                stage.drained |= bool(data["sole"])
                stage.dry = True
            case "claim.failed":
                self.stop(stage, error=data["error"])
            case "claim.recalled":
                stage.reclaim |= bool(data["reclaim"])
            case "frame.done":
                self.frame_done(stage, data)
            case "stage.timeout":
                error = {"kind": "timeout", "message": "the step ran into its timeout"}
                self.stop(stage, error=error, children=True)
            case "stage.reclaim":
                self.reclaim_due(stage)

    def frame_done(self, stage: StageState, data: Mapping[str, Any]) -> None:
        stage.open_frames -= 1
        stage.slots -= data["slots"]
        stage.ok += data["ok"]
        stage.failed += data["failed"]
        stage.retries += data.get("retries", 0)
        stage.probe = True
        if data.get("ctx"):
            for writes in self.facts.ctx_writes(stage, int(data["frame"])):
                merge_paths(self.state.ctx, writes)
            self.decision.ctx_changed = True
        step = self.plan.steps[stage.step]
        if step.loop is not None and step.loop.aggregate:
            fold(stage.aggregate, step.loop.aggregate, self.facts.aggregates(stage, int(data["frame"])))
        if data["failed"] and step.failure_mode == "fail_fast":
            self.stop(stage)

    def reclaim_due(self, stage: StageState) -> None:
        """Stale rows may have come free by now: one claim may ask, and re-claims first."""
        if stage.stopping or stage.drained:
            return
        stage.reclaim = stage.probe = True
        self.reclaim_later(stage)

    def reclaim_later(self, stage: StageState) -> None:
        if stage.settings.reclaim_after is not None:
            self.decision.timers.append(Timer("stage.reclaim", stage.stage_id, stage.settings.reclaim_after))

    def stop(self, stage: StageState, error: Mapping[str, Any] | None = None, *, children: bool = False) -> None:
        """No new row starts; ``children``: those that its rows wait for are told to end, too."""
        if error is not None and stage.error is None:
            stage.error = dict(error)
        if children:
            self.decision.cancels.append(stage.stage_id)
        stage.again = None
        if not stage.stopping:
            stage.stopping = True
            self.decision.recalls.append(stage.stage_id)
            self.decision.stops.append(stage.stage_id)

    # -- running failed work again -------------------------------------------------------------------------------

    def retry(self, step: str | None) -> None:
        """Opens again what failed: without ``step`` the stages that made a FAILED execution fail, with their rows that
        have no ok outcome; else the last visit of that step, with its failed rows. What is not so is left alone."""
        state = self.state
        if step is None:
            closed = [self.facts.closed(stage_id) for stage_id in state.failed] if state.status == "FAILED" else None
        else:
            running = state.cancelling or any(stage.step == step for stage in state.stages.values())
            closed = None if running else [self.facts.last(step)]
        if closed is None or None in closed:
            return
        again = [stage for stage in closed if stage is not None]
        state.failed = [] if step is None else [one for one in state.failed if one != again[0].state.stage_id]
        if not state.failed:
            state.error = None
        if state.status in FINAL:
            state.status = "PAUSED" if state.paused else "RUNNING"
        self.event("playbook.retried", state.status, context={"step": step})
        for stage in again:
            self.reopen(stage, ("FAILED",) if step else ("FAILED", "SKIPPED"))

    def reopen(self, closed: Closed, statuses: tuple[str, ...]) -> None:
        stage, step = closed.state, self.plan.steps[closed.state.step]
        if stage.kind != "cursor" and not stage.frames:
            # It never came to its work: the step is entered anew.
            self.state.waiting.append(Waiting(stage.step, stage.lineage, stage.previous, closed.args))
            return
        stage.stopping = stage.dry = stage.probe = stage.sole = False
        stage.error = None
        stage.again = {"statuses": list(statuses), "after": 0}
        self.state.stages[stage.stage_id] = stage
        self.decision.reopenings.append(Reopening(stage.stage_id, stage.step, statuses))
        self.event("step.retried", "RUNNING", stage, context={"statuses": list(statuses)})
        names = self.names(previous=stage.previous, args=closed.args)
        self.start_timers(stage, seconds(step.timeout, names, "the step's timeout"))

    # -- settling ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        if not self.state.paused:
            for stage in self.state.stages.values():
                due = due_again(stage, self.facts)
                self.decision.reopenings += [due] if due else []
        while self.close_finished() or self.open_released():
            pass
        if not self.state.paused:
            for stage in self.state.stages.values():
                self.decision.claims += due_claims(stage, self.new_id)
                cut = due_slice(stage)
                self.decision.slices += [cut] if cut else []
        self.end()

    def close_finished(self) -> bool:
        done = [stage for stage in self.state.stages.values() if _finished(stage)]
        for stage in done:
            self.close(stage)
        return bool(done)

    def open_released(self) -> bool:
        state = self.state
        if state.cancelling:
            state.waiting.clear()
        # After a failure tokens stay where they are: they go on when the execution is run again.
        group = None if state.paused or state.error is not None else released(self.plan, state)
        if group is None:
            return False
        if len(self.decision.openings) >= OPENINGS_PER_TURN:
            message = f"{OPENINGS_PER_TURN} steps led to each other without any work; it seems to have no end"
            state.error = {"kind": "endless", "message": message, "step": group[0].step, "task": None}
            return False
        lineage = shared_lineage(state, group)
        state.waiting = [token for token in state.waiting if not any(token is member for member in group)]
        args: dict[str, Any] = {}
        for token in group:
            args.update(token.args or {})
        self.open(self.plan.steps[group[0].step], lineage, group[-1].previous, args)
        return True

    def end(self) -> None:
        state = self.state
        if state.stages or state.status == "PENDING" or (state.waiting and state.error is None):
            return
        if state.cancelling:
            state.status = "CANCELLED"
            self.event("playbook.cancelled", "CANCELLED")
        elif state.error is not None:
            state.status = "FAILED"
            self.event("playbook.failed", "FAILED", result={"error": state.error})
        else:
            state.status = "COMPLETED"
            self.event("playbook.completed", "COMPLETED")

    # -- stages --------------------------------------------------------------------------------------------------

    def open(self, step: StepPlan, lineage: tuple[int, ...], previous: str | None, args: dict[str, Any]) -> None:
        state = self.state
        names = self.names(previous=previous, args=args)
        kind: Literal["single", "collection", "cursor"] = "single"
        if step.loop is not None:
            kind = "cursor" if step.loop.cursor is not None else "collection"
        stage = StageState(self.new_id(), step.name, kind, lineage, previous)
        items: Sequence[Any] | None = None
        timeout = None
        try:
            if not self.admitted(step, names):
                self.event("step.skipped", "SKIPPED", stage, result={"reason": "admission"})
                return
            if step.loop is not None:
                stage.settings = loop_settings(step.loop, names)
            items = self.items(step, names)
            timeout = seconds(step.timeout, names, "the step's timeout")
        except TemplateError as error:
            stage.error, stage.stopping, items = template_error(error), True, []
        if isinstance(items, LazySequence):
            stage.source, stage.total = dict(reference(items) or {}), len(items)
        elif kind != "cursor" and items:
            stage.open_frames = stage.frames = stage.slots = 1
        stage.reclaim = step.loop is not None and step.loop.cursor is not None and step.loop.cursor.reclaim is not None
        self.start_timers(stage, timeout)
        visit = state.visits[step.name] = state.visits.get(step.name, 0) + 1
        state.stages[stage.stage_id] = stage
        self.decision.openings.append(
            Opening(
                stage.stage_id,
                step.name,
                visit,
                kind,
                stage.settings,
                previous,
                args or None,
                None if isinstance(items, LazySequence) else items,
                len(items) if kind == "collection" and items is not None else None,
            )
        )
        self.event("step.enter", "RUNNING", stage)
        if kind == "collection" and stage.error is None:
            self.iterator_started(stage, step, items or ())

    def start_timers(self, stage: StageState, timeout: float | None) -> None:
        if timeout is not None:
            self.decision.timers.append(Timer("stage.timeout", stage.stage_id, timeout))
        self.reclaim_later(stage)

    def iterator_started(self, stage: StageState, step: StepPlan, items: Sequence[Any]) -> None:
        iterator = {**loop_meta(step), "total_count": len(items), "collection_size": len(items)}
        tools = [{"name": task.name, "tool": task.kind} for task in step.tasks]
        context = {**iterator, "nested_task": tools[0] if len(tools) == 1 else tools}
        self.event("iterator_started", "RUNNING", stage, context=context, meta={"iterator": iterator})

    def admitted(self, step: StepPlan, names: Mapping[str, Any]) -> bool:
        """The first admission rule that holds decides; none holds: admitted."""
        for rule in step.admit:
            if rule.when is None or rule.when.test(names):
                return rule.allow
        return True

    def items(self, step: StepPlan, names: Mapping[str, Any]) -> Sequence[Any] | None:
        if step.loop is None:
            return [{}] if step.tasks else []
        if step.loop.items is None:
            return None
        items = step.loop.items.lazy(names)
        if isinstance(items, LazySequence):
            return items
        if not isinstance(items, list | tuple):
            raise TemplateError(f"loop.in must be a list, not {type_name(items)}")
        return list(storable(items, "`loop.in`"))

    def close(self, stage: StageState) -> None:
        step = self.plan.steps[stage.step]
        del self.state.stages[stage.stage_id]
        at_its_end = stage.document()
        if self.state.cancelling:
            self.decision.closings.append(_closing(stage, "CANCELLED", error=stage.error))
            self.event("step.exit", "CANCELLED", stage)
            return
        envelope = self.envelope(stage, step)
        failed = envelope["status"] == "error"
        self.fresh[step.name] = envelope["data"]
        if envelope.get("task_results"):
            self.fresh_tasks[step.name] = envelope["task_results"]
        error = envelope["error"]
        try:
            handled = self.route(stage, step, envelope, failed)
        except TemplateError as problem:
            # After a failure its own error is the news, not that `set` could not use what is missing because of it.
            error = error if failed else template_error(problem)
            failed, handled = True, False
        if failed and not handled:
            self.state.failed.append(stage.stage_id)
            said = {"kind": error.get("kind"), "message": error.get("message")}
            self.state.error = self.state.error or {**said, "step": step.name, "task": error.get("task")}
        self.decision.closings.append(
            _closing(
                stage,
                "FAILED" if failed else "COMPLETED",
                result=envelope["data"],
                task_results=envelope.get("task_results"),
                error=error if failed else None,
                state=at_its_end,
            )
        )
        self.terminal_event(stage, step, failed, error, envelope["data"])

    def terminal_event(
        self, stage: StageState, step: StepPlan, failed: bool, error: Mapping[str, Any], data: Any
    ) -> None:
        status = "FAILED" if failed else "COMPLETED"
        name = "step.failed" if failed else "loop.done" if step.loop else "step.done"
        counts = {"ok": stage.ok, "failed": stage.failed, "frames": stage.frames} if step.loop else None
        if stage.kind == "collection":
            result = {"total_iterations": stage.ok + stage.failed, "successful": stage.ok, "failed": stage.failed}
            meta = {"iterator": {**loop_meta(step), **result}}
            self.event("iterator_completed", status, stage, result=result, meta=meta, parent="iterator_started")
        self.event(name, status, stage, result={"error": error} if failed else counts, parent="step.enter")
        summary = {"has_data": data is not None, "status": status.lower(), "data_type": type_name(data)}
        self.event("step.exit", status, stage, context={"_step_results": {step.name: summary}}, parent="step.enter")

    def envelope(self, stage: StageState, step: StepPlan) -> Mapping[str, Any]:
        """What ``output`` means in the step's ``set`` and arcs."""
        data: Any = None
        if step.loop is None and stage.error is None and step.tasks:
            return self.facts.single(stage)
        error = stage.error
        if stage.kind == "cursor":
            data = {"processed": stage.ok + stage.failed, "ok": stage.ok, "failed": stage.failed}
            data |= {"frames": stage.frames, "failures": self.failures(stage)}
        elif stage.kind == "collection":
            data = dict(self.facts.collection(stage)) if stage.frames else empty_collection()
        if step.loop is not None and step.loop.aggregate:
            data["aggregate"] = finished(stage.aggregate, step.loop.aggregate)
        if error is None and stage.failed and step.failure_mode == "fail_fast":
            first: Mapping[str, Any] = next(iter(data.get("failures") or self.failures(stage)), {})
            error = first.get("error") or {"kind": "rows_failed", "message": f"{stage.failed} rows failed"}
        return stage_envelope(data, error)

    def failures(self, stage: StageState) -> list[Mapping[str, Any]]:
        return list(self.facts.failures(stage, FAILURES_SHOWN)) if stage.failed else []

    def route(self, stage: StageState, step: StepPlan, envelope: Mapping[str, Any], failed: bool) -> bool:
        """Applies the step's ``set``, then sends tokens along the arcs that match. True if any did."""
        event = "step.failed" if failed else "loop.done" if step.loop else "step.done"
        extra = {"__cursor_drained": stage.drained, "error": envelope["error"]}
        names = self.names(previous=step.name, output=envelope, event={"name": event}, extra=extra)
        self.assign(step.set, names)
        arcs = matching_arcs(step.next, names, failed=failed)
        if not arcs and not failed and step.next.arcs and step.next.on_no_match == "fail":
            raise TemplateError("no arc matched after this step, and `on_no_match` is `fail`")
        lineage = (*stage.lineage, stage.stage_id) if len(arcs) > 1 else stage.lineage
        for arc in arcs:
            self.assign(arc.set, names)
            args = None if arc.args is None else _arguments(arc, names)
            if arc.step in self.plan.steps:
                back = (step.name, arc.step) in self.plan.back_edges
                self.state.waiting.append(Waiting(arc.step, lineage, step.name, args, back))
        if arcs:
            self.event("next.selected", None, stage, result={"steps": [arc.step for arc in arcs]})
        return bool(arcs)

    # -- helpers -------------------------------------------------------------------------------------------------

    def assign(self, pairs: Any, names: Mapping[str, Any]) -> None:
        for target, value in pairs:
            assign(self.state.ctx, target.removeprefix("ctx."), storable(value.render(names), f"`{target}`"))
            self.decision.ctx_changed = True

    def names(
        self,
        previous: str | None,
        args: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
        event: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        results = ChainMap(self.fresh, self.facts.results)  # type: ignore[arg-type]
        more = dict(extra or {})
        last: dict[str, Any] = {}
        if output is not None:
            more |= {"output": output, "outcome": output}
            last["response"] = output["data"]
        return scope(
            execution_id=self.state.execution_id,
            workload=self.state.workload,
            ctx=self.state.ctx,
            results=results,
            previous=(lambda: results[str(previous)]) if previous in self.plan.steps else None,
            task_results=ChainMap(self.fresh_tasks, self.facts.task_results),  # type: ignore[arg-type]
            spec=self.plan.spec,
            args=args,
            iter=None if self.state.parent_iter is None else {"parent": self.state.parent_iter},
            event=event,
            extra=more,
            last=last,
        )

    def event(self, type_: str, status: str | None, stage: StageState | None = None, **parts: Any) -> None:
        if stage is None:
            told = Event(type_, status, node_type="playbook", **parts)
        else:
            kind = node_type(self.plan.steps[stage.step])
            told = Event(type_, status, stage.step, stage.stage_id, node_type=kind, **parts)
        self.decision.events.append(told)


def _arguments(arc: Arc, names: Mapping[str, Any]) -> dict[str, Any]:
    assert arc.args is not None
    args = storable(arc.args.render(names), "`args`")
    if not isinstance(args, dict):
        raise TemplateError(f"`args` of the arc to '{arc.step}' must be a mapping, not {type(args).__name__}")
    return args


def _closing(stage: StageState, status: Literal["COMPLETED", "FAILED", "CANCELLED"], **parts: Any) -> Closing:
    return Closing(
        stage.stage_id,
        stage.step,
        status,
        ok=stage.ok,
        failed=stage.failed,
        frames=stage.frames,
        retries=stage.retries,
        **parts,
    )


def _finished(stage: StageState) -> bool:
    none_left = stage.drained if stage.kind == "cursor" else stage.cut >= stage.total
    return stage.idle and stage.again is None and (none_left or stage.stopping)
