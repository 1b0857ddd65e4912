"""The store of the simulated world: tables in memory under the rules that the real statements enforce.

Every public method is one transaction's part: it happens whole or not at all. Writes of lanes and claims name their
run and raise ``LeaseLost`` if that run does not hold its work any more.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl_celery.engine import ClaimSpec, Closing, LoopSettings, Opening, Signal, StageState
from noetl_celery.errors import LeaseLost
from noetl_celery.store.frames import lane_count

ROW_FINAL = frozenset({"OK", "FAILED", "SKIPPED"})
MAX_CRASHES = 3
LANE_WIDTH = 2


@dataclass
class Row:
    frame_id: int
    index: int
    payload: Any
    status: str = "READY"
    taken_by: int | None = None
    lane: int | None = None
    position: str | None = None
    crashes: int = 0
    due: int | None = None
    #: the child that it waits for
    waits_for: int | None = None
    result: Any = None
    error: Mapping[str, Any] | None = None
    ctx: Mapping[str, Any] | None = None
    aggregate: Mapping[str, Any] | None = None
    starts: int = 0


@dataclass
class Frame:
    frame_id: int
    stage_id: int
    index: int
    rows: list[Row]
    row_concurrency: int
    lanes: int
    claim_id: int | None = None
    slots: int = 1
    fail_fast: bool = False
    status: str = "RUNNING"
    stopping: bool = False
    attempt: int = 1
    #: lanes that were asked for (and are still wanted), and those that started
    requests: int = 0
    starts: int = 0

    @property
    def ordered(self) -> bool:
        return self.row_concurrency == 1

    def count(self, *statuses: str) -> int:
        return sum(row.status in statuses for row in self.rows)

    @property
    def open_rows(self) -> int:
        return sum(row.status not in ROW_FINAL for row in self.rows)


@dataclass
class Stage:
    opening: Opening
    status: str = "OPEN"
    closing: Closing | None = None


@dataclass
class Claim:
    spec: ClaimSpec
    status: str = "OPEN"
    taken_by: int | None = None
    attempts: int = 0


@dataclass
class Note:
    """A row of the signal table."""

    note_id: int
    signal: Signal
    due: int = 0


@dataclass(frozen=True)
class RunOf:
    """What a run holds: a lane of a frame, or a claim."""

    frame_id: int | None = None
    lane: int | None = None
    claim_id: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a row ended."""

    index: int
    ok: bool
    result: Any = None
    error: Mapping[str, Any] | None = None
    ctx: Mapping[str, Any] = field(default_factory=dict)


