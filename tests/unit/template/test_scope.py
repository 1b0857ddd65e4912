"""Which name wins, and how a result answers for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from noetl_celery.template import compile_value, scope


def base(**given: Any) -> Mapping[str, Any]:
    return scope(**{"execution_id": 12, "workload": {}, "ctx": {}, "results": {}, **given})


def render(template: str, names: Mapping[str, Any]) -> Any:
    return compile_value(template, place="p").render(names)


LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("extra", {"extra": {"x": "extra"}}),
    ("names", {"names": {"x": "names"}}),
    ("pipeline", {"pipeline": {"x": "pipeline"}}),
    ("iter", {"iter": {"x": "iter", "index": 0}}),
    ("args", {"args": {"x": "args"}}),
    ("ctx", {"ctx": {"x": "ctx"}}),
    ("results", {"results": {"x": "results"}}),
    ("workload", {"workload": {"x": "workload"}}),
]


@pytest.mark.parametrize("given", [layer for _, layer in LAYERS])
def test_a_last_name_gives_way_to_every_other(given: dict[str, Any]) -> None:
    names = base(**given, last={"x": "last", "answer": {"n": 1}})
    assert names["x"] != "last"
    assert "answer" in names
    assert "nothing" not in names
    assert render("{{ [answer.n, answer.data.n] }}", names) == [1, 1]


@pytest.mark.parametrize("first", range(len(LAYERS)))
def test_the_first_layer_wins(first: int) -> None:
    given: dict[str, Any] = {}
    for _, layer in LAYERS[first:]:
        given.update(layer)
    names = base(**given)
    assert names["x"] == LAYERS[first][0]
    assert "x" in names


def test_fixed_names() -> None:
    names = base(
        workload={"ctx": "shadowed", "n": 1},
        ctx={"workload": "shadowed", "c": 2},
        spec={"s": 3},
        iter={"item": 4, "index": 5, "parent": {"index": 9}},
        iterator="item",
        args={"g": 6},
        output={"status": "ok"},
        event={"name": "loop.done"},
        extra={"_attempt": 2},
    )
    expected = {
        "execution_id": "12",
        "job.uuid": "12",
        "job.execution_id": "12",
        "workload.n": 1,
        "n": 1,
        "ctx.c": 2,
        "c": 2,
        "spec.s": 3,
        "iter.item": 4,
        "item": 4,
        "iter.index": 5,
        "loop_index": 5,
        "index": 5,
        "iter.parent.index": 9,
        "parent.index": 9,
        "args.g": 6,
        "g": 6,
        "output.status": "ok",
        "outcome.status": "ok",
        "event.name": "loop.done",
        "_attempt": 2,
    }
    assert {key: render("{{ " + key + " }}", names) for key in expected} == expected


def test_index_of_the_loop_gives_way_to_the_authors_names() -> None:
    assert base(iter={"index": 1}, workload={"index": "mine"})["index"] == "mine"
    assert base(iter={"index": {"id": 1}}, iterator="index", workload={"index": "mine"})["index"] == {"id": 1}


def test_what_is_not_given_is_missing() -> None:
    names = base()
    for name in ("iter", "output", "event", "loop_index", "result", "anything"):
        assert name not in names
        with pytest.raises(KeyError):
            names[name]
    assert render("{{ args.x | default(1) }}", names) == 1


def test_an_output_of_none_is_there() -> None:
    assert render("{{ output }}", base(output=None)) is None


def test_result_is_the_previous_steps_unless_something_is_called_so() -> None:
    assert base(previous=lambda: 7)["result"] == 7
    assert base(previous=lambda: 7, workload={"result": 8})["result"] == 8
    assert render("{{ result.data }}", base(previous=lambda: [1])) == [1]


@pytest.mark.parametrize("value", [[1, 2], 5, "text", None, True, {"a": 1}])
@pytest.mark.parametrize("expression", ["{{ st.data }}", "{{ st.result }}", "{{ st['data'] }}", "{{ (st).data }}"])
def test_a_result_without_that_key_is_its_own_data(value: Any, expression: str) -> None:
    assert render(expression, base(results={"st": value})) == value
    assert render(expression, base(pipeline={"st": value})) == value


def test_a_result_with_that_key_gives_the_key() -> None:
    names = base(results={"st": {"data": 1, "result": 2, "results": {"t": 3}}}, task_results={"st": {"t": "task"}})
    assert render("{{ st.data }}{{ st.result }}{{ st.results.t }}", names) == "123"


def test_results_of_single_tasks() -> None:
    names = base(results={"st": [1]}, task_results={"st": {"fetch": {"rows": [9]}}})
    assert render("{{ st.results.fetch.rows[0] }}", names) == 9
    assert render("{{ st.results.other | default('none') }}", names) == "none"
    assert render("{{ st.results | default('none') }}", base(results={"st": [1]})) == "none"


def test_other_values_do_not_answer_for_themselves() -> None:
    names = base(workload={"w": {"a": 1}}, names={"st": {"a": 1}}, results={"st": [1]}, ctx={"c": {"st": [1]}})
    for expression in ("w.data", "st.data", "c.st.data", "nothing.data"):
        assert render("{{ " + expression + " | default('none') }}", names) == "none"


def test_a_bare_output_answers_for_itself_an_envelope_does_not_need_to() -> None:
    assert render("{{ output.data }}", base(output=[1])) == [1]
    assert render("{{ output.data }}", base(output={"status": "error", "data": None})) is None


class Loading(Mapping[str, Any]):
    """Step results that are loaded when they are asked for."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def __getitem__(self, name: str) -> Any:
        if name not in ("big", "small"):
            raise KeyError(name)
        self.loaded.append(name)
        return {"name": name}

    def __contains__(self, name: object) -> bool:
        return name in ("big", "small")

    def __iter__(self) -> Iterator[str]:
        return iter(("big", "small"))

    def __len__(self) -> int:
        return 2


def test_results_are_loaded_only_when_used() -> None:
    results = Loading()
    names = base(results=results, workload={"x": 1})
    assert render("{{ x }} {{ small.name }} {{ small.data.name }}", names) == "1 small small"
    assert results.loaded == ["small"]


def test_all_names_can_be_listed() -> None:
    names = base(workload={"w": 1}, ctx={"c": 1}, results={"r": 1})
    assert {"w", "c", "r", "execution_id", "workload"} <= set(names)
    assert len(names) == len(set(names))
