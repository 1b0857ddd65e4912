"""Rendering: types, text, missing values, the sandbox, and what an error says."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import pickle
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.errors import TemplateError
from noetl_celery.template import TemplateSyntax, Value, compile_condition, compile_value, constant

HTTP = {
    "status_code": 200,
    "headers": {"etag": "x"},
    "url": "http://x",
    "body": {"items": [1, 2], "status": "done"},
    "data": {"items": [1, 2], "status": "done"},
}
NAMES: dict[str, Any] = {
    "a": 1,
    "nil": None,
    "text": "it's",
    "users": [{"n": 1}, {"n": 2}],
    "ctx": {"facility_id": 7, "deep": {"er": {"est": 3}}},
    "row": {"items": 1, "keys": 2, "count": 3, "values": 4, "index": 5, "get": 6, "copy": 7},
    "http": HTTP,
    "fetched": {"data": {"count": 3}},
    "beside": {"data": {"count": 3}, "more": 1},
    "listed": {"data": [{"count": 3}]},
    "at": dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.UTC),
}


def render(raw: Any, names: Mapping[str, Any] = NAMES) -> Any:
    return compile_value(raw, place="step 's'", line=10).render(names)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ a }}", 1),
        ("  {{ a }}\n", 1),
        ("{{- a -}}", 1),
        ("{{ a }}{# said #}", 1),
        ("{{ users }}", NAMES["users"]),
        ("{{ nil }}", None),
        ("{{ a == 1 }}", True),
        ("{{ a + 0.5 }}", 1.5),
        ("{{ (1, 2) }}", [1, 2]),
        ("{{ 1, 2 }}", [1, 2]),
        ("{{ {'k': [a]} }}", {"k": [1]}),
        ("{{ {'a': {'b': 1}}['a'] }}", {"b": 1}),
        ("{{ a if a > 0 else 'no' }}", 1),
        ("{{ 'yes' if missing else 'no' }}", "no"),
        ("{{ a if missing }}", None),
        ("{{ users | map(attribute='n') }}", [1, 2]),
        ("{{ users | map(attribute='n') | list }}", [1, 2]),
        ("{{ users | selectattr('n', 'gt', 1) | list }}", [{"n": 2}]),
        ("{{ users | length }}", 2),
        ("{{ ctx.items() }}", [["facility_id", 7], ["deep", {"er": {"est": 3}}]]),
        ("{{ ctx.get('facility_id') }}", 7),
        ("{{ row.items() | length }}", 7),
        ("{{ text.upper() }}", "IT'S"),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ '{{' }}", "{{"),
        ("{{ '}}' }}", "}}"),
        ("{{ '{{ a }}' }}", "{{ a }}"),
        ("{{ at }}", NAMES["at"]),
        ("{{ now().year > 2000 }}", True),
        ("{{ a }}{{ a }}", "11"),
        ("{{ a }} {{ a }}", "1 1"),
        ("x {{ a }}", "x 1"),
        ("x {{- a }}\n", "x1\n"),
        ("{{ nil }}!", "None!"),
        ("{{ a == 1 }}!", "True!"),
        ("at {{ at }}", "at 2024-01-02T03:04:00+00:00"),
        ("<{{ '<b>' }}>", "<<b>>"),
        ("n={{ users | map(attribute='n') }}", "n=[1, 2]"),
        ("{% raw %}{{ a }}{% endraw %}", "{{ a }}"),
        ("{% raw %}{{ x }}{% endraw %} {{ a }}", "{{ x }} 1"),
        ("{% if a %}yes{% endif %}\n", "yes\n"),
        ("{% for u in users %}{{ u.n }}{{ ',' if not loop.last }}{% endfor %}", "1,2"),
        ("{% set b = a + 1 %}{{ b }}", "2"),
        ("{# only a comment #}", ""),
        ("no template { } %", "no template { } %"),
        ("", ""),
        (5, 5),
        (None, None),
    ],
)
def test_a_template_renders(template: Any, expected: Any) -> None:
    rendered = render(template)
    assert rendered == expected
    assert type(rendered) is type(expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("row.items", 1),
        ("row.keys", 2),
        ("row.count", 3),
        ("row.values", 4),
        ("row.index", 5),
        ("row.get", 6),
        ("row.copy", 7),
        ("row['items']", 1),
        ("users[0].n", 1),
        ("users.0.n", 1),
        ("users[-1].n", 2),
        ("users | first | attr('n') | default('none')", "none"),
        ("http.items", [1, 2]),
        ("http.status", "done"),
        ("http.data.items", [1, 2]),
        ("http.status_code", 200),
        ("http['status']", "done"),
        ("http.nothing | default('none')", "none"),
        ("fetched.count", 3),
        ("fetched['count']", 3),
        ("fetched.data.count", 3),
        ("fetched.items | default('none')", "none"),
        ("beside.count | default('none')", "none"),
        ("listed.count | default('none')", "none"),
        ("ctx.items | default('none')", "none"),
        ("users.count | default('none')", "none"),
        ("text.upper | default('none')", "none"),
    ],
)
def test_keys_come_before_attributes(expression: str, expected: Any) -> None:
    assert render("{{ " + expression + " }}") == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("missing is defined", False),
        ("missing.x.y[3]['z'] is defined", False),
        ("ctx.x.y.z | default([])", []),
        ("ctx.x.y | default(ctx.z) | default(4)", 4),
        ("nil | default('x')", None),
        ("nil | default('x', true)", "x"),
        ("missing | d(1)", 1),
        ("missing == 1", False),
        ("missing != 1", True),
        ("missing == missing2", True),
        ("missing in [1]", False),
        ("1 in missing", False),
        ("not missing", True),
        ("missing or 3", 3),
        ("missing and 3 or 4", 4),
        ("users[9].n | default(0) | int", 0),
        ("nil.x | default(1)", 1),
        ("a.b.c | default(1)", 1),
    ],
)
def test_missing_is_fine_where_it_is_asked_for(expression: str, expected: Any) -> None:
    assert render("{{ " + expression + " }}") == expected


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ missing }}", "{{ missing }} in step 's', line 10: `missing` is undefined"),
        ("{{ missing.x.y }}", "`missing.x.y` is undefined (there is no name `missing`)"),
        ("{{ user }}", "did you mean `users`?"),
        (
            "{{ ctx.facility.id }}",
            "`ctx.facility.id` is undefined (`ctx` has no `facility`; did you mean `facility_id`?)",
        ),
        ("{{ ctx.deep.er.esd }}", "`ctx.deep.er.esd` is undefined (`ctx.deep.er` has no `esd`; did you mean `est`?)"),
        ("{{ users[5].n }}", "`users[5].n` is undefined (`users` has 2 items)"),
        ("{{ nil.x }}", "`nil.x` is undefined (`nil` is null)"),
        ("{{ a.x }}", "`a.x` is undefined (`a` is a number)"),
        ("{{ missing | int }}", "`missing` is undefined"),
        ("{{ missing | float(0) }}", "`missing` is undefined"),
        ("{{ missing | tojson }}", "`missing` is undefined"),
        ("{{ missing | join(',') }}", "`missing` is undefined"),
        ("{{ missing | string }}", "`missing` is undefined"),
        ("{{ missing | length }}", "`missing` is undefined"),
        ("{{ missing + 1 }}", "`missing` is undefined"),
        ("{{ 1 + missing }}", "`missing` is undefined"),
        ("{{ missing < 1 }}", "`missing` is undefined"),
        ("{{ 'x' ~ missing }}", "`missing` is undefined"),
        ("{{ -missing }}", "`missing` is undefined"),
        ("{{ [a, missing] }}", "`missing` is undefined"),
        ("{{ {'k': ctx.zz} }}", "`ctx.zz` is undefined"),
        ("{{ missing() }}", "`missing` is undefined"),
        ("{{ missing.get('x') }}", "`missing.get` is undefined"),
        ("{{ users | map(attribute='zz') | list }}", "`zz` is undefined (the value has no `zz`"),
        ("{{ users[missing] }}", "`missing` is undefined"),
        ("{{ ctx[missing] }}", "`missing` is undefined"),
        ("{% for x in missing %}{% endfor %}", "`missing` is undefined"),
        ("a\nb {{ a }}\nc {{ ctx.zz }}", "{{ ctx.zz }} in step 's', line 12: `ctx.zz`"),
        ("a\n{% if a %}\n{{ ctx.zz }}{% endif %}", "line 12: `zz` is undefined"),
        ("{{ a / 0 }}", "division by zero"),
        ("{{ a + 'x' }}", "unsupported operand"),
        ("{{ a + 'x' }}", "{{ a + 'x' }} in step 's', line 10: "),
        ("{{ users.append(1) }}", "not allowed in a template"),
        ("{{ ctx.update({}) }}", "not allowed in a template"),
        ("{{ users | random(5) }}", "takes"),
        ("{{ text.__class__ }}", "not allowed in a template"),
        ("{{ text['__class__'] }}", "not allowed in a template"),
        ("{{ ''.__class__.__mro__ }}", "not allowed in a template"),
        ("{{ '{0.__class__}'.format(a) }}", "not allowed in a template"),
        ("{{ range(10000000) }}", "Range too big"),
        ("{{ 9 ** 999999999 }}", "too large"),
        ("{{ 'x' * 999999999 }}", "too large"),
        ("{{ [1] * 999999999 }}", "too large"),
        ("{{ at | tojson | fromjson | abs }}", "bad operand"),
    ],
)
def test_an_error_says_what_and_where(template: str, said: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(template)
    assert said in str(caught.value)
    assert caught.value.expression
    assert caught.value.place is not None
    assert caught.value.place.startswith("step 's'")


def test_an_error_says_which_of_several_chains_broke() -> None:
    with pytest.raises(TemplateError, match=r"`y\.id` is undefined"):
        render("{{ x.id + y.id }}", {"x": {"id": 1}, "y": {"idx": 2}})


def test_an_error_names_the_key_of_the_value() -> None:
    with pytest.raises(TemplateError, match=r"step 's', params\.page, line 10"):
        render({"params": {"page": "{{ zz }}"}})


def test_an_error_survives_pickling_and_long_expressions() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ " + " + ".join(["a"] * 100) + " + missing }}")
    assert len(caught.value.expression or "") <= 160
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{{ a b }}", 0),
        ("{{ }}", 0),
        ("x\n{{ a", 1),
        ("x\ny {{ a |", 1),
        ("{{ a | nofilter }}", 0),
        ("{{ a is notest }}", 0),
        ("x\n\n{% if %}", 2),
        ("x\n{% if a %}", 1),
        ("{% include 'x' %}", 0),
        ("{% import 'x' as y %}", 0),
        ("{% extends 'x' %}", 0),
        ("{{ a + }}", 0),
        ("{{ a }}\n{{ 'x }}", 1),
        ("{# never closed", 0),
        ("ok {{ a }}\n and {{\n a ! b }}", 2),
        ("{{ " + " + ".join(["a"] * 300) + " }}", 0),
        ("{% if " + " + ".join(["a"] * 300) + " %}{% endif %}", 0),
        ("{{ " + "(" * 500 + "a" + ")" * 500 + " }}", 0),
    ],
)
def test_what_does_not_parse_is_refused_when_compiled(template: str, line: int) -> None:
    with pytest.raises(TemplateSyntax) as caught:
        compile_value(template, place="step 's'")
    assert caught.value.line == line
    assert caught.value.message
    assert caught.value.expression


def test_all_broken_templates_of_a_value_can_be_collected() -> None:
    found: list[TemplateSyntax] = []
    value = compile_value({"a": "{{ x y }}", "b": ["{{", "{{ ok }}"]}, place="p", problems=found)
    assert [error.path for error in found] == [("a",), ("b", 0)]
    assert value.render({"ok": 1}) == {"a": "{{ x y }}", "b": ["{{", 1]}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (True, True),
        (False, False),
        (None, False),
        (0, False),
        ([1], True),
        ("true", True),
        ("True", True),
        ("false", False),
        ("False", False),
        ("no", False),
        ("0", False),
        ("none", False),
        ("", False),
        ("{{ true }}", True),
        ("{{ 'false' }}", False),
        ("{{ 'no' }}", False),
        ("{{ 'anything' }}", True),
        ("{{ a }}{{ a }}", True),
        ("{{ missing }}", False),
        ("{{ missing.x > 3 }}", False),
        ("{{ not missing }}", True),
        ("{{ ctx.x | int > 3 }}", False),
        ("a == 1", True),
        ("a == 2", False),
        ("not missing", True),
        ("missing.x > 3", False),
        ("{% if a %}true{% else %}false{% endif %}", True),
    ],
)
def test_a_condition_holds_or_not(when: Any, expected: bool) -> None:
    assert compile_condition(when, place="p").test(NAMES) is expected
    assert compile_value(when, place="p").test(NAMES) is expected


def test_a_condition_raises_for_anything_but_missing() -> None:
    with pytest.raises(TemplateError, match="unsupported operand"):
        compile_condition("{{ a + 'x' }}", place="p").test(NAMES)
    with pytest.raises(TemplateSyntax):
        compile_condition("a ==", place="p")
    with pytest.raises(TemplateError, match="a =="):
        compile_value("a ==", place="p").test(NAMES)


class Lazy(Mapping[str, Any]):
    """Remembers what was asked."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.asked: list[str] = []

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


