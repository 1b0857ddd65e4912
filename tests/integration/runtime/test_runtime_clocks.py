"""Processes whose clocks are apart: ids are drawn with them, and nothing is told by their order."""

from __future__ import annotations

import time
from itertools import count

import pytest
from world import World

from noetl_celery.ids import IdGenerator
from noetl_celery.runtime import decide as deciding
from noetl_celery.store import executions

pytestmark = pytest.mark.integration

HOUR = 3600 * 10**9
#: goes back to a step until it has been there three times; the step after it looks at what the last visit returned
ROUND = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: round, path: test/round}
workflow:
  - step: start
    tool: {kind: probe, input: {what: start}}
    next: {arcs: [{step: again}]}
  - step: again
    tool: {kind: probe, input: {what: again}}
    next: {arcs: [{step: again, when: "{{ output.data < 3 }}"}, {step: end, when: "{{ output.data >= 3 }}"}]}
  - step: end
    tool: {kind: probe, input: {what: "{{ again }}"}}
"""


class Clocks:
    """Each decision is made by another process, whose clock is an hour behind that of the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, self.late = time.time_ns, 0
        monkeypatch.setattr("noetl_celery.ids.time.time_ns", lambda: now() - self.late * HOUR)
        self.monkeypatch = monkeypatch

    def next(self) -> None:
        self.late += 1
        self.monkeypatch.setattr(deciding, "new_id", IdGenerator())


def test_the_last_visit_of_a_step_is_the_last_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    visits, seen = count(1), []

    def act(given: dict[str, object]) -> object:
        seen.append(given["what"])
        return next(visits) if given["what"] == "again" else None

    world.probe.act = act  # type: ignore[assignment]
    clocks = Clocks(monkeypatch)
    execution = world.begin(ROUND)
    while world.publisher.sent:
        clocks.next()
        world.deliver()
    assert world.status(execution) == "COMPLETED"
    ids = world.column("SELECT stage_id FROM noetl.stage WHERE step_name = 'again' ORDER BY visit")
    assert ids == sorted(ids, reverse=True), "the clocks are apart"
    assert seen == ["start", "again", "again", "again", 3]
    told = [(step["step_name"], step["visit"]) for step in world.do(executions.steps, execution)]
    assert told == [("start", 1), ("again", 3), ("end", 1)]
    summaries = [(step["step_name"], step["visit"]) for step in world.do(executions.step_summaries, execution)]
    assert summaries == told
