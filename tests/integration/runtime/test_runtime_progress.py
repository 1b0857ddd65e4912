"""What people see while it runs: counts that never go back, and where rows are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from cases import collection, cursor, fill, single
from services import make_settings
from world import World

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.store import decisions, executions

pytestmark = pytest.mark.integration


def seen(world: World, execution: int) -> dict[str, Any]:
    return world.do(executions.progress, execution)[0]


def test_rows_of_a_frame_that_has_ended_count_before_and_after_it_is_decided_on(world: World) -> None:
    fill(world.settings.libpq_url, 5)
    world.credential("src", {"dsn": world.settings.libpq_url})
    execution = world.begin(cursor())
    world.deliver()  # the claim
    before = seen(world, execution)
    assert (before["ok"], before["frames"], before["open_frames"]) == (0, 1, 1)
    world.deliver()  # its lane: the frame has ended, nobody has decided yet
    between = seen(world, execution)
    assert (between["ok"], between["frames"], between["open_frames"]) == (3, 1, 0)
    world.deliver()  # the decision
    after = seen(world, execution)
    assert (after["ok"], after["frames"], after["open_frames"]) == (3, 1, 0)


@pytest.mark.parametrize(
    ("count", "total"),
    [
        ("SELECT count(*) FROM public.work WHERE state = 'open'", 5),
        ("SELECT count(*) FROM public.no_such_table", None),
        ("SELECT 'many'", None),
        ("SELECT 1 WHERE false", None),
    ],
)
def test_the_total_is_what_the_count_query_said_when_the_loop_began(
    world: World, count: str, total: int | None
) -> None:
    fill(world.settings.libpq_url, 5)
    world.credential("src", {"dsn": world.settings.libpq_url})
    playbook = cursor().replace("auth: src,", f"auth: src, count: {json.dumps(count)},")
    execution = world.begin(playbook)
    assert seen(world, execution)["total"] is None
    world.deliver()  # the claim
    assert (seen(world, execution)["total"], seen(world, execution)["open_rows"]) == (total, 3)
    world.deliver()
    world.deliver()
    world.deliver()  # the next claim does not ask again
    assert seen(world, execution)["total"] == total


@pytest.mark.parametrize(
    ("own", "queue"),
    [(None, "noetl.body"), ("cpu", "noetl.body"), ("cpu, gpu", "noetl.body.gpu")],
    ids=["no pools", "another pool", "that pool"],
)
def test_only_a_pool_with_workers_of_its_own_has_a_queue(database: str, own: str | None, queue: str) -> None:
    world = World(make_settings(database, pools=own))
    try:
        playbook = single().replace("workflow:", "executor: {spec: {pool: gpu}}\nworkflow:")
        world.begin(playbook)
        assert world.column("SELECT queue FROM noetl.outbox") == [queue]
        assert decisions.BODY_QUEUE == "noetl.body"
    finally:
        world.close()


@pytest.mark.parametrize("large", [False, True])
def test_the_total_of_a_list_is_its_length(large: bool, world: World) -> None:
    """Also of one that is never loaded as a whole."""
    if not large:
        execution = world.begin(collection("{{ [5, 6, 7] }}"))
        assert (seen(world, execution)["total"], seen(world, execution)["frames"]) == (3, 1)
        return
    world.probe.act = lambda given: [{"text": "x" * 100}] * 1000
    playbook = collection("{{ start }}").replace("step: start", "step: work").replace("workflow:\n", MAKE)
    execution = world.begin(playbook)
    while world.value("SELECT count(*) FROM noetl.stage") < 2:
        assert world.deliver()
    assert (seen(world, execution)["total"], seen(world, execution)["frames"]) == (1000, 1)


MAKE = """workflow:
  - step: start
    tool: {kind: probe}
    next: [{step: work}]
"""


def test_a_plain_step_has_no_total(world: World) -> None:
    execution = world.begin(single())
    assert (seen(world, execution)["total"], seen(world, execution)["open_rows"]) == (None, 1)


def test_rows_that_wait_are_told_apart_from_those_that_were_sent_away(world: World) -> None:
    def act(given: Mapping[str, Any]) -> None:
        raise ToolError(ErrorInfo("rate_limit" if given["item"] == 1 else "busy", "later"))

    world.probe.act = act
    rules = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": 60}}]
    execution = world.begin(collection("{{ [1, 2, 3] }}", policy={"rules": rules}))
    world.deliver()
    step = seen(world, execution)
    assert (step["at_work"], step["parked"], step["throttled"], step["open_rows"]) == (0, 3, 1, 3)
    assert 0 < step["next"] <= 120
    assert (step["max_in_flight"], step["paced"]) == (4, False)


def test_retries_of_ended_rows_count_before_and_after_it_is_decided(world: World) -> None:
    fill(world.settings.libpq_url, 5)
    world.credential("src", {"dsn": world.settings.libpq_url})

    def act(given: Mapping[str, Any]) -> None:
        if world.probe.calls.count(given) == 1:
            raise ToolError(ErrorInfo("busy", "again"))

    world.probe.act = act
    rules = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": 0}}]
    execution = world.begin(cursor(policy={"rules": rules}))
    world.deliver()
    assert (seen(world, execution)["retries"], seen(world, execution)["waiting"]) == (0, 1)
    world.deliver()  # the lane
    assert (seen(world, execution)["retries"], seen(world, execution)["waiting"]) == (3, 0)
    world.deliver()  # the decision
    assert seen(world, execution)["retries"] == 3
