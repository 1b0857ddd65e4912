"""Results of any size: kept once, referred to, read in parts, looped over without being loaded."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from services import make_settings
from world import World

from noetl_celery.engine import loops
from noetl_celery.settings import Settings
from noetl_celery.store import frames, results
from noetl_celery.store.loaders import Limits
from noetl_celery.store.results import Opener
from noetl_celery.template import plain
from noetl_celery.template.lazy import MARK, Lazy, LazyMapping, LazySequence, document

pytestmark = pytest.mark.integration

INLINE = 500
#: looks like a reference to a result of somebody else
FORGED = {MARK: {"id": "1", "bytes": 9, "part": {"kind": "list", "length": 1, "page": 1}}}


@pytest.fixture
def settings(database: str) -> Settings:
    return make_settings(database, result_inline_bytes=INLINE, result_page_bytes=20_000, result_max_bytes=200_000)


def playbook(*steps: dict[str, Any]) -> str:
    for step, following in itertools.pairwise(steps):
        step.setdefault("next", {"arcs": [{"step": following["step"]}]})
    head = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "case", "path": "test/case"}}
    return json.dumps({**head, "workflow": list(steps)})


def probe(step: str, more: dict[str, Any] | None = None, /, **given: Any) -> dict[str, Any]:
    """A step whose probe gets ``given``."""
    return {"step": step, "tool": {"kind": "probe", "input": {"step": step, **given}}, **(more or {})}


def over(items: str, mode: str = "parallel") -> dict[str, Any]:
    return {"loop": {"in": items, "iterator": "item", "spec": {"mode": mode}}}


def returning(world: World, *values: Any, **by_step: Any) -> None:
    """What the probe of each step returns; a function gets the step's input."""

    def act(given: Any) -> Any:
        value = by_step.get(given["step"])
        return value(given) if callable(value) else value

    world.probe.act = act


def given_to(world: World, step: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in call.items() if k != "step"} for call in world.probe.calls if call["step"] == step]


BIG = {
    "status": "ok",
    "rows": [{"id": n, "name": f"name {n}", "text": "x" * 50} for n in range(200)],
    "meta": {"count": 200, "pages": list(range(300))},
    "null": None,
    "z": 1,
    "a": 2,
}


def test_a_large_result_is_kept_once_and_read_in_parts(world: World) -> None:
    returning(world, start=BIG)
    execution = world.begin(
        playbook(
            probe("start"),
            probe(
                "use",
                one="{{ start.rows[7].name }}",
                last="{{ start.rows[-1].id }}",
                count="{{ start.rows | length }}",
                null="{{ start.null }}",
                slice="{{ start.data.rows[3:5] | map(attribute='id') | list }}",
                missing="{{ start.nothing | default('none') }}",
                keys="{{ start.keys() | list }}",
                ids="{{ start.rows | sum(attribute='id') }}",
                ref="{{ start._ref.bytes > 1000 }}",
                all="{{ result }}",
            ),
        )
    )
    assert world.run(execution) == "COMPLETED"
    (given,) = given_to(world, "use")
    assert given.pop("all") == BIG
    assert given == {
        "one": "name 7",
        "last": 199,
        "count": 200,
        "null": None,
        "slice": [3, 4],
        "missing": "none",
        "keys": list(BIG),
        "ids": sum(range(200)),
        "ref": True,
    }
    assert world.value("SELECT count(*) FROM noetl.result") == 1
    assert world.value("SELECT body FROM noetl.result") == BIG
    assert world.value("SELECT max(octet_length(result::text)) FROM noetl.stage") < INLINE
    assert world.value("SELECT max(octet_length(result::text)) FROM noetl.row") < INLINE
    kept = world.q("SELECT result_id, bytes, execution_id FROM noetl.result")[0]
    shown = {"_ref": {"result_id": str(kept["result_id"])}, "bytes": kept["bytes"]}
    assert kept["execution_id"] == execution
    assert world.steps(execution)["start"]["result"] == shown


