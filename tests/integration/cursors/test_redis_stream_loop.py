"""A cursor loop over a Redis stream: claimed, worked, acknowledged; and what a crash or a lost answer leaves."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from tickets import claim_ids, crash
from world import World, in_thread, wait_for

from noetl_celery import faults
from noetl_celery.cursors.redis_stream import RedisStreamCursor
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.runtime import lane

pytestmark = pytest.mark.integration

STREAM, GROUP = "orders", "workers"
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: stream, path: test/stream}}
workflow:
  - step: start
    loop:
      cursor: {{kind: redis_stream, auth: queue, claim: {STREAM}, options: {{group: {GROUP}}}}}
      iterator: order
      spec: {{frame: {{max_rows: 3, row_concurrency: 3}}}}
    tool: {{kind: probe, input: {{n: "{{{{ iter.order.n | int }}}}"}}}}
"""


@pytest.fixture
def filled(world: World, server: redis.Redis, redis_url: str) -> list[str]:
    """Seven entries; their ids."""
    world.credential("queue", {"url": redis_url})
    return [str(server.xadd(STREAM, {"n": n})) for n in range(7)]


def pending(server: redis.Redis) -> int:
    answer: Any = server.xpending(STREAM, GROUP)
    return int(answer["pending"])


def let_leases_end(server: redis.Redis) -> None:
    entries: Any = server.xpending_range(STREAM, GROUP, "-", "+", 100)
    server.xclaim(STREAM, GROUP, "lost", 0, [entry["message_id"] for entry in entries], idle=3_600_000)


def seen(world: World) -> list[int]:
    return sorted(call["n"] for call in world.probe.calls)


def test_a_stream_is_drained_and_acknowledged(world: World, server: redis.Redis, filled: list[str]) -> None:
    execution = world.begin(PLAYBOOK)
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == list(range(7))
    assert pending(server) == 0
    again = world.begin(PLAYBOOK)
    assert world.settle(again) == "COMPLETED"
    assert len(seen(world)) == 7


def test_two_executions_share_a_group(world: World, server: redis.Redis, filled: list[str]) -> None:
    executions = [world.begin(PLAYBOOK), world.begin(PLAYBOOK)]
    assert [world.settle(execution) for execution in executions] == ["COMPLETED", "COMPLETED"]
    assert seen(world) == list(range(7))
    assert pending(server) == 0


