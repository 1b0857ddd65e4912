"""What the runtime tells of its work: once for what is committed, and nothing for what is not."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest
from cases import collection, cursor, fill, single
from world import World

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.runtime import process as processes
from noetl_celery.store import claims
from noetl_celery.telemetry import declared as m
from noetl_celery.telemetry import logs, watch

pytestmark = pytest.mark.integration

PATH, STEP = "test/case", "start"
RETRY = {"policy": {"rules": [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3}}]}}


class Tally:
    """Counts as worker processes do, where a test can see it."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.seconds: dict[tuple[str, ...], list[float]] = {}

    def add(self, metric: m.Metric, labels: Sequence[str], amount: float = 1) -> None:
        assert len(labels) == len(metric.labels), metric.name
        assert not metric.known or labels[0] in metric.known
        self.counts[metric.name, *labels] += int(amount)

    def observe(self, metric: m.Metric, labels: Sequence[str], seconds: float) -> None:
        assert len(labels) == len(metric.labels)
        self.seconds.setdefault((metric.name, *labels), []).append(seconds)

    def of(self, metric: m.Metric) -> dict[tuple[str, ...], int]:
        """What is not 0, by labels."""
        return {
            labels: count
            for (name, *labels_), count in self.counts.items()
            if count and name == metric.name
            for labels in [tuple(labels_)]
        }


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Tally:
    made = Tally()
    monkeypatch.setattr(watch, "_counters", made)
    return made


@pytest.mark.parametrize("together", [True, False])
def test_a_loop_is_counted(world: World, tally: Tally, together: bool) -> None:
    fill(world.settings.libpq_url, 7)
    world.credential("src", {"dsn": world.settings.libpq_url})
    world.together = together

    def act(given: Mapping[str, Any]) -> None:
        if given["item"]["id"] == 3:
            raise ToolError(ErrorInfo("bad", "row 3"))
        time.sleep(0.01)

    world.probe.act = act
    execution = world.begin(cursor(spec="max_in_flight: 2"))
    assert world.run(execution) == "COMPLETED"
    place = PATH, STEP
    assert tally.of(m.ROWS) == {(*place, "cursor", "ok"): 6, (*place, "cursor", "failed"): 1}
    assert tally.of(m.FRAMES) == {(*place, "cursor"): 3}
    results = tally.of(m.CLAIMS)
    assert results[*place, "filled"] == 3
    assert results[*place, "empty"] >= 1
    assert tally.of(m.EXECUTIONS) == {(PATH, "completed"): 1}
    assert len(tally.seconds["noetl_row_seconds", *place]) == 7
    assert max(tally.seconds["noetl_row_seconds", *place]) >= 0.01
    assert all(seconds > 0 for seconds in tally.seconds["noetl_frame_seconds", *place])
    assert len(tally.seconds["noetl_claim_seconds", *place]) == sum(results.values())
    for metric in (m.RETRIES, m.RERUNS, m.RUNS_DIED, m.LEASES_LOST, m.REPUBLISHED, m.CLAIM_RETRIES):
        assert tally.of(metric) == {}, metric.name


def test_retries_are_counted_once_each(world: World, tally: Tally) -> None:
    def act(given: Mapping[str, Any]) -> None:
        if len(world.probe.calls) < 3:
            raise ToolError(ErrorInfo("busy", "not now"))

    world.probe.act = act
    execution = world.begin(single(spec=RETRY))
    assert world.settle(execution) == "COMPLETED"
    assert tally.of(m.RETRIES) == {(PATH, STEP): 2}
    assert tally.of(m.ROWS) == {(PATH, STEP, "single", "ok"): 1}