def test_a_small_result_stays_in_its_row(world: World) -> None:
    small = {"a": "x" * (INLINE - 8)}
    assert len(json.dumps(small, separators=(",", ":"))) == INLINE
    returning(world, start=small)
    execution = world.begin(playbook(probe("start"), probe("use", ref="{{ start._ref is defined }}")))
    assert world.run(execution) == "COMPLETED"
    assert given_to(world, "use") == [{"ref": False}]
    assert world.value("SELECT count(*) FROM noetl.result") == 0


@pytest.mark.parametrize("value", [None, True, 5, "", "text", [], {}, [1], {"a": None}])
def test_nothing_inline_if_the_step_says_so(world: World, value: Any) -> None:
    returning(world, start=value)
    execution = world.begin(playbook(probe("start", {"inline_max_bytes": 0}), probe("use", all="{{ start }}")))
    assert world.run(execution) == "COMPLETED"
    assert given_to(world, "use") == [{"all": value}]
    assert world.value("SELECT count(*) FROM noetl.result") == int(isinstance(value, str | list | dict))


def test_a_long_text_is_kept_elsewhere(world: World) -> None:
    returning(world, start="long " * 1000)
    execution = world.begin(
        playbook(probe("start"), probe("use", all="{{ start }}", shout="{{ (start | upper)[:4] }}"))
    )
    assert world.run(execution) == "COMPLETED"
    assert given_to(world, "use") == [{"all": "long " * 1000, "shout": "LONG"}]
    assert world.value("SELECT max(octet_length(result::text)) FROM noetl.stage") < INLINE


def test_selected_fields_and_the_artifact(world: World) -> None:
    returning(world, start=BIG)
    artifact = {"kind": "artifact", "action": "get", "input": {"result_ref": "{{ start._ref }}"}}
    part = {"kind": "artifact", "path": "rows[3].name", "input": {"result_ref": "{{ start._ref }}"}}
    execution = world.begin(
        playbook(
            probe("start", {"output": {"store": {"kind": "kv"}, "output_select": ["status", "meta.count", "nope"]}}),
            probe(
                "use",
                all="{{ start }}",
                count="{{ start.meta.count }}",
                rows="{{ start.rows is defined }}",
                ref="{{ start._ref is defined }}",
            ),
            {"step": "load", "tool": artifact},
            {"step": "part", "tool": part},
            probe("process", row="{{ load.data.rows[5].id }}", all="{{ load.data }}", part="{{ part.data }}"),
        )
    )
    assert world.run(execution) == "COMPLETED", world.q("SELECT error FROM noetl.execution")
    (used,) = given_to(world, "use")
    place = used["all"].pop("_ref")
    assert used == {"all": {"status": "ok", "meta": {"count": 200}}, "count": 200, "rows": False, "ref": True}
    assert place == {"result_id": str(world.value("SELECT result_id FROM noetl.result")), "bytes": place["bytes"]}
    assert given_to(world, "process") == [{"row": 5, "all": BIG, "part": "name 3"}]
    assert world.value("SELECT count(*) FROM noetl.result") == 1, "what was fetched is not kept again"
    shown = world.steps(execution)["start"]["result"]
    assert {key: shown[key] for key in ("status", "meta.count", "bytes")} == {
        "status": "ok",
        "meta.count": 200,
        "bytes": place["bytes"],
    }


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"result_ref": "{{ none }}"}, "config", "must be what `_ref` of a result says"),
        ({"result_ref": {"result_id": "no"}}, "config", "invalid literal"),
        ({"result_ref": {"result_id": "12345"}}, "not_found", "there is no result with that reference"),
        ({"result_ref": "{{ start._ref }}", "path": "rows[999]"}, "not_found", "there is no `rows[999]`"),
        ({"result_ref": "{{ start._ref }}", "path": "rows["}, "config", "is no path"),
    ],
)
def test_an_artifact_that_is_not_there(world: World, given: Any, kind: str, message: str) -> None:
    returning(world, start=BIG)
    execution = world.begin(playbook(probe("start"), {"step": "load", "tool": {"kind": "artifact", "input": given}}))
    assert world.run(execution) == "FAILED"
    error = world.value("SELECT error FROM noetl.execution")
    assert error["kind"] == kind
    assert message in error["message"]