def test_only_used_names_are_looked_up_and_each_once() -> None:
    names = Lazy({"a": 1, "b": 2, "expensive": 3})
    value = compile_value({"x": "{{ a }} {{ a + b }}", "y": ["{{ a }}"]}, place="p")
    assert value.render(names) == {"x": "1 3", "y": [1]}
    assert sorted(names.asked) == ["a", "b"]


@pytest.mark.parametrize(
    ("raw", "names", "refs"),
    [
        ("{{ a.b + c }}", {"a", "c"}, set()),
        ({"k": ["{{ x }}", {"z": "{{ y }}"}]}, {"x", "y"}, set()),
        ("{{ step.results.task }} {{ other['results'] }} {{ x.y.results }}", {"step", "other", "x"}, {"step", "other"}),
        ("{% for u in users %}{{ u.results }}{% endfor %}{{ now() }}", {"users"}, {"u"}),
        ("plain", set(), set()),
        ("{{ users | map(attribute='x') | list }}", {"users"}, set()),
    ],
)
def test_names_and_result_references_are_known(raw: Any, names: set[str], refs: set[str]) -> None:
    value = compile_value(raw, place="p")
    assert value.names == names
    assert value.result_refs == refs


def test_constants_cost_nothing_and_are_not_shared() -> None:
    value = compile_value({"a": [1, {"b": 2}], "t": "x"}, place="p")
    assert value.constant
    value.render({})["a"][1]["b"] = 3
    assert value.render({}) == {"a": [1, {"b": 2}], "t": "x"}
    text = "long " * 10
    assert compile_value(text, place="p").render({}) is text