def test_a_transaction_that_is_run_again_is_counted_once(
    world: World, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.settings.libpq_url, 3)
    world.credential("src", {"dsn": world.settings.libpq_url})
    world.together = True
    execution = world.begin(cursor())
    (claim,) = world.publisher.claims()
    real, failed = claims.answer, []

    def answer(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if not failed:
            failed.append(True)
            raise psycopg.errors.DeadlockDetected("of another")

    monkeypatch.setattr(claims, "answer", answer)
    world.claim(claim)
    assert failed
    assert world.run(execution) == "COMPLETED"
    assert tally.of(m.CLAIMS)[PATH, STEP, "filled"] == 1
    assert tally.of(m.ROWS) == {(PATH, STEP, "cursor", "ok"): 3}


def test_a_claim_that_fails_is_counted(world: World, tally: Tally) -> None:
    world.credential("src", {"dsn": world.settings.libpq_url})
    execution = world.begin(cursor("SELECT id FROM public.nowhere"))
    assert world.run(execution) == "FAILED"
    assert tally.of(m.CLAIMS) == {(PATH, STEP, "failed"): 1}
    assert tally.of(m.CLAIM_RETRIES) == {}
    assert tally.of(m.EXECUTIONS) == {(PATH, "failed"): 1}


def test_what_a_crash_leaves_is_counted(world: World, tally: Tally) -> None:
    execution = world.begin(single())
    frame = world.one_frame(execution)
    for crash in range(3):
        lane = world.taken_lane(frame)
        assert lane is not None
        lane.process.pulse.drop(lane.held.run_id)
        world.q("UPDATE noetl.run SET begun = '{0}', lease_until = now() - interval '1 s'")
        world.sweep()
        assert tally.of(m.RUNS_DIED) == {("lane",): crash + 1}
        world.publisher.sent.clear()
    assert tally.of(m.RERUNS) == {("crash",): 2}
    assert tally.of(m.ROWS) == {(PATH, STEP, "single", "failed"): 1}
    assert tally.of(m.FRAMES) == {(PATH, STEP, "single"): 1}


def test_a_lane_that_lost_its_lease_is_counted(world: World, tally: Tally) -> None:
    execution = world.begin(single())
    lost = "UPDATE noetl.row SET status = 'READY', taken_by = NULL, lane = NULL; DELETE FROM noetl.run"
    world.probe.act = lambda given: world.q(lost)
    world.lane(world.one_frame(execution))
    assert tally.of(m.LEASES_LOST) == {("lane",): 1}
    assert tally.of(m.ROWS) == {}


def test_rows_that_a_stop_hands_over_are_counted(world: World, tally: Tally) -> None:
    execution = world.begin(single())

    def act(given: Mapping[str, Any]) -> None:
        processes.announce_stop(0)
        time.sleep(0.3)

    world.probe.act = act
    world.lane(world.one_frame(execution))
    assert tally.of(m.RERUNS) == {("stop",): 1}


def test_what_is_published_again_is_counted(world: World, tally: Tally) -> None:
    fill(world.settings.libpq_url, 3)
    world.credential("src", {"dsn": world.settings.libpq_url})
    world.begin(cursor())
    waiting = world.begin(single())
    world.do(lambda c: c.execute("UPDATE noetl.outbox SET publish_at = now()"))
    world.submit(single())
    world.do(lambda c: c.execute("UPDATE noetl.signal SET publish_at = now()"))
    world.publisher.away = True
    world.sweep()
    assert tally.of(m.REPUBLISHED) == {}, "nothing could be sent"
    world.publisher.away = False
    world.q("UPDATE noetl.outbox SET publish_at = now()")
    world.q("UPDATE noetl.signal SET publish_at = now()")
    world.sweep()
    assert tally.of(m.REPUBLISHED) == {("claim",): 1, ("lanes",): 1, ("orchestrate",): 1}
    assert world.status(waiting) == "RUNNING"


def test_lines_of_a_row_say_where_it_is(world: World, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[dict[str, str]] = []

    def act(given: Mapping[str, Any]) -> None:
        record = logging.makeLogRecord({"msg": "from the tool's own logger"})
        lines.append(logs.named(record))

    world.probe.act = act
    execution = world.begin(collection("{{ range(2) | list }}", spec="mode: sequential"))
    assert world.run(execution) == "COMPLETED"
    frame = str(world.one_frame(execution))
    same = {"execution_id": str(execution), "step": STEP, "frame_id": frame}
    assert lines == [{**same, "row": "0"}, {**same, "row": "1"}]
