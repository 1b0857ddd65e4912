"""What leaves a tool is JSON, or an error that names the type."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.template import jsonable, to_json

D = decimal.Decimal


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    x: int
    when: dt.date


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("x", "x"),
        (1.5, 1.5),
        (float("nan"), None),
        ([float("inf"), -float("inf")], [None, None]),
        (dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "2024-02-03T04:05:06+00:00"),
        (dt.date(2024, 2, 3), "2024-02-03"),
        (dt.time(4, 5), "04:05:00"),
        (dt.timedelta(days=1, hours=2, seconds=3.5), "P1DT2H3.5S"),
        (dt.timedelta(0), "PT0S"),
        (-dt.timedelta(minutes=1), "-PT1M"),
        (D("1.10"), 1.1),
        (D("5"), 5),
        (D("1E+3"), 1000.0),
        (D("0.1"), 0.1),
        (D("12345678901234567890.123"), "12345678901234567890.123"),
        (D("9007199254740993"), "9007199254740993"),
        (D("NaN"), None),
        (b"abc", "YWJj"),
        (memoryview(b"abc"), "YWJj"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ((1, (2,)), [1, [2]]),
        ({2: "a", None: 2, True: 3, 1.5: 4}, {"2": "a", "null": 2, "true": 3, "1.5": 4}),
        ({dt.date(2024, 1, 1): 1}, {"2024-01-01": 1}),
        (Colour.RED, "red"),
        ([Level.HIGH, Word("w")], [3, "w"]),
        (Point(1, dt.date(2024, 1, 1)), {"x": 1, "when": "2024-01-01"}),
    ],
)
def test_values_become_json(value: Any, expected: Any) -> None:
    converted = jsonable(value)
    assert converted == expected
    assert type(converted) in (dict, list, str, int, float, bool, type(None))
    json.dumps(converted, allow_nan=False)


def test_plain_data_is_not_copied() -> None:
    data = {"a": [1, {"b": None}]}
    assert jsonable(data) is data


def test_only_text_keys_and_plain_atoms_count_as_plain() -> None:
    assert type(jsonable([Word("x")])[0]) is str
    assert type(jsonable([Level.HIGH])[0]) is int


def cyclic_list() -> list[Any]:
    data: list[Any] = []
    data.append(data)
    return data


def cyclic_mapping() -> dict[str, Any]:
    data: dict[str, Any] = {"x": {}}
    data["x"]["y"] = data
    return data


def deep(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = [data]
    return data


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "object"),
        ({"a": [1, object()]}, r"object .*\(at a\.1\)"),
        (cyclic_list(), "contains itself"),
        (cyclic_mapping(), r"contains itself.*\(at x\.y\)"),
        ({(1, 2): 3}, "key of type tuple"),
        ({"1": 1, 1: 2}, "same JSON form"),
        (deep(5000), "nested deeper"),
        (len, "builtin_function"),
    ],
)
def test_what_has_no_json_form_is_named(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        jsonable(value)


def test_the_same_value_twice_is_no_cycle() -> None:
    shared = {"at": dt.date(2024, 1, 1)}
    assert jsonable([shared, shared]) == [{"at": "2024-01-01"}] * 2


def test_text_keeps_its_characters() -> None:
    assert to_json({"ä": "<b>&'"}) == '{"ä": "<b>&\'"}'
    assert to_json([1], indent=1) == "[\n 1\n]"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_json_data_stays_as_it_is(value: Any) -> None:
    assert jsonable(value) is value
    assert json.loads(to_json(value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_keep_their_digits(value: decimal.Decimal) -> None:
    converted = jsonable(value)
    shown = converted if isinstance(converted, str) else repr(converted)
    assert D(shown) == value