def test_static_parts_beside_templates_are_not_shared() -> None:
    value = compile_value({"a": [1], "b": "{{ x }}"}, place="p")
    assert not value.constant
    value.render({"x": 1})["a"].append(2)
    assert value.render({"x": 1}) == {"a": [1], "b": 1}


def test_some_keys_can_be_kept_as_written() -> None:
    value = compile_value({"code": "print({{ a }}", "x": "{{ a }}"}, place="p", constant_keys=frozenset({"code"}))
    assert value.render(NAMES) == {"code": "print({{ a }}", "x": 1}
    assert value.names == {"a"}


def test_keys_may_be_templates() -> None:
    assert render({"{{ text }}": "{{ a }}", "k{{ a }}": 2}) == {"it's": 1, "k1": 2}


def test_a_constant_is_never_rendered() -> None:
    value = constant("{{ a }}")
    assert value.constant
    assert value.render(NAMES) == "{{ a }}"


def test_json_can_be_embedded_in_sql() -> None:
    names = {"payload": {"name": "O'Hara <x> ä", "n": None}}
    sql = "VALUES ('{{ payload | tojson | replace(\"'\", \"''\") }}'::jsonb)"
    assert render(sql, names) == 'VALUES (\'{"name": "O\'\'Hara <x> ä", "n": null}\'::jsonb)'


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '{\"a\": 1}' | fromjson }}", {"a": 1}),
        ("{{ '[1]' | from_json }}", [1]),
        ("{{ {'a': 1} | to_json }}", '{"a": 1}'),
        ("{{ 'ä' | b64encode }}", "w6Q="),
        ("{{ 'w6Q=' | b64decode }}", "ä"),
        ("{{ at | tojson }}", '"2024-01-02T03:04:00+00:00"'),
        ("{{ users | tojson(indent=1) | length > 5 }}", True),
    ],
)
def test_filters(template: str, expected: Any) -> None:
    assert render(template) == expected


