"""Lazy values: in every template they mean what they stand for, and load only what was asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl_celery.errors import TemplateError
from noetl_celery.template import compile_value, jsonable, plain, reference, scope
from noetl_celery.template.lazy import LazyMapping, LazySequence, Loader, Part, Path, Selected, StoredText, made


class Kept:
    """A value that is kept elsewhere, in a test: in memory. Containers stay lazy however small they are."""

    def __init__(self, value: Any, *, page: int = 2) -> None:
        self.value, self.page = value, page
        self.asked: list[tuple[Any, ...]] = []

    def lazy(self) -> Any:
        part = self.part(())
        assert part is not None
        self.asked.clear()
        return made(self, (), part)

    def at(self, path: Path) -> Any:
        value = self.value
        for key in path:
            if isinstance(value, list) != isinstance(key, int):
                raise KeyError(key)
            value = value[key]
        return value

    def part(self, path: Path) -> Part | None:
        self.asked.append(("part", path))
        try:
            value = self.at(path)
        except (KeyError, IndexError):
            return None
        if isinstance(value, dict):
            return Part("mapping", length=len(value), page=self.page)
        if isinstance(value, list):
            return Part("list", length=len(value), page=self.page)
        return Part("value", value)

    def child(self, path: Path) -> Any:
        part = self.part(path)
        assert part is not None
        return made(self, path, part)

    def keys(self, path: Path) -> Sequence[str]:
        self.asked.append(("keys", path))
        return list(self.at(path))

    def entries(self, path: Path, start: int, stop: int) -> Sequence[tuple[str, Any]]:
        assert stop - start <= self.page
        return [(key, self.child((*path, key))) for key in list(self.at(path))[start:stop]]

    def elements(self, path: Path, start: int, stop: int) -> Sequence[Any]:
        self.asked.append(("elements", path, start, stop))
        assert stop - start <= self.page
        return [self.child((*path, index)) for index in range(len(self.at(path)))[start:stop]]

    def whole(self, path: Path, stretch: range | None = None) -> Any:
        self.asked.append(("whole", path))
        found = copy.deepcopy(self.at(path))
        return found if stretch is None else found[stretch.start : stretch.stop]

    def place(self) -> Mapping[str, Any]:
        return {"result_id": "7", "bytes": 1000}

    def reference(self, path: Path, part: Part, first: int | None = None) -> Mapping[str, Any]:
        return {"path": list(path), "kind": part.kind, "length": part.length, "first": first}


def rendered(template: Any, value: Any, *, lazily: bool = False) -> Any:
    names = scope(execution_id=1, workload={}, ctx={"k": "a", "n": 1}, results={"s": value})
    compiled = compile_value(template, place="a test")
    return compiled.lazy(names) if lazily else compiled.render(names)


KEYS = st.sampled_from(["a", "b", "c", "data", "results", "items", "count", "name"])
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["", "a", "b", "text"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5))
CONTAINERS = st.lists(VALUES, max_size=6) | st.dictionaries(KEYS, VALUES, max_size=6)
STEPS = st.sampled_from(
    [
        *(f".{key}" for key in ("a", "b", "c", "data", "results", "items", "count", "missing")),
        *("[0]", "[1]", "[-1]", "[99]", "['a']", "[ctx.k]", "[ctx.n]", "[1:]", "[:2]", "[::-1]", "[-2:]", "[5:2]"),
    ]
)
#: what is done with a part of the value, written as X
USES = [
    *(
        "X",
        "X | length",
        "X | list",
        "X | tojson",
        "X | first",
        "X | last",
        "X | sort",
        "X | sum",
        "X | reverse | list",
    ),
    *("X | map(attribute='a') | list", "X | selectattr('a') | list", "X | selectattr('a', 'defined') | list"),
    *("X is mapping", "X is sequence", "X is iterable", "X is string", "X is number", "X is defined", "X is none"),
    *("'a' in X", "1 in X", "none in X", "[1] in X", "X == X", "X == [1, 2]", "X == {'a': 1}", "X != []", "not X"),
    *("X.items() | list", "X.keys() | list", "X.values() | list", "X.get('a')", "X.get('b', 3)", "X | items | list"),
    *("X | dictsort", "X | join(',')", "X | unique | list", "X | batch(2) | list", "X | max", "X + [1]", "[1] + X"),
    *("X * 2", "2 * X", "X ~ '!'", "X | string", "X | default(5)", "X if X else 0", "[X, {'k': X}]", "X.count(1)"),
    *(
        "X.index(1)",
        "X.plain()",
        "X.append(1)",
        "X.pop()",
        "dict(X)",
        "X | groupby('a') | length",
        "X < [2]",
        "[0] < X",
    ),
    *("X | map('length') | list", "X | select | list", "X | reject | list", "X | slice(2) | list", "X | count"),
    *("X._children", "X | attr('_loader')", "X.items", "X.results.a", "X | upper", "X is eq X", "X | tojson(indent=1)"),
]
FORMS = [
    "{{ %s }}",
    "v: {{ %s }}",
    "{%% for i in (%s) %%}{{ loop.index }}{{ i }};{%% endfor %%}",
    "{%% if (%s) %%}y{%% endif %%}",
]


def outcome(template: str, value: Any) -> tuple[str, Any]:
    try:
        return "value", rendered(template, value)
    except TemplateError:
        return "error", None


@settings(max_examples=400, deadline=None)
@given(value=CONTAINERS, steps=st.lists(STEPS, max_size=3), use=st.sampled_from(USES), form=st.sampled_from(FORMS))
def test_a_template_gives_the_same_for_lazy_and_plain(value: Any, steps: list[str], use: str, form: str) -> None:
    template = form % use.replace("X", "s" + "".join(steps))
    given_plain, given_lazy = outcome(template, copy.deepcopy(value)), outcome(template, Kept(value).lazy())
    assert given_plain == given_lazy, template
    assert types(given_plain[1]) == types(given_lazy[1]), template


def types(value: Any) -> Any:
    """What tools would see: exact types, all the way down."""
    if isinstance(value, dict):
        return (type(value), [(key, types(item)) for key, item in value.items()])
    if isinstance(value, list):
        return (type(value), [types(item) for item in value])
    return type(value)


@given(value=CONTAINERS, template=st.sampled_from(["{{ s }}", "{{ s.a }}", "{{ [s] }}", "{{ {'a': s, 'b': s} }}"]))
def test_what_leaves_a_template_is_plain(value: Any, template: str) -> None:
    kind, found = outcome(template, Kept(value).lazy())
    if kind == "value":
        assert types(found) == types(jsonable(found))


def test_a_chain_asks_only_for_what_is_on_its_way() -> None:
    kept = Kept({"a": {"b": [{"c": "found", "d": "x" * 1000}], "other": [1] * 1000}, "more": ["y"] * 1000})
    assert rendered("{{ s.a.b[0].c }}", kept.lazy()) == "found"
    assert kept.asked == [("part", ("a",)), ("part", ("a", "b")), ("part", ("a", "b", 0)), ("part", ("a", "b", 0, "c"))]


def test_numbers_and_keys_load_no_values() -> None:
    kept = Kept({"a": [1, 2, 3], "b": 2})
    assert rendered("{{ [s.a | length, s | length, 'b' in s, 'x' in s, s is mapping] }}", kept.lazy()) == [
        3,
        2,
        True,
        False,
        True,
    ]
    assert {asked[0] for asked in kept.asked} == {"part", "keys"}


def test_iteration_reads_page_by_page() -> None:
    kept = Kept(list(range(5)))
    lazy = kept.lazy()
    walk = iter(lazy)
    assert next(walk) == 0
    assert [asked for asked in kept.asked if asked[0] == "elements"] == [("elements", (), 0, 2)]
    assert [*walk] == [1, 2, 3, 4]
    assert [*reversed(lazy)] == [4, 3, 2, 1, 0]


def test_a_part_is_asked_for_once_while_it_is_remembered() -> None:
    kept = Kept({"a": {"b": 1}})
    lazy = kept.lazy()
    for _ in range(3):
        assert rendered("{{ s.a.b }}", lazy) == 1
    assert len(kept.asked) == 2


def test_a_stretch_of_a_list_stays_lazy() -> None:
    kept = Kept({"rows": list(range(10))}, page=100)
    stretch = rendered("{{ s.rows[2:8][1:4] }}", kept.lazy(), lazily=True)
    assert isinstance(stretch, LazySequence)
    assert [len(stretch), stretch[0], stretch[-1], [*stretch], plain(stretch)] == [3, 3, 5, [3, 4, 5], [3, 4, 5]]
    assert reference(stretch) == {"path": ["rows"], "kind": "list", "length": 3, "first": 3}
    assert reference(kept.lazy()) == {"path": [], "kind": "mapping", "length": 1, "first": None}


def test_a_condition_loads_nothing_to_be_true() -> None:
    kept = Kept([1, 2, 3])
    names = scope(execution_id=1, workload={}, ctx={}, results={"s": kept.lazy()})
    assert compile_value("{{ s }}", place="a test").test(names)
    assert kept.asked == []


def test_a_kept_value_says_where_it_is() -> None:
    values: list[Any] = [{"a": {}}, [1]]
    for value in values:
        assert rendered("{{ s._ref }}", Kept(value).lazy()) == {"result_id": "7", "bytes": 1000}
    assert rendered("{{ [s._ref is defined, s.a._ref is defined, '_ref' in s] }}", Kept({"a": {}}).lazy()) == [
        True,
        False,
        False,
    ]
    assert rendered("{{ s._ref is defined }}", {"a": {}}) is False


def test_an_outcome_with_kept_parts_comes_out_plain() -> None:
    output = {"status": "ok", "data": {"data": Kept({"a": [1]}).lazy(), "text": StoredText("long", {"id": 1})}}
    names = scope(execution_id=1, workload={}, ctx={}, results={}, output=output)
    found = compile_value({"o": "{{ output }}"}, place="a test").render(names)
    assert found == {"o": {"status": "ok", "data": {"data": {"a": [1]}, "text": "long"}}}
    assert types(found) == types(jsonable(found))


def test_names_one_mapping_deep_come_out_plain() -> None:
    names = scope(
        execution_id=1,
        workload={},
        ctx={},
        results={},
        iter={"item": Kept({"a": [1]}).lazy(), "index": 3},
        iterator="item",
    )
    found = compile_value("{{ iter }}", place="a test").render(names)
    assert found == {"item": {"a": [1]}, "index": 3}
    assert type(found["item"]) is dict


def test_selected_fields_and_where_the_rest_is() -> None:
    kept = Kept({"status": "ok", "meta": {"n": 1, "m": 2}, "items": [1, 2], "null": None})
    whole = kept.lazy()
    assert isinstance(whole, LazyMapping)
    names = [["status"], ["meta", "n"], ["items"], ["null"], ["nothing"], ["meta", "x"]]
    view = Selected(whole, names, {"status": "ok"})
    place = {"result_id": "7", "bytes": 1000}
    assert plain(view) == {"status": "ok", "meta": {"n": 1}, "items": [1, 2], "null": None, "_ref": place}
    kept.asked.clear()
    assert rendered("{{ s.status }}", view) == "ok"
    assert kept.asked == []
    template = (
        "{{ [s.items[1], s.meta.n, s.meta.m is defined, s.nothing is defined, s._ref.result_id, s.data.status] }}"
    )
    assert rendered(template, view) == [2, 1, False, False, "7", "ok"]
    assert [*view] == ["status", "meta", "items", "null", "_ref"]
    assert (len(view), "items" in view, "nothing" in view, view == plain(view)) == (5, True, False, True)
    with pytest.raises(TemplateError, match="`s` has no `other`"):
        rendered("{{ s.other }}", view)


def test_a_kept_text_is_text_and_knows_its_reference() -> None:
    text = StoredText("long", {"id": 1})
    assert rendered("{{ s }}", text) == rendered("{{ s | upper | lower }}", text) == "long"
    assert type(rendered("{{ s }}", text)) is str
    assert type(jsonable({"a": text})["a"]) is str
    assert reference(text) == {"id": 1}
    assert reference("long") is None


def test_a_loader_is_what_the_protocol_says() -> None:
    loader: Loader = Kept([])
    assert loader.part(("x",)) is None
