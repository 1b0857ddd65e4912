"""Arcs that wait for the event names of before: they match when the step ends, as they did."""

from __future__ import annotations

import pytest
from older_cases import compiled, document, older_warnings

from noetl_celery.playbook.rewrite import rewrite


@pytest.mark.parametrize(
    ("loop", "when", "today"),
    [
        ("", "{{ event.name == 'call.done' }}", "{{ event.name == 'step.done' }}"),
        ("loop: {in: [1], iterator: x}", "{{ event.name == 'call.done' }}", "{{ event.name == 'loop.done' }}"),
        ("", "event.name in ['call.error', 'step.done']", "event.name in ['step.failed', 'step.done']"),
        ("", "{{ ctx.said == 'call.done' }}", "{{ ctx.said == 'call.done' }}"),
    ],
)
@pytest.mark.parametrize("form", ["next: {{arcs: [{}]}}", "next: [{}]"])
def test_names_of_today(loop: str, when: str, today: str, form: str) -> None:
    written = form.format(f'{{step: end, when: "{when}"}}')
    text = document(f"- step: a\n  tool: {{kind: noop}}\n  {loop}\n  {written}\n- step: end\n")
    found = compiled(text)
    (arc,) = found.plan.steps["a"].next.arcs
    assert arc.when is not None
    assert arc.when.raw == today
    assert len(older_warnings(text)) == (when != today)
    fixed = rewrite(text, file="f.yaml")
    again = compiled(fixed)
    assert older_warnings(fixed) == []
    assert again.plan.steps["a"].next.arcs[0].when.raw == today  # type: ignore[union-attr]
