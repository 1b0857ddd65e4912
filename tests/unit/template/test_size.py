"""A lower bound for the size of JSON, found without making it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from noetl_celery.template.size import least_bytes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(VALUES)
def test_it_is_never_too_much(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    assert least_bytes(value, 10**9) <= len(text)


def test_it_is_close_where_it_matters() -> None:
    rows = [{"id": n, "text": "x" * 100} for n in range(1000)]
    size = len(json.dumps(rows, separators=(",", ":")))
    assert size * 0.8 < least_bytes(rows, 10**9) <= size


def test_it_stops_once_it_is_too_much() -> None:
    assert least_bytes(["x" * 100] * 1000, 1000) in range(1001, 1200)
    assert least_bytes({"a": ["x" * 50] * 10**6, "b": 1}, 1000) in range(1001, 1200)
