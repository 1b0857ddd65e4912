"""``loop.aggregate``, ``idempotency_key`` and the settings of a loop, for loops of every kind."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from cases import CLAIM
from families import nothing_left, playbook
from services import make_settings
from world import World

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.settings import Settings
from noetl_celery.store import outbox

pytestmark = pytest.mark.integration

Source = Literal["cursor", "list"]
SOURCES: tuple[Source, ...] = ("cursor", "list")
OPS = """
        total: {sum: "{{ output.data.n }}"}
        mean: {mean: "{{ output.data.n }}"}
        big: {count: "{{ output.data.n > 3 }}"}
        least: {min: "{{ output.data.n }}"}
        most: {max: "{{ output.data.n }}"}
        begins: {first: "{{ iter.item.id }}"}
        ends: {last: "{{ iter.item.id }}"}
        some: {sample: "{{ output.data.n }}", limit: 3}
"""
EMPTY: dict[str, Any] = {
    "total": 0,
    "mean": None,
    "big": 0,
    "least": None,
    "most": None,
    "begins": None,
    "ends": None,
    "some": [],
}


@pytest.fixture
def settings(database: str, request: pytest.FixtureRequest) -> Settings:
    return make_settings(database, **getattr(request, "param", {}))


def loop(source: Source, *, spec: str = "", aggregate: str = OPS, step: str = "{}", **tool: Any) -> str:
    """Rows 1 to 7: of ``public.work``, three to a frame, or of a list, three at once."""
    task = {"kind": "probe", "input": {"id": "{{ iter.item.id }}", "key": "{{ idempotency_key }}"}} | tool
    rows = {
        "cursor": f"cursor: {{kind: postgres, auth: src, claim: {json.dumps(CLAIM)}}}",
        "list": "in: [{id: 1}, {id: 2}, {id: 3}, {id: 4}, {id: 5}, {id: 6}, {id: 7}]",
    }[source]
    frame = {"cursor": "frame: {max_rows: 3, row_concurrency: 3}", "list": "mode: parallel, max_in_flight: 3"}[source]
    return playbook(
        "test/aggregate",
        f"""
  - step: start
    spec: {step}
    loop:
      {rows}
      iterator: item
      aggregate: {{{aggregate.strip().replace(chr(10), ",")}}}
      spec: {{{spec or frame}}}
    tool: {json.dumps(task)}
    next: []
""",
        "{three: 3, seconds: 60}",
    )


def aggregate(world: World, execution: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = world.steps(execution)["start"]["result"]["aggregate"]
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_every_operation_over_the_rows_that_were_ok(here: World, source: Source) -> None:
    def act(given: Mapping[str, Any]) -> Any:
        if given["id"] == 7:
            raise ToolError(ErrorInfo("odd", "left out"))
        return {"n": {1: 4, 2: "2.5", 3: None, 4: 9, 5: 1, 6: "10"}[given["id"]]}

    here.probe.act = act
    best = "{policy: {failure: {mode: best_effort}}}"
    execution = here.begin(loop(source, step=best, aggregate=OPS.replace("output.data.n > 3", "iter.item.id > 3")))
    assert here.run(execution) == "COMPLETED"
    assert aggregate(here, execution) == {
        "total": 26.5,
        "mean": 5.3,
        "big": 3,
        "least": 1,
        "most": "2.5",
        "begins": 1,
        "ends": 6,
        "some": [4, "2.5", None],
    }
    nothing_left(here)


@pytest.mark.parametrize("source", SOURCES)
def test_of_no_rows(here: World, source: Source) -> None:
    here.q("DELETE FROM public.work")
    text = loop(source).replace("in: [{id: 1}, {id: 2}, {id: 3}, {id: 4}, {id: 5}, {id: 6}, {id: 7}]", "in: []")
    execution = here.begin(text)
    assert here.run(execution) == "COMPLETED"
    assert aggregate(here, execution) == EMPTY


@pytest.mark.parametrize("source", SOURCES)
def test_arcs_and_later_steps_see_it(here: World, source: Source) -> None:
    here.probe.act = lambda given: {"n": given["id"]}
    more = """
    next: {arcs: [{step: later, when: "{{ output.data.aggregate.total == 28 }}"}]}
  - step: later
    tool: {kind: noop, result: "{{ start.aggregate.mean }}"}
