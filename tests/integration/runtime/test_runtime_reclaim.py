"""``reclaim``: before the first claim and again while the loop is open, also when there is nothing else to claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cases import states
from families import nothing_left, playbook
from world import World

from noetl_celery.errors import ErrorInfo, ToolError

pytestmark = pytest.mark.integration

#: frees what another execution has leased, or (``mine``) whatever is leased; and leaves a mark each time
STALE = "INSERT INTO public.reclaims DEFAULT VALUES; UPDATE public.work SET state = 'open' WHERE state = 'stale'"
ANY = STALE.replace("'stale'", "'claimed'")
CLAIM = """
          UPDATE public.work SET state = 'claimed', claims = claims + 1 WHERE id IN (
            SELECT id FROM public.work WHERE state = 'open' ORDER BY id LIMIT {{ __frame_max_rows }}
            FOR UPDATE SKIP LOCKED)
          RETURNING id
"""


def loop(reclaim: str, after: float | None = None) -> str:
    again = f"reclaim_after: {after}" if after else ""
    return playbook(
        "test/reclaim",
        f"""
  - step: start
    loop:
      cursor:
        kind: postgres
        auth: src
        reclaim: "{reclaim}"
        {again}
        claim: |{CLAIM}
      iterator: item
      spec: {{max_in_flight: 2, frame: {{max_rows: 5, row_concurrency: 5}}}}
    tool:
      kind: probe
      input: {{id: "{{{{ iter.item.id }}}}"}}
      spec:
        policy:
          rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {{do: retry, attempts: 9, delay: 3600}}}}]
    next: []
""",
    )


@pytest.fixture
def queue(here: World) -> World:
    """Seven rows, two of them leased by somebody who is gone; a row that is done is marked so."""
    here.q("CREATE TABLE public.reclaims (id bigserial)")
    here.q("UPDATE public.work SET state = 'stale' WHERE id > 5")
    here.probe.act = lambda given: done(here, given)
    return here


def done(world: World, given: Mapping[str, Any]) -> None:
    with world.process.db.begin() as connection:
        connection.execute("UPDATE public.work SET state = 'done' WHERE id = %(id)s", {"id": given["id"]})


def first_time_busy(world: World, number: int) -> Any:
    """Row ``number`` is at work for long: its first attempt fails, and the next is an hour away."""

    def act(given: Mapping[str, Any]) -> None:
        if given["id"] == number and [call["id"] for call in world.probe.calls].count(number) == 1:
            raise ToolError(ErrorInfo("busy", "come back later"))
        done(world, given)

    return act


def reclaims(world: World) -> int:
    return int(world.value("SELECT count(*) FROM public.reclaims"))


def wake(world: World) -> None:
    world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")


def let_timer_ring(world: World) -> None:
    world.q("UPDATE noetl.signal SET due_at = now(), publish_at = now() WHERE type = 'stage.reclaim'")
    world.sweep()


def test_it_runs_once_before_the_first_claim(queue: World) -> None:
    execution = queue.begin(loop(STALE))
    assert queue.settle(execution) == "COMPLETED"
    assert sorted(call["id"] for call in queue.probe.calls) == [1, 2, 3, 4, 5, 6, 7]
    assert states(queue.settings.libpq_url) == {"done": 7}
    assert reclaims(queue) == 1
    nothing_left(queue)


def test_it_runs_again_while_the_source_is_dry_and_a_long_row_is_at_work(queue: World) -> None:
    queue.q("UPDATE public.work SET state = 'lost' WHERE state = 'stale'")
    queue.probe.act = first_time_busy(queue, 1)
    execution = queue.begin(loop(STALE, after=30))
    assert queue.run(execution) == "RUNNING"
    assert states(queue.settings.libpq_url) == {"claimed": 1, "done": 4, "lost": 2}
    queue.q("UPDATE public.work SET state = 'stale' WHERE state = 'lost'")  # its lease is over
    for _ in range(2):
        let_timer_ring(queue)
        assert queue.run(execution) == "RUNNING"
        assert states(queue.settings.libpq_url) == {"claimed": 1, "done": 6}
    assert reclaims(queue) == 3
    wake(queue)
    assert queue.settle(execution) == "COMPLETED"
    result = queue.steps(execution)["start"]["result"]
    assert (result["processed"], result["ok"]) == (7, 7)


def test_a_timer_that_rings_after_the_loop_does_nothing(queue: World) -> None:
    execution = queue.begin(loop(STALE, after=30))
    assert queue.settle(execution) == "COMPLETED"
    let_timer_ring(queue)
    assert queue.run(execution) == "COMPLETED"
    assert reclaims(queue) == 1
    nothing_left(queue)


def test_one_that_is_quicker_than_our_own_rows_does_not_run_them_twice(queue: World) -> None:
    queue.probe.act = first_time_busy(queue, 2)
    execution = queue.begin(loop(ANY, after=30))
    queue.run(execution)
    assert states(queue.settings.libpq_url)["claimed"] == 1
    let_timer_ring(queue)
    assert queue.run(execution) == "RUNNING"
    assert queue.value("SELECT claims FROM public.work WHERE id = 2") == 2, "the source handed it out again"
    wake(queue)
    assert queue.settle(execution) == "COMPLETED"
    assert [call["id"] for call in queue.probe.calls].count(2) == 2, "its two attempts"
    assert queue.steps(execution)["start"]["result"]["processed"] == 5
    assert "stale" in states(queue.settings.libpq_url)


def test_one_in_a_paused_execution_waits_for_it(queue: World) -> None:
    from noetl_celery.store import signals

    queue.probe.act = first_time_busy(queue, 1)
    execution = queue.begin(loop(STALE, after=30))
    queue.run(execution)
    queue.do(signals.add, execution, "pause", republish_seconds=30)
    queue.orchestrate(execution)
    let_timer_ring(queue)
    assert queue.run(execution) == "PAUSED"
    assert reclaims(queue) == 1
    queue.do(signals.add, execution, "resume", republish_seconds=30)
    queue.orchestrate(execution)
    assert queue.run(execution) == "RUNNING"
    assert reclaims(queue) == 2
    wake(queue)
    assert queue.settle(execution) == "COMPLETED"


def test_a_reclaim_that_is_wrong_fails_the_step_and_is_shown(queue: World) -> None:
    execution = queue.begin(loop("UPDATE public.wrok SET state = 1"))
    assert queue.settle(execution) == "FAILED"
    error = queue.value("SELECT error FROM noetl.execution WHERE execution_id = %s", execution)
    assert "wrok" in error["message"]
