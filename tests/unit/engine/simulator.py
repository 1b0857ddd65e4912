"""A world around the pure engine, in memory: store, broker, workers that die, and a clock.

Handlers are generators that yield between transactions: there another handler goes on, or the worker dies. A dead
worker's generators are closed, and nothing that they would still have done happens. Messages may be lost, doubled,
reordered; leases may end while their holder is merely slow. The checks of ``engine_checks`` watch all of it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from engine_checks import Checks
from engine_children import Children
from engine_lane import Lane
from engine_sources import Source, SourceSpec, call
from engine_tables import Claim, Frame, Note, Row, RunOf, Stage, TableFacts, Tables

from noetl_celery.engine import Decision, ExecutionState, Pipeline, Position, Run, decide
from noetl_celery.engine.pipeline import Call
from noetl_celery.engine.replay import Turn, replay
from noetl_celery.engine.state import FINAL
from noetl_celery.errors import LeaseLost
from noetl_celery.playbook import Plan
from noetl_celery.template import scope

Message = tuple[Any, ...]
Handler = Generator[None, None, None]
ORCHESTRATE: Message = ("orchestrate",)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKERS = 3


@dataclass(frozen=True)
class Chaos:
    """How unkind the world is. Shares of messages; ``crashes`` and ``slow``: how many workers die, leases end early."""

    lost: float = 0.0
    doubled: float = 0.0
    crashes: int = 0
    slow: int = 0
    #: share of steps at which a note comes that is no longer true
    stale: float = 0.0
    #: share of claims that fail: mostly for a passing reason, in the end for good
    claims_fail: float = 0.0
    #: the claims' source is another database: claims take three commits
    elsewhere: bool = False
    cancel_at: int | None = None
    pause_at: int | None = None


@dataclass(eq=False)
class Actor:
    """A handler at work in a worker."""

    handler: Handler
    worker: int
    message: Message
    runs: set[int] = field(default_factory=set)


class World:
    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        chaos: Chaos | None = None,
        sources: dict[str, SourceSpec] | None = None,
    ) -> None:
        self.plan, self.chaos, self.source_specs = plan, chaos or Chaos(), sources or {}
        self.random = random.Random(seed)
        self.seed = seed
        self.tables = Tables()
        self.messages: list[Message] = []
        self.actors: list[Actor] = []
        self.sources: dict[int, Source] = {}
        self.children = Children(self.tables)
        self.crashes, self.slow = self.chaos.crashes, self.chaos.slow
        self.locked = False
        self.execution_id = self.tables.new_id()
        self.row = json.dumps({"status": "PENDING", "ctx": {}, "error": None, "state": {}})
        self.status = "PENDING"
        self.checks = Checks(self)
        self.steps = 0
        self.tables.tell("start")
        self.messages.append(ORCHESTRATE)

    # -- time --------------------------------------------------------------------------------------------------------

    def run(self, most: int = 20_000) -> World:
        """Lets everything happen until nothing can any more; fails if that takes more than ``most`` steps."""
        while not self.over:
            self.steps += 1
            assert self.steps < most, f"the execution does not end: {self.state()}"
            self.interfere()
            what = self.random.random()
            if self.messages and what < 0.35:
                self.deliver()
            elif self.actors and what < 0.9:
                self.step(self.random.choice(self.actors))
            else:
                self.tables.now += self.random.randint(1, 5)
                self.sweep()
        self.checks.at_end()
        return self

    @property
    def over(self) -> bool:
        return not (self.actors or self.messages or self.tables.runs) and self.status in FINAL

    def interfere(self) -> None:
        if self.steps == self.chaos.cancel_at:
            self.tables.tell("cancel", {"reason": "test"})
        if self.steps == self.chaos.pause_at:
            self.tables.tell("pause")
            self.tables.tell("resume", delay=20)
        if self.children.alive and self.random.random() < 0.1:
            child = self.random.choice(self.children.alive)
            self.publish(*(self.children.wake if self.random.random() < 0.1 else self.children.end)(child))
        if self.random.random() < self.chaos.stale:
            self.tell_of_the_past()
        if self.actors and self.random.random() < 0.02:
            if self.crashes:
                self.crashes -= 1
                self.crash(self.random.choice(self.actors).worker)
            elif self.slow:
                self.slow -= 1
                self.expire(self.random.choice(list(self.tables.runs) or [0]))

    def tell_of_the_past(self) -> None:
        """A note about a stage that is over, or a second beginning."""
        closed = [stage_id for stage_id, stage in self.tables.stages.items() if stage.status != "OPEN"]
        numbers = {"budget": 1, "frames": 1, "slots": 1, "ok": 1, "failed": 1, "claim": 0, "frame": 0, "error": {}}
        types = ("claim.filled", "claim.empty", "claim.failed", "frame.done", "stage.timeout", "stage.reclaim")
        if closed:
            stage_id = self.random.choice(closed)
            self.tables.tell(self.random.choice(types), {"stage": stage_id, "sole": True, **numbers})
        self.tables.tell("start")

    def deliver(self) -> None:
        message = self.messages.pop(self.random.randrange(len(self.messages)))
        worker = self.random.randrange(WORKERS)
        actor = Actor(None, worker, message)  # type: ignore[arg-type]
        match message:
            case ("orchestrate",):
                actor.handler = self.orchestrate()
            case ("claim", claim_id):
                handler = self.claim_elsewhere if self.chaos.elsewhere else self.claim_here
                actor.handler = handler(actor, self.tables.claims[claim_id])
            case ("lane", frame_id, lane):
                frame = self.tables.frames.get(frame_id)
                if frame is None:
                    return
                actor.handler = self.lane(actor, frame, lane)
        self.actors.append(actor)

    def step(self, actor: Actor) -> None:
        try:
            next(actor.handler)
        except StopIteration:
            self.actors.remove(actor)
        except LeaseLost:
            self.actors.remove(actor)
            for run in actor.runs:
                of = self.tables.runs.get(run)
                if of is not None and of.frame_id is not None and of.lane is not None:
                    self.tables.give_up_lane(self.tables.frames[of.frame_id], run, of.lane, 0)

    def crash(self, worker: int) -> None:
        """A process dies with everything in it. Its messages come back, or not."""
        for actor in [actor for actor in self.actors if actor.worker == worker]:
            actor.handler.close()
            self.actors.remove(actor)
            self.checks.forget(actor.runs)
            if self.random.random() < 0.5:
                self.messages.append(actor.message)

    def publish(self, *messages: Message) -> None:
        for message in messages:
            if self.random.random() >= self.chaos.lost:
                self.messages.append(message)
            if self.random.random() < self.chaos.doubled:
                self.messages.append(message)

    # -- the execution -----------------------------------------------------------------------------------------------

    def state(self) -> ExecutionState:
        row = json.loads(self.row)
        state = ExecutionState(self.execution_id, row["status"], self.plan.workload, row["ctx"], row["error"])
        state.restore(row["state"])
        return state

    def orchestrate(self) -> Handler:
        while self.tables.due_notes(1) and not self.locked:
            self.locked = True
            try:
                inbox = self.tables.due_notes(self.random.choice((1, 2, 500)))
                yield
                messages = self.turn(inbox)
            finally:
                self.locked = False
            yield
            self.publish(*messages)

    def turn(self, inbox: Sequence[Note]) -> list[Message]:
        """Decides and writes, in one transaction."""
        signals = [note.signal for note in inbox]
        if self.random.random() < 0.1:  # once in a while the transaction fails and everything is decided again
            decide(self.plan, self.state(), signals, TableFacts(self.tables), itertools.count(-1, -1).__next__, NOW)
        state, again = self.state(), self.state()
        self.checks.before_turn(state, signals)
        facts = TableFacts(self.tables)
        turn = Turn(signals, NOW, self.tables.new_id)
        decision = turn.decide(self.plan, state, facts)
        assert (
            state.turns == again.turns
            or replay(self.plan, again, json.loads(json.dumps(turn.record(state))), facts) == decision
        )
        messages = self.apply(decision)
        for note in inbox:
            del self.tables.notes[note.note_id]
        ctx = state.ctx if decision.ctx_changed else json.loads(self.row)["ctx"]
        document, self.status = state.document(), state.status
        self.row = json.dumps({"status": state.status, "ctx": ctx, "error": state.error, "state": document})
        self.checks.after_turn(self.state(), decision)
        return messages

    def apply(self, decision: Decision) -> list[Message]:
        tables, messages = self.tables, list[Message]()
        for opening in decision.openings:
            tables.stages[opening.stage_id] = Stage(opening)
            if opening.items:
                step = self.plan.steps[opening.step]
                fail_fast = step.loop is not None and step.failure_mode == "fail_fast"
                payloads = json.loads(json.dumps(list(opening.items)))
                frame = tables.create_frame(opening.stage_id, 0, payloads, opening.settings, fail_fast=fail_fast)
                messages += self.send_lanes(frame)
        for closing in decision.closings:
            self.checks.closes(closing, decision)
            tables.stages[closing.stage_id].status, tables.stages[closing.stage_id].closing = closing.status, closing
        for spec in decision.claims:
            tables.issue(spec)
            messages.append(("claim", spec.claim_id))
        for stage_id in decision.recalls:
            tables.recall(stage_id)
        for stage_id in decision.stops:
            tables.stop_stage(stage_id)
        for stage_id in decision.cancels:
            self.children.cancel_all(stage_id)
        for timer in decision.timers:
            tables.tell(timer.type, {"stage": timer.stage_id}, delay=int(timer.seconds))
        return messages

    def send_lanes(self, frame: Frame) -> list[Message]:
        self.tables.send_lanes(frame, range(frame.lanes))
        return [("lane", frame.frame_id, lane) for lane in range(frame.lanes)]

    # -- claims ------------------------------------------------------------------------------------------------------

    def source(self, stage_id: int) -> Source:
        if stage_id not in self.sources:
            step = self.tables.stages[stage_id].opening.step
            self.sources[stage_id] = Source(self.source_specs[step], f"{self.seed}:{step}")
        return self.sources[stage_id]

    def pick(self, claim: Claim, transaction: int) -> tuple[list[dict[str, Any]], bool]:
        """Runs the claim's statement: up to what it may return, sometimes less; and whether the source came up dry."""
        settings = self.tables.stages[claim.spec.stage_id].opening.settings
        if claim.spec.reclaim:
            self.source(claim.spec.stage_id).reclaim()
        limit = claim.spec.budget if settings.batch > 1 else settings.max_rows
        if settings.batch == 1 and self.random.random() < 0.3:
            limit = self.random.randint(1, limit)
        rows = self.source(claim.spec.stage_id).lock(transaction, limit)
        return rows, settings.batch > 1 and len(rows) < limit

    def make_frames(self, claim: Claim, rows: list[dict[str, Any]], status: str) -> list[Frame]:
        """One frame of the rows, or two of a claim whose rows are too large for one."""
        spec, stage = claim.spec, self.tables.stages[claim.spec.stage_id]
        settings, step = stage.opening.settings, self.plan.steps[stage.opening.step]
        cut = self.random.randint(1, len(rows)) if settings.batch == 1 else len(rows)
        made = []
        for part in filter(None, (rows[:cut], rows[cut:])):
            slots = 0 if made else len(rows) if settings.batch > 1 else 1
            concurrency = len(part) if settings.batch > 1 else settings.row_concurrency
            frame = self.tables.create_frame(
                spec.stage_id,
                spec.index,
                json.loads(json.dumps(part)),
                settings,
                claim_id=spec.claim_id,
                slots=slots,
                fail_fast=step.failure_mode == "fail_fast",
                row_concurrency=concurrency,
                status=status,
            )
            made.append(frame)
        return made

    def fill(self, claim: Claim, made: list[Frame], dry: bool, run: int | None) -> list[Message]:
        data = {"frames": len(made), "slots": sum(frame.slots for frame in made), "dry": dry}
        if made:
            self.tables.answer(claim, "FILLED", "claim.filled", data, run=run)
        else:
            self.tables.answer(claim, "EMPTY", "claim.empty", {"sole": claim.spec.sole}, run=run)
        return [message for frame in made for message in self.send_lanes(frame)] + [ORCHESTRATE]

    def claim_here(self, actor: Actor, claim: Claim) -> Handler:
        yield
        if claim.status != "OPEN" or self.failed_claim(claim, None):
            return
        transaction, source = self.tables.new_id(), self.source(claim.spec.stage_id)
        rows, dry = self.pick(claim, transaction)
        made = self.make_frames(claim, rows, "RUNNING") if rows else []
        source.commit(transaction)
        messages = self.fill(claim, made, dry, None)
        yield
        self.publish(*messages)

    def claim_elsewhere(self, actor: Actor, claim: Claim) -> Handler:
        tables, run = self.tables, self.tables.new_id()
        yield
        if claim.status != "OPEN":
            return
        claim.status, claim.taken_by = "TAKEN", run
        tables.runs[run] = RunOf(claim_id=claim.spec.claim_id)
        actor.runs.add(run)
        yield
        if self.failed_claim(claim, run):
            return
        source = self.source(claim.spec.stage_id)
        rows, dry = self.pick(claim, run)
        try:
            yield
            made: list[Frame] = []
            if rows:
                tables.hold(claim, run)
                tables.forget(claim)
                made = self.make_frames(claim, rows, "TENTATIVE")
            yield
            source.commit(run)
        finally:
            source.rollback(run)
        yield
        tables.hold(claim, run)
        for frame in made:
            frame.status = "RUNNING"
        messages = self.fill(claim, made, dry, run)
        del tables.runs[run]
        yield
        self.publish(*messages)

    def failed_claim(self, claim: Claim, run: int | None) -> bool:
        """Now and then a claim fails: mostly for a passing reason, once in a while for good."""
        if self.random.random() >= self.chaos.claims_fail:
            return False
        if run is not None:
            self.tables.hold(claim, run)
            del self.tables.runs[run]
        if claim.attempts < 3:
            claim.attempts, claim.status, claim.taken_by = claim.attempts + 1, "OPEN", None
            self.tables.outbox["claim", claim.spec.claim_id] = self.tables.now + 2
            return True
        self.tables.answer(claim, "FAILED", "claim.failed", {"error": {"kind": "sql", "message": "no"}}, run=run)
        return True

    # -- lanes -------------------------------------------------------------------------------------------------------

    def lane(self, actor: Actor, frame: Frame, number: int) -> Handler:
        yield
        yield from Lane(self, actor, frame, number).work()

    def call(self, frame: Frame, row: Row, step: Run | Call) -> Any:
        """What a task comes to, or the child that it calls."""
        stage = self.tables.stages[frame.stage_id].opening
        flaw = step.path if isinstance(step, Call) else step.config.get("flaw", "none")
        if stage.kind == "cursor":
            self.source(frame.stage_id).effect(row.payload)
        key = row.payload["id"] if stage.kind == "cursor" else row.index
        return call(flaw, step.input["attempt"], self.seed, stage.step, step.task.name, key)

    def pipeline(self, frame: Frame, row: Row) -> Pipeline:
        stage = self.tables.stages[frame.stage_id].opening
        step = self.plan.steps[stage.step]
        begin = {} if step.loop is None else {step.loop.iterator: row.payload, "index": row.index}
        position = Position(**json.loads(row.position)) if row.position else Position(iter=begin)
        ctx = json.loads(self.row)["ctx"]

        def names(at: Position, args: Any, extra: Any) -> Any:
            return scope(
                execution_id=1, workload=self.plan.workload, ctx=ctx, results={}, pipeline=at.results,
                names=at.names, iter=at.iter, iterator=step.loop.iterator if step.loop else None,
                args=args, extra=extra,
            )  # fmt: skip

        return Pipeline(step, position, names, random=self.random.random, jump_budget=20)

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """One sweep: wakes, returns what the dead held, settles claims, publishes what nobody took."""
        alive = {run for actor in self.actors for run in actor.runs}
        self.tables.wake()
        for run in [run for run in self.tables.runs if run not in alive]:
            self.expire(run)
        for claim in [claim for claim in self.tables.claims.values() if claim.status == "TAKEN"]:
            if claim.taken_by is not None and claim.taken_by not in self.tables.runs:
                self.actors.append(Actor(self.settle(claim, claim.taken_by), -1, ORCHESTRATE))
        for key, due in list(self.tables.outbox.items()):
            if due <= self.tables.now:
                self.tables.outbox[key] = due + 10
                self.publish(key)
        if self.tables.due_notes(1):
            self.publish(ORCHESTRATE)

    def expire(self, run: int) -> None:
        of = self.tables.runs.pop(run, None)
        self.checks.forget({run})
        if of is not None and of.frame_id is not None:
            self.tables.return_rows(run, of)

    def settle(self, claim: Claim, run: int) -> Handler:
        """A ticket whose run is gone: what its source's transaction came to decides."""
        source = self.source(claim.spec.stage_id)
        made = self.tables.tentative(claim)
        if run in source.locked:
            return
        committed = bool(made) and run in source.committed
        yield
        if claim.status != "TAKEN" or claim.taken_by != run:
            return
        if not committed:
            self.tables.forget(claim)
            claim.status, claim.taken_by = "OPEN", None
            self.tables.outbox["claim", claim.spec.claim_id] = self.tables.now
            return
        for frame in made:
            frame.status = "RUNNING"
        messages = self.fill(claim, made, False, run)
        yield
        self.publish(*messages)