def test_results_of_tasks_are_kept_each_by_itself(world: World) -> None:
    tasks = [
        {"name": "first", "kind": "probe", "input": {"step": "first"}},
        {"name": "second", "kind": "probe", "input": {"step": "second", "inside": "{{ first.rows[1].id }}"}},
    ]
    returning(world, first=BIG, second=lambda given: ["y" * 600, given["inside"]])
    use = probe(
        "use", one="{{ start.results.first.rows[2].id }}", two="{{ start.results.second[1] }}", of="{{ start[1] }}"
    )
    execution = world.begin(playbook({"step": "start", "tool": tasks}, use))
    assert world.run(execution) == "COMPLETED"
    assert given_to(world, "use") == [{"one": 2, "two": 1, "of": 1}]
    assert world.value("SELECT count(*) FROM noetl.result") == 2, "the last task's result is the step's: kept once"


def called(world: World, *steps: dict[str, Any]) -> str:
    """A playbook that calls another one of these steps."""
    child = json.loads(playbook(*steps))
    child["metadata"] = {"name": "child", "path": "test/child"}
    world.register(json.dumps(child))
    return "test/child"


def test_what_a_child_made_is_referred_to_not_copied(world: World) -> None:
    """Also by a row that is parked, and goes on elsewhere, with it."""
    path = called(world, probe("start"))
    slow = {"policy": {"rules": [{"when": "{{ _attempt < 2 }}", "then": {"do": "retry", "delay": 60, "attempts": 3}}]}}
    tasks = [
        {"name": "call", "kind": "playbook", "path": path},
        {"name": "pause", "kind": "probe", "input": {"step": "pause", "id": "{{ call.rows[1].id }}"}, "spec": slow},
        {"name": "last", "kind": "noop", "result": "{{ [call.rows[2].id, call.meta.count] }}"},
    ]
    returning(world, start=BIG)
    execution = world.begin(
        playbook(
            {"step": "both", "tool": tasks},
            {"step": "alone", "tool": {"kind": "playbook", "path": path}},
            probe("use", id="{{ alone.rows[3].id }}", both="{{ both }}", result="{{ alone.meta.count }}"),
        )
    )
    world.run(execution)
    (position,) = world.column("SELECT position FROM noetl.row WHERE status = 'PARKED'")
    assert len(json.dumps(position)) < 3000
    assert set(position["results"]["call"]) == {MARK}
    world.q("UPDATE noetl.wakeup SET due_at = clock_timestamp()")
    assert world.settle(execution) == "COMPLETED", world.q("SELECT error FROM noetl.row")
    assert given_to(world, "pause") == [{"id": 1}] * 2
    assert given_to(world, "use") == [{"id": 3, "both": [2, 200], "result": 200}]
    assert world.value("SELECT count(*) FROM noetl.result") == 2, "one for each child, none for the caller"


# -- loops -------------------------------------------------------------------------------------------------------------


