"""The workload that an execution begins with: defaults of the playbook, what the run gives, and templates in it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from playbook_cases import HEAD, plan

from noetl_celery.playbook.workload import workload_of


def begun(workload: str, spec: str = "{}", **given: Any) -> dict[str, Any]:
    head = f"{HEAD}spec: {spec}\nworkload:\n" + "".join(f"  {line}\n" for line in workload.strip().splitlines())
    return workload_of(plan("- {step: start, tool: {kind: noop}}", head=head), given, 42)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("file: export_{{ execution_id }}.csv", "export_42.csv"),
        ("id: '{{ job.uuid }}'", "42"),
        ("rows: '{{ 20 + 3 }}'", 23),
        ("all: {deep: ['{{ execution_id }}', 1]}", {"deep": ["42", 1]}),
        ("unit: '{{ spec.unit }}'", "m"),
        ("host: \"{{ env.DB_HOST | default('database') }}\"", "database"),
        ("plain: text", "text"),
    ],
)
def test_templates_in_the_playbooks_own_values(written: str, expected: Any) -> None:
    assert begun(written, "{unit: m}")[written.partition(":")[0]] == expected


def test_values_may_name_each_other_in_any_order() -> None:
    workload = begun("a: '{{ b }}/x'\nb: '{{ workload.c.d }}'\nc: {d: '{{ e }}'}\ne: base", e="given")
    assert workload == {"a": "given/x", "b": "given", "c": {"d": "given"}, "e": "given"}


def test_what_the_run_gives_is_data() -> None:
    assert begun("a: 1\nb: {c: 2, d: '{{ a }}'}", a="{{ b }}", b={"c": "{{ a }}"}, x="{{ a }}") == {
        "a": "{{ b }}",
        "b": {"c": "{{ a }}", "d": "{{ b }}"},
        "x": "{{ a }}",
    }


def test_payload_is_what_the_run_gives() -> None:
    assert begun("user: '{{ payload.who }}'", who="Ann")["user"] == "Ann"


def test_a_value_may_be_its_own_default() -> None:
    written = "user: \"{{ user | default('nobody') }}\""
    assert begun(written)["user"] == "nobody"
    assert begun(written, user="Ann")["user"] == "Ann"


@pytest.mark.parametrize(
    "text", ["{{ user }}", "{{ a.b.c }} and more", "{{json .}", "{{ ctx.later }}", "{{ result }}", "{{ 1 / 0 }}"]
)
def test_what_cannot_be_known_yet_stays_as_written(text: str) -> None:
    assert begun(yaml.safe_dump({"user": text}, width=200))["user"] == text


def test_values_that_need_each_other_come_to_an_end() -> None:
    assert begun("a: '{{ b }}'\nb: '{{ a }}'") == {"a": "{{ a }}", "b": "{{ a }}"}
