"""What rows leave behind: results that cannot be kept are error outcomes, never a lane that dies of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cases import collection, cursor, fill, single
from services import credential_of, make_settings
from world import World, withdraw_stop

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.settings import Settings

pytestmark = pytest.mark.integration

WAIT = {"policy": {"rules": [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 5}}]}}


@pytest.fixture
def settings(database: str) -> Settings:
    return make_settings(database, result_max_bytes=1000)


def outcome(world: World) -> dict[str, Any]:
    """Of the only row, with no lane left on it."""
    assert world.value("SELECT count(*) FROM noetl.run") == 0
    return world.q("SELECT status, result, error, ctx FROM noetl.row")[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "",
        [],
        {},
        {"z": 1, "a": {"b": [1.5, None, True]}},
        "ä 漢 😀 \u2028 ' \" \\",
        r"a backslash and u0000: \u0000 \\u0000",
        2**70,
        1e300,
    ],
)
def test_values_come_back_as_they_were(world: World, value: Any) -> None:
    world.probe.act = lambda given: value
    execution = world.begin(single())
    assert world.run(execution) == "COMPLETED"
    assert outcome(world)["result"] == value
    assert list(value) == list(outcome(world)["result"]) if isinstance(value, dict) else True


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("x" * 2000, "result_too_large", r"more than 1,000 bytes"),
        ([10**5000], "result_type", "4300 digits"),
        ("ä" * 600, "result_too_large", "NOETL_RESULT_MAX_BYTES allows 1,000"),
        ({"a": ["b\0c"]}, "result_type", "NUL"),
        ({"b\0": 1}, "result_type", "NUL"),
        ("half \ud800 pair", "result_type", "surrogate"),
        (object(), None, "object"),
    ],
)
def test_values_that_cannot_be_kept_are_errors(world: World, value: Any, kind: str | None, says: str) -> None:
    world.probe.act = lambda given: value
    execution = world.begin(single())
    assert world.run(execution) == "FAILED"
    found = outcome(world)
    assert found["status"] == "FAILED"
    assert kind is None or found["error"]["kind"] == kind
    assert says in found["error"]["message"]
    assert world.value("SELECT error FROM noetl.execution")["step"] == "start"


@pytest.mark.parametrize("message", ["a\0b", "half \ud800 pair", "x" * 100_000])
def test_error_messages_of_any_kind_are_kept(world: World, message: str) -> None:
    def act(given: Any) -> Any:
        raise ToolError(ErrorInfo("client_error", message))

    world.probe.act = act
    execution = world.begin(single())
    assert world.run(execution) == "FAILED"
    assert outcome(world)["error"]["kind"] == "client_error"
    assert outcome(world)["error"]["message"]
    assert world.value("SELECT max(length(result::text)) FROM noetl.event") < 2000


Act = Callable[[Any], Any]


@pytest.mark.parametrize("text", ["a\0b", "half \ud800 pair"])
@pytest.mark.parametrize("place", ["iter", "ctx"])
def test_odd_text_in_a_parked_position(world: World, text: str, place: str) -> None:
    """What earlier tasks left is saved with the row: odd text there neither loses the lane nor the row."""

    def act(given: Any) -> Any:
        if len(world.probe.calls) == 1:
            return text
        if len(world.probe.calls) == 2:
            raise ToolError(ErrorInfo("rate_limit", text, retryable=True, retry_after=60.0))
        return given

    world.probe.act = act
    tasks = [
        {"name": "first", "kind": "probe", "set": {f"{place}.kept": "{{ output }}"}},
        {"name": "second", "kind": "probe", "spec": WAIT, "input": {"kept": f"{{{{ {place}.kept }}}}"}},
    ]
    execution = world.begin(collection("{{ [1] }}").replace(_probe(), json.dumps(tasks)))
    world.run(execution)
    assert world.value("SELECT count(*) FROM noetl.run") == 0
    if world.value("SELECT status FROM noetl.row") == "PARKED":
        world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
        world.sweep()
    status = world.run(execution)
    assert status in {"COMPLETED", "FAILED"}
    if status == "FAILED":
        assert outcome(world)["error"]["kind"] == "result_type"


def _probe() -> str:
    return json.dumps({"kind": "probe", "input": {"item": "{{ iter.item }}"}})


@pytest.mark.parametrize(
    "expression", ["{{ 'nan' | float }}", "{{ 'inf' | float }}", "{{ output ~ '\\0' }}", "{{ now() }}"]
)
def test_odd_values_written_to_ctx(world: World, expression: str) -> None:
    world.probe.act = lambda given: "x"
    execution = world.begin(single(set={"ctx.odd": expression}))
    assert world.run(execution) in {"COMPLETED", "FAILED"}
    assert world.value("SELECT count(*) FROM noetl.run") == 0
    assert outcome(world)["status"] in {"OK", "FAILED"}


def test_a_cursor_loop_keeps_no_result_of_its_rows(world: World, database: str) -> None:
    world.credential("src", credential_of(database))
    fill(database, 3)
    world.probe.act = lambda given: "x" * 900
    execution = world.begin(cursor())
    assert world.run(execution) == "COMPLETED"
    assert world.column("SELECT result FROM noetl.row") == [None] * 3
    assert set(world.steps(execution)["start"]["result"]) == {"processed", "ok", "failed", "frames", "failures"}


def test_failures_are_counted_and_the_first_are_shown(world: World, database: str) -> None:
    world.credential("src", credential_of(database))
    fill(database, 40)

    def act(given: Any) -> Any:
        if given["item"]["id"] % 4:
            raise ToolError(ErrorInfo("client_error", f"no {given['item']['id']}", status=404))

    world.probe.act = act
    execution = world.begin(cursor(frame="max_rows: 10, row_concurrency: 4"))
    assert world.run(execution) == "COMPLETED"
    result = world.steps(execution)["start"]["result"]
    assert (result["ok"], result["failed"], result["processed"]) == (10, 30, 40)
    assert [failure["item"]["id"] for failure in result["failures"][:4]] == [1, 2, 3, 5]
    assert len(result["failures"]) == 20
    assert result["failures"][0]["error"]["message"] == "no 1"


def test_ctx_writes_of_a_sequence_are_seen_by_the_next_row_and_by_the_next_lane(world: World, database: str) -> None:
    """Also when a fresh lane goes on in the middle of the frame."""
    from noetl_celery.runtime.process import announce_stop

    def act(given: Any) -> Any:
        if len(world.probe.calls) == 3:
            announce_stop(60)
        return (given["total"] or 0) + given["item"]

    world.probe.act = act
    tool = {"input": {"item": "{{ iter.item }}", "total": "{{ ctx.total | default(0) }}"}}
    playbook = collection("{{ [1, 2, 3, 4, 5] }}", spec="mode: sequential", set={"ctx.total": "{{ output }}"}, **tool)
    execution = world.begin(playbook)
    world.deliver()
    assert world.rows(world.one_frame(execution)) == ["OK"] * 3 + ["READY"] * 2
    withdraw_stop()
    assert world.run(execution) == "COMPLETED"
    assert [call["total"] for call in world.probe.calls] == [0, 1, 3, 6, 10]
    assert world.value("SELECT ctx FROM noetl.execution") == {"total": 15}


def test_ctx_writes_of_parallel_rows_merge_in_row_order(world: World) -> None:
    import time

    world.probe.act = lambda given: time.sleep(0.05 if given["item"] == 1 else 0) or given["item"]
    tool = {"set": {"ctx.last": "{{ output }}", "ctx.first": "{{ ctx.first | default(output) }}"}}
    execution = world.begin(collection("{{ [1, 2, 3] }}", **tool))
    assert world.run(execution) == "COMPLETED"
    assert world.value("SELECT ctx FROM noetl.execution") == {"last": 3, "first": 3}
