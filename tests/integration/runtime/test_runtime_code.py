"""What python code of a playbook sees of its execution."""

from __future__ import annotations

import pytest
from world import World

pytestmark = pytest.mark.integration

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: code, path: test/code}
"""


def test_context_has_what_the_code_looks_up_there(world: World) -> None:
    execution = world.begin(
        HEAD
        + """
workflow:
  - step: start
    tool: {kind: noop, result: {rows: [1, 2], hidden: 3}}
    set: {ctx.seen: 7}
    next: {arcs: [{step: look}]}
  - step: look
    tool:
      - name: before
        kind: noop
        result: earlier
        spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.seen: 8}}}}]}}
      - name: looks
        kind: python
        code: |
          rows = context.get('start', {}).get('rows')
          result = [rows, context['unit'], context['before'], context['seen'], context['ctx']['seen'],
                    context['execution_id'], context.get('nothing', 'missing'), 'nobody' in context]
""",
        unit="metres",
    )
    assert world.run(execution) == "COMPLETED"
    expected = [[1, 2], "metres", "earlier", 8, 8, str(execution), "missing", False]
    assert world.steps(execution)["look"]["result"] == expected


def test_what_code_does_to_context_stays_there(world: World) -> None:
    execution = world.begin(
        HEAD
        + """
workflow:
  - step: start
    tool: {kind: noop, result: {rows: [1]}}
    next: {arcs: [{step: look}]}
  - step: look
    tool:
      - {name: change, kind: python, code: "context['start']['rows'].append(2)"}
      - {name: see, kind: noop, result: "{{ start.rows }}"}
"""
    )
    assert world.run(execution) == "COMPLETED"
    assert world.steps(execution)["look"]["result"] == [1]
