"""A workload as a form, and back."""

from __future__ import annotations

from typing import Any

import pytest

from noetl_celery.errors import InputError
from noetl_celery.web.access import Access
from noetl_celery.web.pages.playbooks import Field, fields_of, given

WORKLOAD = {"rows": 5, "rate": 0.5, "deep": {"a": [1]}, "dry": True, "name": "x", "api_token": "t", "none": None}


def filled(fields: list[Field], **changes: Any) -> dict[str, Any]:
    """What a browser sends for a form that nobody has changed."""
    form = {f"w.{field.name}": str(field.value) for field in fields if field.kind != "check" or field.value}
    return {**form, **changes}


def test_each_key_gets_a_field_of_its_kind() -> None:
    kinds = {field.name: field.kind for field in fields_of(WORKLOAD)}
    assert kinds == {
        "rows": "number",
        "rate": "number",
        "deep": "json",
        "dry": "check",
        "name": "text",
        "api_token": "secret",
        "none": "json",
    }


def test_a_form_that_nobody_changed_is_the_workload() -> None:
    fields = fields_of(WORKLOAD)
    assert given(fields, filled(fields)) == WORKLOAD


def test_what_was_changed_is_of_its_kind() -> None:
    fields = fields_of(WORKLOAD)
    form = filled(fields, **{"w.rows": "7", "w.deep": '["b"]', "w.name": "5", "more": '{"rows": 9, "new": 1}'})
    del form["w.dry"]
    assert given(fields, form) == {**WORKLOAD, "rows": 9, "deep": ["b"], "name": "5", "dry": False, "new": 1}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"w.rows": "many"}, "rows: this is no JSON"),
        ({"w.deep": "{"}, "deep: this is no JSON"),
        ({"more": "[1]"}, "more: a JSON object is expected"),
        ({"more": "{"}, "more: this is no JSON"),
    ],
)
def test_what_cannot_be_read_is_named(form: dict[str, str], said: str) -> None:
    fields = fields_of(WORKLOAD)
    with pytest.raises(InputError, match=said):
        given(fields, filled(fields, **form))


def test_only_the_token_is_known() -> None:
    access = Access("a-token-of-the-tests")
    assert access.knows("a-token-of-the-tests")
    assert not any(access.knows(text) for text in ("", "a-token-of-the-test", "a-token-of-the-testsx", "ä"))
    assert not Access(None).knows("")
    assert not Access(None).knows("None")
