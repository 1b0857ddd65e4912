"""What an execution waits for, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nodes import wait_for
from running import System

pytestmark = pytest.mark.acceptance

FAILS = """
  - step: start
    tool: {kind: python, code: "raise ValueError('no such thing')"}
"""
LOSES = """
  - step: start
    spec: {policy: {failure: {mode: best_effort}}}
    loop: {in: [1, 0], iterator: n}
    tool: {kind: python, input: {n: "{{ n }}"}, code: "result = 1 / n"}
"""
WAITS = """
  - step: start
    tool:
      kind: http
      url: "http://127.0.0.1:9/"
      policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 6, delay: 60}}]}
"""
SLOW = """
  - step: start
    loop: {in: "{{ workload.numbers }}", iterator: n, spec: {mode: sequential}}
    tool: {kind: python, code: "import time; time.sleep(0.3)"}
"""


def detached(system: System, file: str) -> str:
    return system.cli("run", "--detach", file).stdout.strip()


def until(system: System, execution: str, says: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def said() -> bool:
        found[:] = [reason for reason in system.json("explain", execution)["reasons"] if says(reason)]
        return bool(found)

    wait_for(said, "it is explained")
    return found[0]


def test_why_it_failed(system: System) -> None:
    done = system.json("run", system.playbook("explain_fails", FAILS))
    shown = system.cli("explain", done["execution_id"])
    assert shown.returncode == 0
    assert "no such thing" in shown.stdout
    assert f"retry {done['execution_id']} goes on" in shown.stdout
    assert f"rows {done['execution_id']} start --failed" in shown.stdout


def test_run_says_what_to_do_about_what_failed(system: System) -> None:
    failed = system.cli("run", system.playbook("explain_fails", FAILS)).stdout
    assert "\n  → noetl-celery retry " in failed
    lost = system.cli("run", system.playbook("explain_lost", LOSES)).stdout
    assert "  → noetl-celery rows " in lost
    assert "--rows failed start" in lost


def test_what_completed_without_some_rows(system: System) -> None:
    done = system.json("run", system.playbook("explain_lost", LOSES))
    assert done["status"] == "COMPLETED"
    reasons = system.json("explain", done["execution_id"])["reasons"]
    assert [reason["text"] for reason in reasons] == ["it has completed", "1 row failed"]


def test_a_row_that_waits_for_its_next_attempt(system: System) -> None:
    execution = detached(system, system.playbook("explain_waits", WAITS))
    reason = until(system, execution, lambda reason: "waits for attempt" in reason["text"])
    assert reason["step"] == "start"
    assert "row 0.0 waits for attempt 2 of 6 after connection" in reason["text"]
    assert "goes on in" in reason["text"]
    system.cli("cancel", execution)


def test_who_works_on_it_and_a_pause(system: System) -> None:
    execution = detached(system, system.playbook("explain_slow", SLOW, workload=f"{{numbers: {list(range(500))}}}"))
    reason = until(system, execution, lambda reason: "works on a lane" in reason["text"])
    assert "process" in reason["text"]
    system.cli("pause", execution)
    reason = until(system, execution, lambda reason: "paused" in reason["text"])
    assert reason["todo"] == f"noetl-celery resume {execution}"
    system.cli("cancel", execution)


def test_unknown(system: System) -> None:
    assert system.cli("explain", "12345").returncode == 2
