"""A lane of the simulated world: takes rows, drives their pipelines a step at a time, writes outcomes in batches."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from engine_tables import Ended, Frame, Row

from noetl_celery.engine import Done, Failed, Pipeline, Run, Wait
from noetl_celery.engine.pipeline import Call
from noetl_celery.outcome import Outcome
from noetl_celery.store.frames import lane_width

if TYPE_CHECKING:
    from simulator import Actor, World

SHORT_WAIT_SECONDS = 5


class Lane:
    def __init__(self, world: World, actor: Actor, frame: Frame, number: int) -> None:
        self.world, self.tables, self.frame, self.number = world, world.tables, frame, number
        self.actor = actor
        self.run = world.tables.new_id()
        self.width = lane_width(frame.row_concurrency, frame.lanes, number)
        self.waiting: list[Row] = []
        self.air: dict[int, tuple[Row, Pipeline]] = {}
        self.outcomes: list[Ended] = []
        #: rows to give back when the lane is given up, with what they have reached
        self.back: list[tuple[int, dict[str, Any]]] = []
        #: rows that this lane still starts before it hands over to a fresh one
        self.left = world.random.randint(1, 8)
        self.closing = False
        #: nothing of it starts any more, but for rows whose child has ended
        self.ending = frame.stopping

    def work(self) -> Generator[None, None, None]:
        if self.tables.stages[self.frame.stage_id].status != "OPEN":
            return
        if not self.tables.start_lane(self.run, self.frame, self.number):
            return
        self.actor.runs.add(self.run)
        self.careful = self.frame.attempt > 1
        while True:
            self.exchange()
            self.start_rows()
            if not self.air:
                break
            yield
            while self.air:
                self.advance(self.world.random.choice(list(self.air.values())))
                yield
                if self.outcomes and self.world.random.random() < 0.5:
                    break
                self.start_rows()
        for index, position in self.back:
            self.tables.release(self.frame, self.run, index, position)
        lanes = self.tables.give_up_lane(self.frame, self.run, self.number, self.width)
        yield
        self.world.publish(*(("lane", self.frame.frame_id, lane) for lane in lanes), ("orchestrate",))

    def exchange(self) -> None:
        """Writes the outcomes there are and takes rows for the places that are free."""
        if self.outcomes:
            stopping = self.tables.finish_rows(self.frame, self.run, self.outcomes)
            self.world.checks.finished(self.frame, self.outcomes)
            self.outcomes = []
            self.closing |= stopping
        self.closing |= (self.frame.stopping and not self.ending) or self.left <= 0
        free = self.width - self.tables.parked(self.frame, self.number) - len(self.air) - len(self.waiting)
        if self.closing or free <= 0:
            return
        ordered = self.frame.ordered
        taken = self.tables.take(self.frame, self.run, self.number, free, suspects=ordered)
        if not (taken or ordered or self.air or self.waiting) and self.careful:
            taken = self.tables.take(self.frame, self.run, self.number, 1, suspects=True)
        self.waiting += taken
        assert not self.ending or all(row.waits_for is not None for row in taken)

    def start_rows(self) -> None:
        self.closing |= self.frame.stopping and not self.ending
        while self.waiting and not self.closing:
            if self.careful and self.waiting[0].crashes and self.air:
                return
            row = self.waiting.pop(0)
            self.left -= 1
            self.world.checks.starts(self.frame, row, self.run, [outcome.index for outcome in self.outcomes])
            self.air[row.index] = row, self.world.pipeline(self.frame, row)

    def advance(self, item: tuple[Row, Pipeline]) -> None:
        row, pipeline = item
        step = pipeline.next()
        if isinstance(step, Run | Call):
            outcome = (
                self.world.call(self.frame, row, step) if isinstance(step, Run) else self.child(row, pipeline, step)
            )
            if outcome is None:
                del self.air[row.index]
                self.world.checks.leaves(self.frame, row, self.run)
                return
            self.world.checks.at_work(self.frame, self.run)
            waits = pipeline.apply(outcome)
            if waits is None:
                return
            step = waits
        match step:
            case Wait():
                self.wait(row, pipeline, step)
            case Done():
                self.end(row, Ended(row.index, True, step.data, ctx=pipeline.position.ctx))
            case Failed():
                self.end(row, Ended(row.index, False, error={**step.error.as_dict(), "task": step.task}))
            case _:
                raise AssertionError(step)

    def child(self, row: Row, pipeline: Pipeline, call: Call) -> Outcome | None:
        """What a child came to; None: the row leaves the lane, to wait for it."""
        children, position = self.world.children, pipeline.position
        if call.child is not None:
            outcome = children.all[call.child].look()
            if outcome is None:
                due = self.tables.now + 5
                document = position.document()
                self.tables.park(self.frame, self.run, row.index, document, due, counts=True, waits_for=call.child)
                self.closing |= self.frame.ordered
            return copy.deepcopy(outcome)
        position.child = self.tables.new_id()
        ends = self.world.call(self.frame, row, call)
        if children.start(self.frame, self.run, row.index, position.document(), position.child, ends):
            self.closing |= self.frame.ordered
        else:
            self.back.append((row.index, position.document() | {"child": None}))
        return None

    def wait(self, row: Row, pipeline: Pipeline, wait: Wait) -> None:
        document = pipeline.position.document()
        if wait.seconds > SHORT_WAIT_SECONDS:
            counts = wait.throttled or self.frame.ordered
            due = self.tables.now + int(wait.seconds)
            self.tables.park(self.frame, self.run, row.index, document, due, counts=counts)
            self.closing |= self.frame.ordered
        elif self.world.random.random() < 0.3:
            self.back.append((row.index, document))  # called back: the lane's process stops
            self.closing = True
        else:
            return
        del self.air[row.index]
        self.world.checks.leaves(self.frame, row, self.run)

    def end(self, row: Row, outcome: Ended) -> None:
        del self.air[row.index]
        self.world.checks.leaves(self.frame, row, self.run)
        self.outcomes.append(outcome)
        if self.frame.fail_fast and not outcome.ok:
            self.closing = True
