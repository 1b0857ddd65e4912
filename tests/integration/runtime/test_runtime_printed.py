"""What tasks print is kept with their outcomes, and how often rows were tried is counted there."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from cases import collection, cursor, fill, single
from services import make_settings
from world import World, in_thread, wait_for

from noetl_celery import hiding
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.plans import Plans
from noetl_celery.settings import Settings
from noetl_celery.store import lines
from noetl_celery.tools.python import PythonTool
from noetl_celery.tools.registry import ToolRegistry

pytestmark = pytest.mark.integration

RETRY = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": 0.01}}]


@pytest.fixture
def settings(database: str, request: pytest.FixtureRequest) -> Settings:
    return make_settings(database, **getattr(request, "param", {}))


@pytest.fixture
def world(world: World) -> World:
    world.process.tools = ToolRegistry([world.probe, PythonTool()])
    world.process.plans = Plans(world.process.tools, world.process.cursors)
    return world


def printed(world: World, execution: int, **options: Any) -> list[tuple[Any, ...]]:
    found = world.do(lines.read, execution, **{"limit": 1000, **options})
    return [(line["step"], line["frame"], line["row"], line["task"], line["text"]) for line in found]


def python(code: str, **given: Any) -> dict[str, Any]:
    return {"kind": "python", "code": code, "input": given}


def test_lines_of_rows_in_their_order_and_of_failed_ones_too(world: World) -> None:
    code = "print('begin', item)\nprint('again')\nresult = 1 / item"
    execution = world.begin(collection("{{ [1, 0] }}", **python(code, item="{{ iter.item }}")))
    world.settle(execution)
    found = printed(world, execution)
    for row, item in ((0, 1), (1, 0)):
        own = [line for line in found if line[2] == row]
        assert own == [("start", 0, row, "start", f"begin {item}"), ("start", 0, row, "start", "again")]
    assert world.column("SELECT status FROM noetl.row ORDER BY row_index") == ["OK", "FAILED"]


def test_times_are_those_of_the_database_and_not_of_the_write(world: World) -> None:
    execution = world.begin(single(**python("print('now')")))
    world.settle(execution)
    (place,) = world.q("SELECT opened_at, closed_at FROM noetl.stage")
    (line,) = world.do(lines.read, execution, limit=10)
    assert place["opened_at"] < line["at"] < place["closed_at"]


def test_lines_of_a_row_that_is_still_at_work_are_there(world: World) -> None:
    hold = threading.Event()
    world.probe.act = lambda given: hold.wait(20)
    tasks = f"[{{name: say, {json.dumps(python('print(1)'))[1:-1]}}}, {{name: hold, kind: probe}}]"
    playbook = single().replace('{"kind": "probe", "input": {"item": 1}}', tasks)
    execution = world.begin(playbook)
    with in_thread(world.run, execution):
        try:
            wait_for(lambda: printed(world, execution), "the line is there")
            assert printed(world, execution) == [("start", 0, 0, "say", "1")]
        finally:
            hold.set()
    assert world.status(execution) == "COMPLETED"


def test_secrets_and_what_cannot_be_stored_are_replaced(world: World) -> None:
    hiding.learn("hush-hush-1234")
    execution = world.begin(single(**python("print('hush-hush-1234', 'a' + chr(0) + 'b')")))
    assert world.settle(execution) == "COMPLETED"
    assert printed(world, execution) == [("start", 0, 0, "start", "*** a\ufffdb")]


@pytest.mark.parametrize("settings", [{"log_bytes": 1_000}], indirect=True)
def test_an_execution_keeps_so_much_and_says_that_there_was_more(world: World) -> None:
    execution = world.begin(single(**python("for n in range(50): print('x' * 100)")))
    another = world.begin(single(**python("print('short')")))
    assert [world.settle(number) for number in (execution, another)] == ["COMPLETED"] * 2
    texts = [line[-1] for line in printed(world, execution)]
    assert texts == ["x" * 100] * 4 + [lines.CUT]
    assert [line[-1] for line in printed(world, another)] == ["short"]


@pytest.mark.parametrize("settings", [{"log_bytes": 1_000}], indirect=True)
def test_the_limit_counts_what_was_written_before(world: World) -> None:
    execution = world.begin(collection("{{ range(9) | list }}", spec="mode: sequential", **python("print('y' * 100)")))
    assert world.settle(execution) == "COMPLETED"
    assert [line[-1] for line in printed(world, execution)] == ["y" * 100] * 4 + [lines.CUT]


@pytest.mark.parametrize("settings", [{"log_bytes": 0}], indirect=True)
def test_nothing_is_kept_where_nothing_is_to_be_kept(world: World) -> None:
    execution = world.begin(single(**python("print('gone')")))
    assert world.settle(execution) == "COMPLETED"
    assert printed(world, execution) == []


def test_a_run_that_was_lost_writes_no_line(world: World) -> None:
    execution = world.begin(single(**python("print('who?')")))
    frame = world.one_frame(execution)
    stage = world.value("SELECT stage_id FROM noetl.stage")
    world.do(lines.write, (execution, stage, frame), 4711, [lines.Line(0, "t", "x", 0.0)], limit_bytes=10_000)
    assert printed(world, execution) == []


def test_pages_steps_and_the_last_lines(world: World) -> None:
    execution = world.begin(single(**python("for n in range(5): print(n)")))
    assert world.settle(execution) == "COMPLETED"
    first = world.do(lines.read, execution, limit=2)
    rest = world.do(lines.read, execution, after=first[-1]["log_id"], limit=9)
    assert [line["text"] for line in first + rest] == list("01234")
    for count, texts in ((0, []), (2, ["3", "4"]), (9, list("01234"))):
        before = world.do(lines.before_the_last, execution, count=count)
        assert [line[-1] for line in printed(world, execution, after=before)] == texts
    assert printed(world, execution, step="start") == printed(world, execution)
    assert printed(world, execution, step="other") == []


def failing(times: int, world: World) -> Any:
    """So many attempts of each item fail."""

    def act(given: Mapping[str, Any]) -> None:
        if world.probe.calls.count(given) <= times:
            raise ToolError(ErrorInfo("busy", "come back"))

    return act


@pytest.mark.parametrize("together", [False, True])
def test_retries_are_counted_by_frame_and_step(together: bool, world: World) -> None:
    world.together = together
    fill(world.settings.libpq_url, 5)
    world.credential("src", {"dsn": world.settings.libpq_url})
    world.probe.act = failing(2, world)
    execution = world.begin(cursor(policy={"rules": RETRY}))
    assert world.settle(execution) == "COMPLETED"
    assert world.column("SELECT retries FROM noetl.frame ORDER BY frame_index") == [6, 4]
    assert world.column("SELECT retries FROM noetl.stage") == [10]


def test_retries_of_a_plain_step_that_fails(world: World) -> None:
    world.probe.act = failing(9, world)
    execution = world.begin(single(policy={"rules": RETRY}))
    assert world.settle(execution) == "FAILED"
    assert world.column("SELECT retries FROM noetl.frame") == [2]
    assert world.column("SELECT retries FROM noetl.stage") == [2]