class Tables:
    def __init__(self) -> None:
        self.now = 0
        self.new_id = itertools.count(1).__next__
        self.stages: dict[int, Stage] = {}
        self.claims: dict[int, Claim] = {}
        self.frames: dict[int, Frame] = {}
        self.notes: dict[int, Note] = {}
        self.runs: dict[int, RunOf] = {}
        #: ("claim", id) or ("lane", frame, lane) → when to publish it again
        self.outbox: dict[tuple[Any, ...], int] = {}
        self._note_ids = itertools.count(1)

    # -- signals -----------------------------------------------------------------------------------------------------

    def tell(self, type_: Any, data: Mapping[str, Any] | None = None, delay: int = 0) -> None:
        copied = json.loads(json.dumps(data or {}))
        note = Note(next(self._note_ids), Signal(type_, copied), self.now + delay)
        self.notes[note.note_id] = note

    def due_notes(self, limit: int) -> list[Note]:
        return [note for note in self.notes.values() if note.due <= self.now][:limit]

    # -- frames ------------------------------------------------------------------------------------------------------

    def create_frame(
        self, stage_id: int, index: int, payloads: Sequence[Any], settings: LoopSettings, **more: Any
    ) -> Frame:
        frame_id, concurrency = self.new_id(), more.pop("row_concurrency", settings.row_concurrency)
        rows = [Row(frame_id, number, payload) for number, payload in enumerate(payloads)]
        lanes = lane_count(concurrency, len(rows), LANE_WIDTH)
        frame = self.frames[frame_id] = Frame(frame_id, stage_id, index, rows, concurrency, lanes, **more)
        return frame

    def send_lanes(self, frame: Frame, lanes: Sequence[int]) -> None:
        assert frame.status == "RUNNING"
        for lane in lanes:
            frame.requests += ("lane", frame.frame_id, lane) not in self.outbox
            self.outbox.setdefault(("lane", frame.frame_id, lane), self.now + 5)

    def frames_of(self, stage_id: int, *statuses: str) -> list[Frame]:
        return [f for f in self.frames.values() if f.stage_id == stage_id and (not statuses or f.status in statuses)]

    def claims_of(self, stage_id: int, *statuses: str) -> list[Claim]:
        return [c for c in self.claims.values() if c.spec.stage_id == stage_id and c.status in statuses]

    def start_lane(self, run: int, frame: Frame, lane: int) -> bool:
        held = any(of.frame_id == frame.frame_id and of.lane == lane for of in self.runs.values())
        woken = any(row.status == "READY" and row.waits_for is not None for row in frame.rows)
        asked = ("lane", frame.frame_id, lane) in self.outbox
        if not asked or held or frame.status != "RUNNING" or (frame.stopping and not woken):
            return False
        del self.outbox["lane", frame.frame_id, lane]
        self.runs[run] = RunOf(frame.frame_id, lane)
        frame.starts += 1
        return True

    def parked(self, frame: Frame, lane: int) -> int:
        return sum(row.status == "PARKED" and row.lane == lane for row in frame.rows)

    def take(self, frame: Frame, run: int, lane: int, limit: int, *, suspects: bool) -> list[Row]:
        """The next READY rows in order. Of an ordered frame only what has nothing unfinished of others before it."""
        taken: list[Row] = []
        for row in frame.rows if run in self.runs else ():
            if len(taken) >= limit:
                break
            if frame.ordered and (row.status == "PARKED" or (row.status == "TAKEN" and row.taken_by != run)):
                break
            if row.status == "READY" and (suspects or not row.crashes):
                row.status, row.taken_by, row.lane = "TAKEN", run, lane
                taken.append(row)
        return taken

    def held_row(self, frame: Frame, run: int, index: int) -> Row:
        row = frame.rows[index]
        if row.status != "TAKEN" or row.taken_by != run:
            raise LeaseLost(f"run {run} does not hold row {index} of frame {frame.frame_id}")
        return row

    def finish_rows(self, frame: Frame, run: int, outcomes: Sequence[Ended]) -> bool:
        """Writes outcomes, all or none; ends the frame with its last open row. True: it starts no more rows."""
        rows = [self.held_row(frame, run, outcome.index) for outcome in outcomes]
        for row, outcome in zip(rows, outcomes, strict=True):
            row.status, row.taken_by, row.position = "OK" if outcome.ok else "FAILED", None, None
            row.waits_for = None
            row.result, row.error, row.ctx = outcome.result, outcome.error, dict(outcome.ctx) or None
            frame.stopping |= frame.fail_fast and not outcome.ok
        if frame.stopping:
            self.skip_unstarted(frame)
        self.end_frame(frame)
        return frame.stopping or frame.status != "RUNNING"

    def skip_unstarted(self, frame: Frame) -> None:
        frame.stopping = True
        for row in frame.rows:
            if row.status in ("READY", "PARKED") and row.waits_for is None:
                row.status, row.due = "SKIPPED", None

    def end_frame(self, frame: Frame) -> None:
        if frame.status != "RUNNING" or frame.open_rows:
            return
        frame.status = "COMPLETED"
        for key in [key for key in self.outbox if key[:2] == ("lane", frame.frame_id)]:
            del self.outbox[key]
            frame.requests -= 1
        assert frame.requests == frame.starts, "the books of a frame do not balance"
        ok, failed = frame.count("OK"), frame.count("FAILED")
        has_ctx = any(row.ctx for row in frame.rows)
        data = {"stage": frame.stage_id, "frame": frame.frame_id, "slots": frame.slots}
        self.tell("frame.done", {**data, "ok": ok, "failed": failed, "ctx": has_ctx})

    def park(
        self,
        frame: Frame,
        run: int,
        index: int,
        position: Mapping[str, Any],
        due: int | None,
        *,
        counts: bool,
        waits_for: int | None = None,
    ) -> None:
        row = self.held_row(frame, run, index)
        row.status, row.taken_by, row.position, row.due = "PARKED", None, json.dumps(position), due
        row.waits_for = waits_for
        if not counts:
            row.lane = None

    def release(self, frame: Frame, run: int, index: int, position: Mapping[str, Any] | None) -> None:
        row = frame.rows[index]
        if row.status == "TAKEN" and row.taken_by == run:
            row.status, row.taken_by, row.lane = "READY", None, None
            if position is not None:
                row.position, row.waits_for = json.dumps(position), position["child"]

    def give_up_lane(self, frame: Frame, run: int, lane: int, width: int) -> list[int]:
        """Ends a lane's run; returns the lanes to publish because rows are left that can start now."""
        if self.runs.pop(run, None) is None:
            return []
        for row in frame.rows:
            self.release(frame, run, row.index, None)
        if frame.status != "RUNNING":
            return []
        if frame.stopping:
            self.skip_unstarted(frame)
            self.end_frame(frame)
        parked = self.parked(frame, lane)
        if not frame.count("READY") or (frame.ordered and frame.count("PARKED")) or parked >= width:
            return []
        self.send_lanes(frame, [lane])
        return [lane]

    def recall(self, stage_id: int) -> None:
        for claim in self.claims_of(stage_id, "OPEN"):
            claim.status = "CANCELLED"
            self.outbox.pop(("claim", claim.spec.claim_id), None)
            spec = claim.spec
            data = {"stage": stage_id, "claim": spec.claim_id, "budget": spec.budget, "reclaim": spec.reclaim}
            self.tell("claim.recalled", data)

    def stop_stage(self, stage_id: int) -> None:
        for frame in self.frames_of(stage_id, "RUNNING"):
            self.skip_unstarted(frame)
            self.end_frame(frame)

    # -- claims ------------------------------------------------------------------------------------------------------

    def issue(self, spec: ClaimSpec) -> None:
        self.claims[spec.claim_id] = Claim(spec)
        self.outbox["claim", spec.claim_id] = self.now + 5

    def answer(
        self, claim: Claim, status: str, signal: Any, data: Mapping[str, Any], *, run: int | None = None
    ) -> None:
        if claim.taken_by != run or claim.status != ("OPEN" if run is None else "TAKEN"):
            raise LeaseLost(f"claim {claim.spec.claim_id} is not held by {run}")
        claim.status, claim.taken_by = status, None
        self.outbox.pop(("claim", claim.spec.claim_id), None)
        spec = claim.spec
        self.tell(signal, {"stage": spec.stage_id, "claim": spec.claim_id, "budget": spec.budget, **data})

    def hold(self, claim: Claim, run: int) -> None:
        if claim.status != "TAKEN" or claim.taken_by != run or run not in self.runs:
            raise LeaseLost(f"claim {claim.spec.claim_id} is not held by {run}")

    def forget(self, claim: Claim) -> None:
        for frame in self.tentative(claim):
            del self.frames[frame.frame_id]

    def tentative(self, claim: Claim) -> list[Frame]:
        mine = claim.spec.claim_id
        return [frame for frame in self.frames.values() if frame.claim_id == mine and frame.status == "TENTATIVE"]

    # -- the sweep's part --------------------------------------------------------------------------------------------

    def wake(self) -> list[tuple[Frame, int]]:
        woken: dict[tuple[int, int], None] = {}
        for frame in self.frames.values():
            for row in frame.rows:
                if row.status == "PARKED" and row.due is not None and row.due <= self.now:
                    row.status, row.due = "READY", None
                    woken[frame.frame_id, row.lane or 0] = None
        for frame_id, lane in woken:
            self.send_lanes(self.frames[frame_id], [lane])
        return [(self.frames[frame_id], lane) for frame_id, lane in woken]

    def return_rows(self, run: int, of: RunOf) -> list[int]:
        """The rows of a dead lane become READY, and suspects. Returns the lanes to publish."""
        assert of.frame_id is not None
        assert of.lane is not None
        frame = self.frames[of.frame_id]
        if frame.status != "RUNNING":
            return []
        frame.attempt += 1
        for row in frame.rows:
            if row.status == "TAKEN" and row.taken_by == run:
                row.crashes, row.taken_by, row.lane, row.status = row.crashes + 1, None, None, "READY"
                if row.crashes >= MAX_CRASHES:
                    row.status, row.error = "FAILED", {"kind": "worker_lost", "message": "died", "retryable": False}
                    frame.stopping |= frame.fail_fast
        if frame.stopping:
            self.skip_unstarted(frame)
        self.end_frame(frame)
        if frame.status != "RUNNING":
            return []
        self.send_lanes(frame, [of.lane])
        return [of.lane]