def test_a_loop_over_a_kept_list_and_over_its_results(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FRAME_ROWS", 80)
    returning(
        world, start=BIG, each=lambda given: {"n": given["id"], "at": given["at"]}, again=lambda given: given["n"]
    )
    execution = world.begin(
        playbook(
            probe("start"),
            probe("each", over("{{ start.rows }}"), id="{{ iter.item.id }}", at="{{ iter.index }}"),
            probe("again", over("{{ each.results[50:] }}", "sequential"), n="{{ iter.item.n }}", at="{{ iter.index }}"),
            probe(
                "use",
                at="{{ each.results[150].n }}",
                data="{{ each.data[-1] }}",
                counts="{{ [each.count, each.results | length, each.stats.ok] }}",
                sum="{{ each.results | sum(attribute='n') }}",
                slice="{{ again.results[:3] }}",
            ),
        )
    )
    assert world.run(execution) == "COMPLETED"
    assert sorted(call["at"] for call in given_to(world, "each")) == list(range(200))
    assert all(call["at"] == call["id"] for call in given_to(world, "each"))
    assert [(call["at"], call["n"]) for call in given_to(world, "again")] == [(n, n + 50) for n in range(150)]
    assert given_to(world, "use") == [
        {
            "at": 150,
            "data": {"n": 199, "at": 199},
            "counts": [200, 200, 200],
            "sum": sum(range(200)),
            "slice": [50, 51, 52],
        }
    ]
    made = world.q("SELECT step_name, rows FROM noetl.frame JOIN noetl.stage USING (stage_id) ORDER BY frame_id")
    assert [frame["rows"] for frame in made if frame["step_name"] == "each"] == [80, 80, 40]
    assert [frame["rows"] for frame in made if frame["step_name"] == "again"] == [80, 70]
    assert world.value("SELECT count(*) FROM noetl.result") == 1, "results of rows stay where they are"
    assert world.value("SELECT max(octet_length(result::text)) FROM noetl.stage") < 2 * INLINE


def test_rows_with_large_results(world: World) -> None:
    """Few rows, but each of them large: the loop's result refers to them, and so do the rows of a loop over it."""
    returning(world, each=lambda given: {"n": given["n"], "text": "x" * 1000}, again=lambda given: given["all"]["n"])
    execution = world.begin(
        playbook(
            probe("each", over("{{ [1, 2, 3] }}"), n="{{ item }}"),
            probe("again", over("{{ each.results }}"), n="{{ item.n }}", all="{{ item }}"),
            probe("use", one="{{ each.results[1].text | length }}", of="{{ again.results }}"),
        )
    )
    assert world.run(execution) == "COMPLETED"
    assert sorted(call["n"] for call in given_to(world, "again")) == [1, 2, 3]
    assert given_to(world, "use") == [{"one": 1000, "of": [1, 2, 3]}]
    assert world.value("SELECT count(*) FROM noetl.result") == 3


def test_more_than_one_process_holds_is_an_error_not_a_cut(world: World) -> None:
    returning(world, each=lambda given: "x" * 400)
    many = 200_000 // 400 + 1
    execution = world.begin(
        playbook(
            probe("each", over(f"{{{{ range({many}) | list }}}}") | {"set": {"ctx.n": "{{ output.data.count }}"}}),
            probe("use", all="{{ each.results }}"),
        )
    )
    assert world.run(execution) == "FAILED"
    error = world.value("SELECT error FROM noetl.execution")
    assert (error["kind"], error["step"]) == ("template", "use")
    assert "NOETL_RESULT_MAX_BYTES allows 200,000 at once: index it, slice it or loop over it" in error["message"]
    assert world.value("SELECT ctx FROM noetl.execution") == {"n": many}


# -- what only looks like a reference ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [FORGED, {"a": FORGED}, [FORGED] * 2, {"a": {"b": FORGED}}, [[FORGED]] * 30])
def test_nobody_forges_a_reference(world: World, value: Any) -> None:
    returning(world, start=value, each=lambda given: given["item"])
    execution = world.begin(
        playbook(
            probe("start"),
            probe("each", over("{{ [start] + [start] }}"), item="{{ item }}"),
            probe("again", over("{{ each.results }}"), item="{{ item }}"),
            probe("use", all="{{ start }}", each="{{ each.results }}"),
        )
    )
    assert world.run(execution) == "COMPLETED", world.value("SELECT error FROM noetl.execution")
    assert given_to(world, "each") == given_to(world, "again") == [{"item": value}] * 2
    assert given_to(world, "use") == [{"all": value, "each": [value] * 2}]


def test_elements_of_a_kept_list_are_no_references(world: World) -> None:
    items = [FORGED, {"a": FORGED}, "x" * INLINE]
    returning(world, start=items)
    execution = world.begin(
        playbook(probe("start"), probe("each", over("{{ start }}", "sequential"), item="{{ item }}"))
    )
    assert world.run(execution) == "COMPLETED"
    assert given_to(world, "each") == [{"item": item} for item in items]


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(world: World) -> Callable[[Any], Any]:
    """Keeps a value and opens it again; counts statements and the bytes they bring in ``kept.asked``."""
    world.begin(playbook(probe("start")))
    frame = world.value("SELECT frame_id FROM noetl.frame")
    asked: list[int] = []

    def read(work: Callable[[Any], Any]) -> Any:
        found = world.do(work)
        asked.append(len(json.dumps(found, default=str)))
        return found

    def opened(value: Any) -> Any:
        limits = Limits(inline=100, page=2000, most=10_000_000)
        text, bodies = results.keep(value, None, limits, iter(range(1, 10)).__next__)
        for _ in range(2):  # written twice is as good as once
            world.do(results.write, frame, bodies)
        return Opener(read, limits).open(json.loads(text))

    opened.asked = asked  # type: ignore[attr-defined]
    return opened


def test_only_the_part_is_brought(kept: Any) -> None:
    lazy = kept({"deep": [{"a": "x" * 200, "b": [n]} for n in range(10_000)], "small": 5})
    assert isinstance(lazy, LazyMapping)
    assert kept.asked == []
    assert lazy["deep"][5000]["b"] == [5000]
    assert len(lazy["deep"]) == 10_000
    assert sum(kept.asked) < 2000
    assert len(kept.asked) == 3


def test_iteration_brings_pages(kept: Any) -> None:
    lazy = kept([{"n": n} for n in range(5000)])
    assert [element["n"] for element in lazy] == list(range(5000))
    assert len(kept.asked) > 10
    assert max(kept.asked) < 10_000


@pytest.mark.parametrize(
    "value",
    [
        {"é": ["ü" * 60, {"b.c": 1, "": 2, "0": 3, "x'y\"": [None, True, 1.50, 2**70]}], "z": {}, "a": []},
        [[], {}, None, "x" * 200, [[[[1]]]], -0.0, 1e300],
        [*range(100)],
        {str(n): n for n in range(100)},
    ],
)
def test_what_was_kept_is_what_comes_back(kept: Any, value: Any) -> None:
    lazy = kept(value)
    assert isinstance(lazy, Lazy)
    assert lazy == value
    assert plain(lazy) == value
    assert json.dumps(plain(lazy)) == json.dumps(value)
    assert walked(lazy) == value
    again = document(lazy)
    assert MARK in again


def walked(value: Any) -> Any:
    """A copy made by iteration alone."""
    if isinstance(value, dict) or hasattr(value, "keys"):
        return {key: walked(item) for key, item in value.items()}
    return [walked(item) for item in value] if isinstance(value, list | LazySequence) else value


# -- memory ------------------------------------------------------------------------------------------------------------


def peak_of(world: World, rows: int) -> tuple[int, float]:
    """Frames and, at most, megabytes of a loop over so many results of a loop; what lanes do is done in SQL."""
    execution = world.begin(
        playbook(
            probe("each", over("{{ [1] }}")),
            probe(
                "again",
                over("{{ each.results }}") | {"set": {"ctx.sum": "{{ output.data.results | sum(attribute='n') }}"}},
            ),
        )
    )
    stage, frame = (
        world.value(f"SELECT {name} FROM noetl.frame WHERE execution_id = %s", execution)
        for name in ("stage_id", "frame_id")
    )
    more = """INSERT INTO noetl.row (frame_id, row_index, status)
              SELECT %s, n, 'READY' FROM generate_series(1, %s) AS n"""
    world.q(more, frame, rows - 1)
    world.q("UPDATE noetl.frame SET open_rows = %s, rows = %s WHERE frame_id = %s", rows, rows, frame)
    done = 0
    tracemalloc.start()
    try:
        while world.status(execution) == "RUNNING":
            frame = world.value(
                "SELECT frame_id FROM noetl.frame WHERE execution_id = %s AND status = 'RUNNING'", execution
            )
            finished = """UPDATE noetl.row SET status = 'OK', result = '{"n": 1, "text": "twenty characters .."}'
                          WHERE frame_id = %s"""
            world.q(finished, frame)
            world.q("UPDATE noetl.frame SET open_rows = 0, ok_rows = rows WHERE frame_id = %s", frame)
            world.do(frames.end, frame, republish_seconds=30.0)
            world.orchestrate(execution)
            done += 1
        return done, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
        assert world.value("SELECT ctx FROM noetl.execution WHERE execution_id = %s", execution) == {"sum": rows}
        assert world.value("SELECT count(*) FROM noetl.stage WHERE stage_id = %s AND status = 'COMPLETED'", stage) == 1


def test_memory_does_not_grow_with_the_results(world: World) -> None:
    peak_of(world, 1000)  # imports and caches
    few, little = peak_of(world, 20_000)
    many, more = peak_of(world, 200_000)
    assert (few, many) == (3, 21)
    assert more < little * 1.5 + 1