def test_values_are_compared_copied_and_pickled() -> None:
    value = compile_value({"a": "{{ b }}"}, place="p")
    assert copy.deepcopy(value) is value
    again: Value = pickle.loads(pickle.dumps(value))
    assert again == value
    assert again.render({"b": 2}) == {"a": 2}
    assert pickle.loads(pickle.dumps(constant("{{ x }}"))).constant


def test_threads_share_a_value() -> None:
    value = compile_value({"x": "{{ n }}", "y": "{% if n %}{{ n }}{% endif %}"}, place="p")
    wrong: list[Any] = []

    def work(number: int) -> None:
        for _ in range(300):
            if value.render({"n": number}) != {"x": number, "y": str(number)}:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_user_names_win_over_helpers_but_not_over_now() -> None:
    assert render("{{ range }}", {"range": 5}) == 5
    assert isinstance(compile_value("{{ now() | string }}", place="p").render({"now": 5}), str)


plain_text = st.text().filter(lambda text: "{" not in text and "}" not in text)
data = st.recursive(
    st.none() | st.booleans() | st.integers() | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=10,
)


@given(data)
def test_data_without_templates_stays_as_it_is(value: Any) -> None:
    compiled = compile_value(value, place="p")
    assert compiled.constant
    assert compiled.render({}) == value


@given(data)
def test_a_single_expression_gives_the_very_value(value: Any) -> None:
    assert compile_value("{{ x }}", place="p").render({"x": value}) is value


@given(st.text(), st.text())
def test_any_text_goes_through_an_expression(before: str, inside: str) -> None:
    if "{" in before:
        return
    rendered = compile_value(before + "|{{ x }}|", place="p").render({"x": inside})
    # Jinja reads every kind of line end as \n.
    assert rendered == before.replace("\r\n", "\n").replace("\r", "\n") + f"|{inside}|"


@given(st.text(alphabet="{}%#ab '|.\n", max_size=30))
def test_whatever_the_text_it_compiles_or_is_refused(text: str) -> None:
    try:
        value = compile_value(text, place="p")
    except TemplateSyntax:
        return
    with contextlib.suppress(TemplateError):
        value.render({"a": 1, "b": {}})
