"""Failed work run again: only rows without an ok outcome, counted once, at the loop's own pace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cases import CLAIM, collection, cursor, fill, single
from services import credential_of
from world import World

from noetl_celery.store import signals

FAIL_FAST = {"policy": {"failure": {"mode": "fail_fast"}}}
AGAIN = {"republish_seconds": 30.0}


@pytest.fixture
def source(world: World) -> Callable[[int], None]:
    """Fills the source of cursor loops with so many rows."""
    world.credential("src", credential_of(world.settings.database_url))
    return lambda rows: fill(world.settings.database_url, rows)


def failing(*ids: int) -> Callable[[Mapping[str, Any]], Any]:
    """A body that fails for these items."""

    def act(given: Mapping[str, Any]) -> Any:
        item = given["item"]
        number = item["id"] if isinstance(item, Mapping) else item
        if number in ids:
            raise ValueError(f"not {number}")
        return number

    return act


def retry(world: World, execution: int, **data: Any) -> str:
    world.do(signals.add, execution, "retry", data, **AGAIN)
    world.orchestrate(execution)
    return world.settle(execution)


def called(world: World) -> list[Any]:
    """What bodies were called with since last asked."""
    items = [call["item"]["id"] if isinstance(call["item"], Mapping) else call["item"] for call in world.probe.calls]
    world.probe.calls.clear()
    return sorted(items)


def test_a_plain_step(world: World) -> None:
    world.probe.act = failing(1)
    execution = world.begin(single())
    assert world.settle(execution) == "FAILED"
    world.probe.act = failing()
    assert retry(world, execution) == "COMPLETED"
    assert world.steps(execution)["start"]["result"] == 1
    assert world.value("SELECT error FROM noetl.execution") is None
    kinds = world.events(execution)
    assert kinds.index("step.failed") < kinds.index("playbook.retried") < kinds.index("step.retried")
    assert world.verify(execution).turns > 0


def test_it_fails_again_and_again_until_it_does_not(world: World) -> None:
    world.probe.act = failing(1)
    execution = world.begin(single())
    assert world.settle(execution) == "FAILED"
    for _ in range(3):
        assert retry(world, execution) == "FAILED"
    world.probe.act = failing()
    assert retry(world, execution) == "COMPLETED"


def test_of_a_list_only_what_is_not_ok_is_run_again_and_results_keep_their_order(world: World) -> None:
    world.probe.act = failing(3)
    execution = world.begin(collection("{{ [0, 1, 2, 3, 4, 5] }}", spec="mode: sequential"))
    assert world.settle(execution) == "FAILED"
    assert called(world) == [0, 1, 2, 3]
    assert world.column("SELECT status FROM noetl.row ORDER BY row_index") == ["OK"] * 3 + ["FAILED"] + ["SKIPPED"] * 2
    world.probe.act = failing()
    assert retry(world, execution) == "COMPLETED"
    assert called(world) == [3, 4, 5]
    result = world.steps(execution)["start"]["result"]
    assert result["results"] == [0, 1, 2, 3, 4, 5]
    assert result["stats"] == {"total": 6, "ok": 6, "failed": 0}


def test_a_cursor_that_failed_fast_goes_on_claiming(world: World, source: Callable[[int], None]) -> None:
    source(8)
    world.probe.act = failing(2)
    execution = world.begin(cursor(step=FAIL_FAST))
    assert world.settle(execution) == "FAILED"
    before = called(world)
    assert 2 in before
    assert len(before) < 8
    world.probe.act = failing()
    assert retry(world, execution) == "COMPLETED"
    again = called(world)
    assert 2 in again
    assert sorted(set(before) | set(again)) == [*range(1, 9)]
    assert len(before) + len(again) == 9, "a row that was ok is not run again"
    result = world.steps(execution)["start"]["result"]
    assert (result["ok"], result["failed"], result["failures"]) == (8, 0, [])


def test_a_claim_that_was_wrong(world: World, source: Callable[[int], None]) -> None:
    source(4)
    world.q("ALTER TABLE public.work RENAME TO elsewhere")
    execution = world.begin(cursor())
    assert world.settle(execution) == "FAILED"
    world.q("ALTER TABLE public.elsewhere RENAME TO work")
    assert retry(world, execution) == "COMPLETED"
    assert called(world) == [1, 2, 3, 4]


def test_failed_rows_of_a_loop_that_went_on(world: World, source: Callable[[int], None]) -> None:
    source(7)
    world.probe.act = failing(2, 5, 6)
    execution = world.begin(cursor())
    assert world.settle(execution) == "COMPLETED"
    called(world)
    world.probe.act = failing(6)
    assert retry(world, execution, step="start") == "COMPLETED"
    assert called(world) == [2, 5, 6]
    result = world.steps(execution)["start"]["result"]
    assert (result["ok"], result["failed"], len(result["failures"])) == (6, 1, 1)
    assert world.value("SELECT count(*) FROM noetl.stage") == 1
    assert world.column("SELECT claims FROM public.work") == [1] * 7, "nothing is claimed for it"


def test_frames_are_opened_again_as_slowly_as_they_were(world: World, source: Callable[[int], None]) -> None:
    source(12)
    world.probe.act = failing(*range(1, 13))
    execution = world.begin(cursor(spec="max_in_flight: 2", frame="max_rows: 2"))
    assert world.settle(execution) == "COMPLETED"
    open_at_once = []

    def act(given: Mapping[str, Any]) -> Any:
        open_at_once.append(world.value("SELECT count(*) FROM noetl.frame WHERE status = 'RUNNING'"))
        return 1

    world.probe.act = act
    assert retry(world, execution, step="start") == "COMPLETED"
    assert len(open_at_once) == 12
    assert max(open_at_once) <= 2


def test_what_was_counted_is_not_counted_twice(world: World, source: Callable[[int], None]) -> None:
    source(6)
    world.probe.act = failing(2)
    playbook = cursor(CLAIM).replace(
        "iterator: item", "iterator: item\n      aggregate: {n: {sum: '{{ output.data }}'}}"
    )
    execution = world.begin(playbook)
    assert world.settle(execution) == "COMPLETED"
    first = world.steps(execution)["start"]["result"]["aggregate"]
    world.probe.act = failing()
    assert retry(world, execution, step="start") == "COMPLETED"
    again = world.steps(execution)["start"]["result"]["aggregate"]
    assert (first, again) == ({"n": 19}, {"n": 21})


def test_told_twice_it_is_run_once(world: World) -> None:
    world.probe.act = failing(1)
    execution = world.begin(single())
    assert world.settle(execution) == "FAILED"
    world.probe.act = failing()
    called(world)
    for _ in range(2):
        world.do(signals.add, execution, "retry", {}, **AGAIN)
    assert retry(world, execution) == "COMPLETED"
    assert called(world) == [1]


def test_a_child_that_failed_is_started_anew(world: World) -> None:
    world.register(single().replace("test/case", "test/child").replace("name: case", "name: child"))
    world.probe.act = failing(1)
    caller = single().replace('"kind": "probe"', '"kind": "playbook", "path": "test/child"')
    execution = world.begin(caller)
    assert world.settle(execution) == "FAILED"
    world.probe.act = failing()
    assert retry(world, execution) == "COMPLETED"
    assert world.column("SELECT status FROM noetl.execution WHERE depth = 1 ORDER BY created_at") == [
        "FAILED",
        "COMPLETED",
    ]