@pytest.mark.parametrize("point", ["claim.recorded", "claim.source_committed"])
def test_a_claim_that_was_recorded_stands(
    world: World, server: redis.Redis, filled: list[str], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    execution = world.begin(PLAYBOOK)
    faults._visits.clear()
    monkeypatch.setattr(faults, "_armed", {point: ("error", 1)})
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == list(range(7))
    assert pending(server) == 0


def test_what_was_delivered_and_never_recorded_comes_after_the_lease(
    world: World, server: redis.Redis, filled: list[str]
) -> None:
    execution = world.begin(PLAYBOOK)
    server.xgroup_create(STREAM, GROUP, id="0")
    server.xreadgroup(GROUP, "dead", {STREAM: ">"}, count=2)
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [2, 3, 4, 5, 6]
    let_leases_end(server)
    assert world.settle(world.begin(PLAYBOOK)) == "COMPLETED"
    assert seen(world) == list(range(7))
    assert pending(server) == 0


def test_a_lost_acknowledgement_runs_nothing_again(
    world: World, server: redis.Redis, filled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries come again, are known here, and are acknowledged then; what comes behind them is not forgotten."""
    truly = RedisStreamCursor.acknowledge
    asked: list[int] = []

    def away_at_first(self: RedisStreamCursor, *args: Any) -> None:
        asked.append(len(args[3]))
        if len(asked) == 1:
            let_leases_end(server)
            raise ToolError(ErrorInfo("connection", "Redis is away", retryable=True))
        truly(self, *args)

    monkeypatch.setattr(RedisStreamCursor, "acknowledge", away_at_first)
    execution = world.begin(PLAYBOOK)
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == list(range(7))
    assert asked == [3, 3, 3, 1], "the second time for those that came again"
    assert pending(server) == 0


def test_redis_away_is_a_claim_tried_again(world: World, server: redis.Redis, redis_url: str) -> None:
    world.credential("queue", {"url": "redis://127.0.0.1:1"})
    execution = world.begin(PLAYBOOK)
    world.run(execution)
    assert "claim.retry" in world.events(execution)
    assert world.status(execution) == "RUNNING"


def test_a_key_of_another_type_fails_the_step(world: World, server: redis.Redis, redis_url: str) -> None:
    world.credential("queue", {"url": redis_url})
    server.set(STREAM, "text")
    execution = world.begin(PLAYBOOK)
    assert world.settle(execution) == "FAILED"
    error = world.value("SELECT error FROM noetl.execution WHERE execution_id = %s", execution)
    assert "`claim` has to name a stream" in json.dumps(error)


def test_rows_at_work_are_not_handed_to_another_execution(
    world: World, server: redis.Redis, filled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever waits in the frame as well: one row at a time, and each takes longer than the lease."""
    slow = PLAYBOOK.replace("row_concurrency: 3", "row_concurrency: 1").replace(
        f"group: {GROUP}", f"group: {GROUP}, lease_seconds: 1"
    )
    monkeypatch.setattr(lane, "LOOK_SECONDS", 0.1)
    world.probe.act = lambda given: time.sleep(1.5) if given["n"] < 2 else None
    execution = world.begin(slow)
    world.claim(world.publisher.claims()[0])
    ((frame, _),) = world.publisher.lanes()
    other = world.begin(slow.replace("test/stream", "test/other"))
    (_, claim) = claim_ids(world)
    with in_thread(world.lane, frame):
        wait_for(lambda: len(world.probe.calls) == 2, "one row has taken longer than the lease")
        world.claim(claim)
    assert {world.settle(execution), world.settle(other)} == {"COMPLETED"}
    assert seen(world) == list(range(7))


def test_a_row_that_its_workers_died_over_is_acknowledged(world: World, server: redis.Redis, filled: list[str]) -> None:
    """It would come back to kill the workers of the next execution."""
    server.xtrim(STREAM, maxlen=1, approximate=False)
    execution = world.begin(PLAYBOOK)
    world.claim(world.publisher.claims()[0])
    for _ in range(world.settings.max_crashes):
        crash(world)
    assert world.settle(execution) == "COMPLETED"
    assert world.steps(execution)["start"]["result"]["failed"] == 1
    assert pending(server) == 0


# dead letters

BURYING = PLAYBOOK.replace(f"claim: {STREAM},", f"claim: {STREAM}, dead_letter: '{{{{ iter.order.stream }}}}:dead',")


def fail_on_two(given: Any) -> None:
    if 2 in (given["n"] if isinstance(given["n"], list) else [given["n"]]):
        raise ToolError(ErrorInfo("odd", "not 2"))


def test_a_row_that_failed_for_good_goes_to_another_stream(
    world: World, server: redis.Redis, filled: list[str]
) -> None:
    world.probe.act = fail_on_two
    execution = world.begin(BURYING)
    assert world.settle(execution) == "COMPLETED"
    ((_, dead),) = server.xrange(f"{STREAM}:dead")
    assert dead["entry"] == filled[2]
    assert json.loads(dead["row"]) == {"id": filled[2], "stream": STREAM, "n": "2", "__entry_id": filled[2]}
    assert json.loads(dead["error"])["message"] == "not 2"
    assert pending(server) == 0, "it is done with, like the others"
    assert world.steps(execution)["start"]["result"]["failed"] == 1


def test_a_frame_that_failed_leaves_each_of_its_entries_there(
    world: World, server: redis.Redis, filled: list[str]
) -> None:
    world.probe.act = fail_on_two
    whole = BURYING.replace("row_concurrency: 3", "process: frame").replace(
        "iter.order.n | int", "iter.order | map(attribute='n') | map('int') | list"
    )
    execution = world.begin(whole.replace("{{ iter.order.stream }}:dead", "orders:dead"))
    assert world.settle(execution) == "COMPLETED"
    assert [dead["entry"] for _, dead in server.xrange(f"{STREAM}:dead")] == filled[:3]
    assert pending(server) == 0


def test_a_dead_letter_that_redis_refuses_is_told_with_the_row(
    world: World, server: redis.Redis, filled: list[str]
) -> None:
    world.probe.act = fail_on_two
    server.set(f"{STREAM}:dead", "text")
    execution = world.begin(BURYING)
    assert world.settle(execution) == "COMPLETED"
    (failure,) = world.steps(execution)["start"]["result"]["failures"]
    assert failure["error"]["kind"] == "odd"
    assert "the stream `orders:dead` takes no dead letter" in failure["error"]["dead_letter"]
