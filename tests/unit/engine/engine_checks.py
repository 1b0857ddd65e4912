"""What must hold in the simulated world, checked whenever something happens and once more at the end."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from engine_tables import ROW_FINAL, Ended, Frame, Row

from noetl_celery.engine import Closing, Decision, ExecutionState, Signal
from noetl_celery.engine.assign import merge_paths
from noetl_celery.engine.state import FINAL

if TYPE_CHECKING:
    from simulator import World

TERMINAL = frozenset({"step.done", "loop.done", "step.failed"})
ENDINGS = frozenset({"playbook.completed", "playbook.failed", "playbook.cancelled"})


class Checks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[Any] = []
        self.visits: list[str] = []
        #: run → rows that it works on, for runs that hold their lease
        self.air: dict[int, set[int]] = {}
        self.outcomes: Counter[tuple[int, int]] = Counter()
        #: frames of which no further row may start
        self.stopped: set[int] = set()
        self.row_ctx: dict[str, Any] = {}
        self.paused = self.cancelled = False

    # -- turns -------------------------------------------------------------------------------------------------------

    def before_turn(self, state: ExecutionState, signals: Sequence[Signal]) -> None:
        self.before = copy.deepcopy(state)
        for signal in signals:
            self.cancelled |= signal.type == "cancel"
            if signal.type in ("pause", "resume"):
                self.paused = signal.type == "pause"
            if signal.type == "frame.done" and signal.data["stage"] in state.stages:
                for row in self.world.tables.frames[signal.data["frame"]].rows:
                    merge_paths(self.row_ctx, row.ctx or {})

    def after_turn(self, state: ExecutionState, decision: Decision) -> None:
        if self.before.status in FINAL:
            assert decision == Decision(), "an execution that has ended is decided on again"
            assert state == self.before
        self.events += decision.events
        self.visits += [opening.step for opening in decision.openings]
        # A claim under way when its stage was stopped may still bring a frame; that one is stopped when it is told.
        tables = self.world.tables
        self.stopped |= {frame.frame_id for stage in decision.stops for frame in tables.frames_of(stage, "RUNNING")}
        if state.status in FINAL:
            assert not state.stages
            assert not state.waiting or state.status == "FAILED"
        if self.paused or self.cancelled or self.before.error is not None:
            assert not decision.openings
        if self.paused or self.cancelled:
            assert not decision.claims
        self.tokens(state)
        self.stopping(state)
        self.counters(state)
        self.bounds()

    def tokens(self, state: ExecutionState) -> None:
        """A token waits only for a reason: another of its fan-out can still reach its step, a pause, a failure."""
        if state.paused or state.error is not None:
            return
        for token in state.waiting:
            assert not token.back, f"a back edge to {token.step} is held"
            places = [(stage.step, stage.lineage) for stage in state.stages.values()]
            places += [(other.step, other.lineage) for other in state.waiting if other is not token]
            assert any(
                token.step in self.world.plan.forward[step] and set(lineage) & set(token.lineage)
                for step, lineage in places
            ), f"the token at {token.step} waits for nothing"
        assert state.stages or not state.waiting

    def stopping(self, state: ExecutionState) -> None:
        """A cancelled execution and a loop that failed fast start no row of any frame that they have been told of."""
        tables = self.world.tables
        for stage_id, stage in state.stages.items():
            fails_fast = self.world.plan.steps[stage.step].failure_mode == "fail_fast"
            assert stage.stopping or not (self.cancelled or (stage.failed and fails_fast) or stage.error)
            if not stage.stopping:
                continue
            # (A claim of another database that was under way may be given back after its stage was stopped.)
            assert self.world.chaos.elsewhere or not tables.claims_of(stage_id, "OPEN")
            told = [
                note.signal.data.get("stage") for note in tables.notes.values() if note.signal.type == "claim.filled"
            ]
            if stage_id not in told:
                assert all(frame.stopping for frame in tables.frames_of(stage_id, "RUNNING"))

    def counters(self, state: ExecutionState) -> None:
        """With an empty inbox the state says what the tables say."""
        tables = self.world.tables
        open_ = {stage_id for stage_id, stage in tables.stages.items() if stage.status == "OPEN"}
        assert open_ == state.stages.keys()
        if any(note.signal.type.startswith(("claim", "frame")) for note in tables.notes.values()):
            return
        for stage_id, stage in state.stages.items():
            frames, tickets = tables.frames_of(stage_id, "RUNNING"), tables.claims_of(stage_id, "OPEN", "TAKEN")
            assert stage.open_frames == len(frames)
            assert stage.slots == sum(frame.slots for frame in frames)
            assert stage.tickets == len(tickets)
            assert stage.claims == sum(ticket.spec.budget for ticket in tickets)

    def bounds(self) -> None:
        """Slots of open frames and of claims under way never exceed ``max_in_flight``."""
        tables = self.world.tables
        for stage_id, stage in tables.stages.items():
            if stage.opening.kind != "cursor" or stage.status != "OPEN":
                continue
            frames = tables.frames_of(stage_id, "RUNNING", "TENTATIVE")
            tickets = tables.claims_of(stage_id, "OPEN", "TAKEN")
            filled = {frame.claim_id for frame in frames}
            used = sum(frame.slots for frame in frames)
            used += sum(ticket.spec.budget for ticket in tickets if ticket.spec.claim_id not in filled)
            assert used <= stage.opening.settings.max_in_flight, f"{used} slots of stage {stage_id} in use"
            sole = [ticket.spec.claim_id for ticket in tickets if ticket.spec.sole]
            alone = len(tickets) == 1 and not ({frame.claim_id for frame in frames} - set(sole))
            assert not sole or alone, "a claim that may prove the source empty runs beside other work"

    def closes(self, closing: Closing, decision: Decision) -> None:
        """A stage ends once, with nothing of it under way; a drained source is empty."""
        tables = self.world.tables
        stage = tables.stages[closing.stage_id]
        assert stage.status == "OPEN"
        assert not tables.frames_of(closing.stage_id, "RUNNING", "TENTATIVE")
        assert not tables.claims_of(closing.stage_id, "OPEN", "TAKEN")
        terminal = [e.type for e in decision.events if e.stage_id == closing.stage_id and e.type in TERMINAL]
        if closing.status == "CANCELLED":
            assert not terminal
        elif closing.status == "FAILED":
            assert terminal == ["step.failed"]
        else:
            assert terminal == ["loop.done" if self.world.plan.steps[closing.step].loop else "step.done"]
            if stage.opening.kind == "cursor":
                loop = self.world.plan.steps[closing.step].loop
                reclaims = loop is not None and loop.cursor is not None and loop.cursor.reclaim is not None
                assert (self.world.source(closing.stage_id).reclaims > 0) == reclaims
                assert self.world.source(closing.stage_id).quiet, f"{closing.step} ended before its source was empty"
        self.counts(closing)

    def counts(self, closing: Closing) -> None:
        tables = self.world.tables
        frames = tables.frames_of(closing.stage_id)
        ok, failed = sum(f.count("OK") for f in frames), sum(f.count("FAILED") for f in frames)
        assert (closing.ok, closing.failed, closing.frames) == (ok, failed, len(frames))
        if tables.stages[closing.stage_id].opening.kind == "cursor" and closing.status == "COMPLETED":
            assert closing.result["processed"] == ok + failed
            assert len(closing.result["failures"]) == min(failed, 20)

    # -- rows --------------------------------------------------------------------------------------------------------

    def starts(self, frame: Frame, row: Row, run: int, ended_here: Sequence[int]) -> None:
        if run not in self.world.tables.runs:
            return  # it does not know yet that it has lost its lease; nothing that it does counts
        row.starts += 1
        woken = row.waits_for is not None
        assert woken or frame.frame_id not in self.stopped, "a row starts after its stage was stopped"
        if frame.ordered:
            before = [other.index for other in frame.rows[: row.index] if other.status not in ROW_FINAL]
            assert set(before) <= set(ended_here), "a row of a sequence starts before the one before it has ended"
        self.air.setdefault(run, set()).add(row.index)
        self.at_work(frame, run)

    def at_work(self, frame: Frame, run: int) -> None:
        """Rows at work, and rows parked because their target asked for it, never exceed ``row_concurrency``."""
        runs = self.world.tables.runs
        at_work = sum(
            len(rows) for run, rows in self.air.items() if run in runs and runs[run].frame_id == frame.frame_id
        )
        parked = sum(row.status == "PARKED" and row.lane is not None for row in frame.rows)
        assert at_work + parked <= frame.row_concurrency

    def leaves(self, frame: Frame, row: Row, run: int) -> None:
        self.air.get(run, set()).discard(row.index)

    def forget(self, runs: Iterable[int]) -> None:
        for run in runs:
            self.air.pop(run, None)

    def finished(self, frame: Frame, outcomes: Sequence[Ended]) -> None:
        for outcome in outcomes:
            self.outcomes[frame.frame_id, outcome.index] += 1
            assert self.outcomes[frame.frame_id, outcome.index] == 1, "a row has two outcomes"

    # -- the end -----------------------------------------------------------------------------------------------------

    def at_end(self) -> None:
        tables, state = self.world.tables, self.world.state()
        assert state.status in FINAL
        assert not tables.outbox, "something is still to be published"
        assert not tables.runs
        for frame in tables.frames.values():
            assert frame.status == "COMPLETED"
            assert all(row.status in ROW_FINAL for row in frame.rows)
        for claim in tables.claims.values():
            assert claim.status in {"FILLED", "EMPTY", "FAILED", "CANCELLED"}
        self.world.children.at_end()
        self.claimed_once()
        self.story(state)
        for name, value in self.row_ctx.items():
            assert state.ctx[name] == value, f"ctx.{name}"

    def claimed_once(self) -> None:
        """Every lease that a claim committed is exactly one row of one frame, and every row such a lease."""
        tables = self.world.tables
        for stage_id, source in self.world.sources.items():
            frames = tables.frames_of(stage_id)
            rows = Counter((row.payload["id"], row.payload["lease"]) for frame in frames for row in frame.rows)
            leases = {(item, lease) for item, most in source.leases.items() for lease in range(1, most + 1)}
            assert rows.keys() == leases
            assert not rows or max(rows.values()) == 1
            assert not source.locked

    def story(self, state: ExecutionState) -> None:
        """The events tell of every stage once that it began and once how it ended, then of one end."""
        stages = self.world.tables.stages
        told = Counter((event.type, event.stage_id) for event in self.events)
        assert all(stage.status != "OPEN" and stage.closing is not None for stage in stages.values())
        for stage_id, stage in stages.items():
            terminal = sum(told[name, stage_id] for name in TERMINAL)
            assert told["step.enter", stage_id] == 1
            assert told["step.exit", stage_id] == 1
            assert terminal == (stage.status != "CANCELLED")
        endings = [event.type for event in self.events if event.type in ENDINGS]
        assert endings == [f"playbook.{state.status.lower()}"]
        assert self.events[-1].type == endings[0]
        assert self.events[0].type in {"playbook.started", "playbook.cancelled"}
        assert (state.error is not None) == (state.status == "FAILED") or state.status == "CANCELLED"
