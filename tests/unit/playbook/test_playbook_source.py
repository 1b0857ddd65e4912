"""Reading YAML: values as an author means them, places, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.errors import PlaybookInvalid, Problems
from noetl_celery.playbook.source import fingerprint, place_of, plain, read


def load(text: str | bytes) -> Any:
    problems = Problems()
    data = read(text, file="f.yaml", problems=problems)
    problems.raise_errors()
    return plain(data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v: 1", 1),
        ("v: -12", -12),
        ("v: +3", 3),
        ("v: 1_000", 1000),
        ("v: 0x1F", 31),
        ("v: 0b11", 3),
        ("v: 010", 8),
        ("v: 0", 0),
        ("v: 1.5", 1.5),
        ("v: 12:30", "12:30"),
        ("v: 12:30:45.5", "12:30:45.5"),
        ("v: 2024-01-02", "2024-01-02"),
        ("v: 2024-01-02 03:04:05", "2024-01-02 03:04:05"),
        ("v: .nan", ".nan"),
        ("v: -.inf", "-.inf"),
        ("v: true", True),
        ("v: False", False),
        ("v: yes", True),
        ("v: off", False),
        ("v: 'yes'", "yes"),
        ("v: ~", None),
        ("v:", None),
        ("v: [1, a]", [1, "a"]),
        ("v: !!str 5", "5"),
        ("v: |\n  a\n  b\n", "a\nb\n"),
        ("v: >\n  a\n  b\n", "a b\n"),
        ("x: &x {a: 1}\nv: *x", {"a": 1}),
        ("x: &x {a: 1, b: 2}\nv: {<<: *x, b: 3}", {"a": 1, "b": 3}),
        ("v: {on: 1, 1: 2, yes: 3, null: 4}", {"on": 1, "1": 2, "yes": 3, "null": 4}),
        ("\ufeffv: 1", 1),
    ],
)
def test_values(text: str, expected: Any) -> None:
    value = load(text)["v"]
    assert value == expected
    assert type(value) is type(expected)
    json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
        ("# only a comment\n", 1, "empty"),
        ("- a", 1, "is a mapping"),
        ("just text", 1, "is a mapping"),
        ("a: [1", 2, "not valid YAML"),
        ("a: 1\n b: 2", 2, "not valid YAML"),
        ("a: 'x", 1, "not valid YAML"),
        ("a: {{ x }}", 1, "must be plain text"),
        ("a: b: c", 1, "a ':' where none can stand"),
        ("a: 1\n---\nb: 1", 2, "second document"),
        (b"ok: 1\na: \xff", 2, "not UTF-8"),
        ("a: \x01", 1, "not valid YAML"),
        ("a: 1\na: 2", 2, "the key `a` is there twice (first on line 1)"),
        ("x:\n  - {a: 1, b: 2,\n     a: 3}", 3, "twice"),
        ("a: &a [*a]", 1, "contains itself"),
        ("a: !foo 1", 1, "tag !foo"),
        ("a: !!python/object:os.system {}", 1, "tag"),
        ("a: !!set {b}", 1, "tag !!set"),
        ("a: *nothing", 1, "not valid YAML"),
        ("? [a]\n: 1", 1, "a key must be plain text"),
        ("a: " + "[" * 200 + "]" * 200, 1, "nested too deeply"),
        ("a: {<<: 5}", 1, "merges mappings only"),
    ],
)
def test_what_cannot_be_read(text: str | bytes, line: int, said: str) -> None:
    with pytest.raises(PlaybookInvalid) as caught:
        load(text)
    problem = caught.value.problems[0]
    assert said in problem.message
    assert problem.line == line
    assert problem.file == "f.yaml"
    assert problem.column is not None


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(PlaybookInvalid, match="too large"):
        load("\n".join(lines))


def test_an_ambiguous_word_is_a_warning() -> None:
    problems = Problems()
    read("a:\n  country: NO", file="f.yaml", problems=problems)
    assert not problems.errors
    assert str(problems.warnings[0]).startswith("f.yaml:2:12: `NO` is read as false")


def test_places() -> None:
    text = "a: 1\nb:\n  - x: 1\n  - y: |\n      first\n      second\n    z: {q: 2}\n"
    data = read(text, file="f", problems=Problems())
    found = {
        path: (mark.line, mark.column, mark.text_line)
        for path in [(), ("a",), ("b",), ("b", 0), ("b", 1, "y"), ("b", 1, "z", "q"), ("b", 1, "nothing"), ("b", 7)]
        if (mark := place_of(data, path)) is not None
    }
    assert found == {
        (): (1, 1, 1),
        ("a",): (1, 1, 1),
        ("b",): (2, 1, 3),
        ("b", 0): (3, 5, 3),
        ("b", 1, "y"): (4, 5, 5),
        ("b", 1, "z", "q"): (7, 9, 7),
        ("b", 1, "nothing"): (4, 5, 4),
        ("b", 7): (3, 3, 3),
    }


def test_a_fingerprint_is_of_the_content() -> None:
    same: list[str | bytes] = ["a: 1\nb: [x, 'y']\n", "# said\na:   1\nb:\n- x\n- y\n", b"a: 1\r\nb: [x, y]"]
    assert len({fingerprint(text) for text in same}) == 1
    assert fingerprint("a: 1") != fingerprint("a: '1'")
    assert fingerprint("a: {x: 1, y: 2}") != fingerprint("a: {y: 2, x: 1}")
    assert fingerprint("[") != fingerprint("{")


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_anything_is_read_or_refused_with_a_place(text: str | bytes) -> None:
    try:
        json.dumps(load(text), allow_nan=False)
    except PlaybookInvalid as error:
        assert all(problem.line and problem.column for problem in error.problems)  # noqa: PT017


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=5))
def test_json_is_yaml(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    try:
        loaded = load(text)
    except PlaybookInvalid:
        assert "\\u" in text  # surrogates and control characters, which YAML refuses
        return
    assert loaded == data