class TableFacts:
    """The engine's ``Facts`` over these tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.results: dict[str, Any] = {}
        self.task_results: dict[str, Mapping[str, Any]] = {}
        for _, stage in sorted(tables.stages.items()):
            if stage.closing is not None and stage.status != "CANCELLED":
                self.results[stage.opening.step] = json.loads(json.dumps(stage.closing.result))

    def _rows(self, stage: StageState) -> list[tuple[Frame, Row]]:
        frames = sorted(self._tables.frames_of(stage.stage_id), key=lambda frame: frame.index)
        return [(frame, row) for frame in frames for row in frame.rows]

    def single(self, stage: StageState) -> Mapping[str, Any]:
        ((_, row),) = self._rows(stage)
        failed = row.status != "OK"
        error = dict(row.error or ({"kind": "cancelled", "message": "stopped"} if failed else {}))
        envelope = dict.fromkeys(("data", "result", "response"), row.result)
        parts: dict[str, Any] = {"http": {}, "pg": {}, "py": {}, "meta": {}}
        return {"status": "error" if failed else "ok", **envelope, "error": error, **parts, "task_results": None}

    def collection(self, stage: StageState) -> Mapping[str, Any]:
        results = [row.result for _, row in self._rows(stage)]
        ok = sum(row.status == "OK" for _, row in self._rows(stage))
        failed = sum(row.status == "FAILED" for _, row in self._rows(stage))
        stats = {"total": len(results), "ok": ok, "failed": failed}
        return {"results": results, "data": results, "count": len(results), "stats": stats}

    def failures(self, stage: StageState, limit: int) -> Sequence[Mapping[str, Any]]:
        failed = [(frame, row) for frame, row in self._rows(stage) if row.status == "FAILED"]
        return [{"frame": f.index, "index": r.index, "item": r.payload, "error": r.error} for f, r in failed][:limit]

    def aggregates(self, stage: StageState, frame_id: int) -> Sequence[Mapping[str, Any]]:
        return [row.aggregate for row in self._tables.frames[frame_id].rows if row.aggregate]

    def ctx_writes(self, stage: StageState, frame_id: int) -> Sequence[Mapping[str, Any]]:
        return [row.ctx for row in self._tables.frames[frame_id].rows if row.ctx]