"""
    execution = here.begin(loop(source).replace("    next: []\n", more.lstrip("\n")))
    assert here.run(execution) == "COMPLETED"
    assert here.steps(execution)["later"]["result"] == 4


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("many", "`sum` needs a number, not 'many'"),
        (True, "`sum` needs a number, not True"),
        ([1], "`sum` needs a number, not [1]"),
        ("1e999", "`sum` needs a number below 1e+200, not inf"),
        (10**400, f"`sum` needs a number below 1e+200, not 1{'0' * 59}"),
    ],
)
def test_a_value_that_is_no_number_fails_its_row_and_only_that(here: World, value: Any, said: str) -> None:
    here.probe.act = lambda given: {"n": value if given["id"] == 3 else 1}
    execution = here.begin(loop("cursor", aggregate='total: {sum: "{{ output.data.n }}"}'))
    assert here.run(execution) == "COMPLETED"
    result = here.steps(execution)["start"]["result"]
    assert (result["ok"], result["failed"], result["aggregate"]) == (6, 1, {"total": 6})
    error = result["failures"][0]["error"]
    assert (error["kind"], error["message"]) == ("aggregate", f"loop.aggregate `total`: {said}")


# the key by which a target knows a row again


def keys(world: World) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for call in world.probe.calls:
        found.setdefault(call["id"], set()).add(call["key"])
    return found


@pytest.mark.parametrize("delay", [0, 30], ids=["in the lane", "parked"])
@pytest.mark.parametrize("source", SOURCES)
def test_the_key_of_a_row_is_the_same_in_all_its_attempts(here: World, source: Source, delay: float) -> None:
    def act(given: Mapping[str, Any]) -> None:
        if [call["id"] for call in here.probe.calls].count(given["id"]) < 3:
            raise ToolError(ErrorInfo("busy", "again"))

    here.probe.act = act
    rules = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": delay}}]
    execution = here.begin(loop(source, aggregate="", policy={"rules": rules}))
    while here.run(execution) == "RUNNING":
        here.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
        here.sweep()
    assert len(here.probe.calls) == 21
    found = keys(here)
    assert all(len(own) == 1 for own in found.values())
    assert len(set.union(*found.values())) == 7


def test_the_key_is_the_same_after_a_crash(world: World) -> None:
    execution = world.begin(loop("list", aggregate=""))
    frame = world.one_frame(execution)
    stage = world.value("SELECT stage_id FROM noetl.stage")
    world.lane(frame)
    before = keys(world)
    world.q("UPDATE noetl.row SET status = 'READY' WHERE frame_id = %s AND row_index = 2", frame)
    world.q("UPDATE noetl.frame SET status = 'RUNNING', open_rows = 1, ok_rows = 6, completed_at = NULL")
    world.do(outbox.add_lanes, execution, stage, frame, [0], "noetl.body", delay_seconds=30.0)
    other = world.another_process()
    lane = world.taken_lane(frame, 0, other)
    assert lane is not None
    lane.close()
    other.close()
    world.q("UPDATE noetl.run SET lease_until = clock_timestamp()")
    world.sweep()
    world.lane(frame)
    assert len(world.probe.calls) == 8
    assert keys(world) == before


# settings of loops


def test_the_numbers_of_a_frame_may_be_templates(here: World) -> None:
    numbers = '"{{ workload.three }}"'
    spec = f"""
        max_in_flight: "{{{{ workload.three - 1 }}}}",
        frame: {{max_rows: {numbers}, row_concurrency: {numbers}, lease_seconds: "{{{{ workload.seconds }}}}",
                heartbeat_seconds: "{{{{ workload.seconds / 2 }}}}", max_seconds: "{{{{ workload.seconds }}}}",
                max_bytes: "{{{{ workload.three * 1000 }}}}"}}
    """
    execution = here.begin(loop("cursor", spec=" ".join(spec.split()), aggregate=""), three=3, seconds=60)
    kept = here.value("SELECT settings FROM noetl.stage")
    assert kept == kept | {
        "max_in_flight": 2,
        "max_rows": 3,
        "row_concurrency": 3,
        "lease_seconds": 60.0,
        "heartbeat_seconds": 30.0,
        "max_seconds": 60.0,
        "max_bytes": 3000,
    }
    assert here.run(execution) == "COMPLETED"
    assert here.steps(execution)["start"]["result"]["frames"] == 3


@pytest.mark.parametrize("number", ["{{ 'none' }}", "{{ 0 }}", "{{ workload.nothing }}"])
def test_a_template_that_is_no_number_fails_the_step(here: World, number: str) -> None:
    execution = here.begin(loop("cursor", spec=f'frame: {{max_rows: "{number}"}}', aggregate=""))
    assert here.run(execution) == "FAILED"
    message = here.value("SELECT error ->> 'message' FROM noetl.execution WHERE execution_id = %s", execution)
    assert "max_rows" in message or "nothing" in message


def test_after_max_seconds_the_rest_of_a_frame_goes_to_a_fresh_lane(here: World) -> None:
    here.probe.act = lambda given: time.sleep(0.06)
    spec = "frame: {max_rows: 7, row_concurrency: 1, max_seconds: 0.1}"
    execution = here.begin(loop("cursor", spec=spec, aggregate=""))
    here.deliver()
    here.deliver()
    frame, lane = here.publisher.lanes()[0]
    here.publisher.sent.clear()
    here.lane(frame, lane)
    first = len(here.probe.calls)
    assert 1 <= first < 7
    assert here.publisher.lanes() == [(frame, lane)], "a fresh one takes the rest"
    assert here.settle(execution) == "COMPLETED"
    assert [call["id"] for call in here.probe.calls] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("mode", ["best_effort", "fail_fast", None])
@pytest.mark.parametrize("source", SOURCES)
def test_what_a_failed_row_means(here: World, source: Source, mode: str | None) -> None:
    """By default the rows of a cursor are on their own, and those of a list belong together."""

    def act(given: Mapping[str, Any]) -> None:
        if given["id"] == 2:
            raise ToolError(ErrorInfo("odd", "2 is odd"))

    here.probe.act = act
    step = f"{{policy: {{failure: {{mode: {mode}}}}}}}" if mode else "{}"
    execution = here.begin(loop(source, step=step, aggregate=""))
    goes_on = (mode or {"cursor": "best_effort", "list": "fail_fast"}[source]) == "best_effort"
    assert here.run(execution) == ("COMPLETED" if goes_on else "FAILED")
    rows = here.column("SELECT status FROM noetl.row ORDER BY frame_id, row_index")
    assert rows.count("FAILED") == 1
    if goes_on:
        assert len(here.probe.calls) == 7
    else:
        assert len(here.probe.calls) < 7
        assert here.value("SELECT error ->> 'message' FROM noetl.execution") == "2 is odd"
    nothing_left(here)


@pytest.mark.parametrize("source", SOURCES)
def test_what_parallel_rows_write_to_ctx_is_merged_per_key_in_row_order(here: World, source: Source) -> None:
    here.probe.act = lambda given: given["id"]
    writes = {"last": "{{ iter.item.id }}", "odd": "{{ iter.item.id if iter.item.id % 2 else ctx.odd | default(0) }}"}
    rules = [{"else": {"then": {"do": "continue", "set_ctx": writes}}}]
    execution = here.begin(loop(source, aggregate="", policy={"rules": rules}))
    assert here.run(execution) == "COMPLETED"
    assert here.value("SELECT ctx FROM noetl.execution") == {"last": 7, "odd": 7}
