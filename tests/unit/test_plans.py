"""Plans are compiled once for each version of a playbook."""

from __future__ import annotations

from typing import Any

import pytest

from noetl_celery import plans
from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.tools.registry import ToolRegistry

TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p, path: test/p}}
workflow: [{{step: {step}}}]
"""


def entry(number: int) -> dict[str, Any]:
    return {"catalog_id": number, "path": "test/p", "file": None, "content": TEXT.format(step=f"s{number}")}


def test_an_entry_is_compiled_when_it_is_not_among_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PLANS_KEPT", 2)
    known = plans.Plans(ToolRegistry(), CursorRegistry())
    first, second = known.of(entry(1)), known.of(entry(2))
    assert [*first.steps, *second.steps] == ["s1", "s2"]
    assert known.of(entry(1)) is first
    known.of(entry(3))
    assert known.of(entry(1)) is first, "it was used after the second"
    assert known.of(entry(2)) is not second
