"""A new execution is looked at by a worker that may go on with it, where there is one for it."""

from __future__ import annotations

import pytest

from noetl_celery.cursors.registry import CursorRegistry
from noetl_celery.playbook import compile_playbook
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE
from noetl_celery.store.decisions import start_queue
from noetl_celery.tools.registry import ToolRegistry

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: q, path: test/q}}
{executor}
workflow:
  - step: start
    {start}
    next: [{{step: end}}]
  - {{step: end}}
"""
WORKS = "tool: {kind: python, code: 'result = 1'}"
CURSOR = "loop: {cursor: {kind: postgres, auth: a, claim: 'SELECT 1'}, iterator: row, spec: {mode: cursor}}"


@pytest.mark.parametrize(
    ("executor", "start", "queue"),
    [
        ("", WORKS, BODY_QUEUE),
        ("", f"loop: {{in: [1], iterator: i}}\n    {WORKS}", BODY_QUEUE),
        ("executor: {spec: {pool: big}}", WORKS, CONTROL_QUEUE),
        ("", "", CONTROL_QUEUE),
        ("", f"{CURSOR}\n    {WORKS}", CONTROL_QUEUE),
    ],
    ids=["a task", "a loop", "a pool's", "no task", "a claim"],
)
def test_where_an_execution_is_looked_at_first(executor: str, start: str, queue: str) -> None:
    text = PLAYBOOK.format(executor=executor, start=start)
    plan = compile_playbook(text, file="q.yaml", tools=ToolRegistry(), cursors=CursorRegistry()).plan
    assert start_queue(plan) == queue
