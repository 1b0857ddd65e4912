"""Other names in a template's text."""

from __future__ import annotations

import pytest

from noetl_celery.template import expression_of, renamed

NAMES = {"result": "fetch", "data": "fetch", "_retry.index": "(_attempt - 1)"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ result.data }}", "{{ fetch.data }}"),
        ("a {{ data }} b {{data['data']}}", "a {{ fetch }} b {{fetch['data']}}"),
        ("{{ x.result | default(result) }}", "{{ x.result | default(fetch) }}"),
        ("{{ f(data=1, x=data) == data }}", "{{ f(data=1, x=fetch) == fetch }}"),
        ("{{ {'data': data}.data }}", "{{ {'data': fetch}.data }}"),
        ("{% for data in result %}{{ data.n }}{% endfor %}", "{% for data in fetch %}{{ data.n }}{% endfor %}"),
        ("{% set x = result %}{{ x }}", "{% set x = fetch %}{{ x }}"),
        ("{{ _retry.index + 1 }}{{ _retry.other }}", "{{ (_attempt - 1) + 1 }}{{ _retry.other }}"),
        ("{{ x is result }}", "{{ x is result }}"),
        ("{# data #}{{ 'data' }} data", "{# data #}{{ 'data' }} data"),
        ("{{ data | }}", "{{ data | }}"),
        ("no template: data", "no template: data"),
    ],
)
def test_renamed(source: str, expected: str) -> None:
    assert renamed(source, NAMES) == expected


def test_expression_of() -> None:
    assert expression_of("{{ a.b }}") == "a.b"
    assert expression_of("x {{ a.b }}") is None
    assert expression_of("{% if a %}b{% endif %}") is None
    assert expression_of("text") is None
