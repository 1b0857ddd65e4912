"""What the arcs after a failed step see: all of the outcome, what its rules wrote, and its result where it has one."""

from __future__ import annotations

import json

import pytest
from world import World

from noetl_celery.errors import ErrorInfo, ToolError

pytestmark = pytest.mark.integration

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: failing, path: test/failing}
workflow:
  - step: start
    tool:
      kind: probe
      spec: {policy: {rules: %s}}
    next:
      arcs:
        - step: handled
          when: >-
            {{ output.status == 'error' and output.http.status == 503 and output.error.kind == 'server_error'
               and output.data.body == 'busy' }}
        - step: other
          when: "{{ output.status == 'error' }}"
  - step: handled
    tool: {kind: noop, result: "{{ start.body }} {{ ctx.seen | default('') }}"}
    next: []
  - step: other
    tool: {kind: noop}
    next: []
"""

RULES = [
    [{"when": "{{ false }}", "then": {"do": "continue"}}, {"else": {"then": {"do": "fail"}}}],
    [{"else": {"then": {"do": "fail", "set": {"ctx.seen": "{{ output.http.status }}"}}}}],
    [{"else": {"then": {"do": "retry", "attempts": 2, "delay": 0}}}],
]


def busy(given: object) -> object:
    info = ErrorInfo("server_error", "busy", code="503", status=503, retryable=True)
    raise ToolError(info, extra={"http": {"status": 503}, "data": {"body": "busy"}})


@pytest.mark.parametrize("rules", RULES, ids=["failed by a rule", "a rule that writes", "retries used up"])
def test_arcs_see_all_of_a_failed_outcome(world: World, rules: list[object]) -> None:
    world.probe.act = busy
    execution = world.begin(PLAYBOOK % json.dumps(rules))
    assert world.run(execution) == "COMPLETED"
    steps = world.steps(execution)
    assert steps["start"]["status"] == "FAILED"
    assert "other" not in steps
    written = "503" if "set" in json.dumps(rules) else ""
    assert steps["handled"]["result"] == f"busy {written}"


def test_without_a_policy_too(world: World) -> None:
    world.probe.act = busy
    execution = world.begin((PLAYBOOK % "[]").replace("      spec: {policy: {rules: []}}\n", ""))
    assert world.run(execution) == "COMPLETED"
    assert "handled" in world.steps(execution)
