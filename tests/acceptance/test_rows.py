"""What became of each row of a step, for people and for programs."""

from __future__ import annotations

import csv
import io
import json

import pytest
from running import System

pytestmark = pytest.mark.acceptance

WORKFLOW = """
  - step: start
    spec: {policy: {failure: {mode: best_effort}}}
    loop: {in: "{{ workload.numbers }}", iterator: number, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      kind: python
      input: {number: "{{ iter.number }}"}
      code: |
        if number % 2 == 0:
            raise ValueError(f"{number} is even")
        result = number
    next: [{step: after}]
  - step: after
    tool: {kind: noop}
"""


@pytest.fixture(scope="module")
def execution(system: System) -> str:
    """An execution with five rows, of which two failed."""
    done = system.json("run", system.playbook("rows", WORKFLOW, workload="{numbers: [1, 2, 3, 4, 5]}"))
    return str(done["execution_id"])


def test_rows_for_people(system: System, execution: str) -> None:
    shown = system.cli("rows", execution, "start")
    assert shown.returncode == 0
    head, *lines = shown.stdout.splitlines()
    assert head.split() == ["ROW", "STATUS", "RETRIES", "CRASHES", "ITEM", "TASK", "ERROR"]
    assert [line.split()[:2] for line in lines] == [[f"0.{row}", "FAILED" if row % 2 else "OK"] for row in range(5)]
    assert "2 is even" in lines[1]
    assert "4 is even" in lines[3]


def test_failed_rows_as_json(system: System, execution: str) -> None:
    lines = system.cli("rows", execution, "start", "--failed", "--json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["row"], row["item"], row["status"]) for row in rows] == [(1, 2, "FAILED"), (3, 4, "FAILED")]
    assert "is even" in rows[0]["error"]["message"]
    assert isinstance(rows[0]["frame_id"], str), "a 64-bit id"


def test_rows_as_csv(system: System, execution: str) -> None:
    rows = list(csv.DictReader(io.StringIO(system.cli("rows", execution, "start", "--csv").stdout)))
    assert [row["status"] for row in rows] == ["OK", "FAILED", "OK", "FAILED", "OK"]
    assert [row["item"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[1]["kind"]
    assert "2 is even" in rows[1]["message"]


def test_no_more_rows_than_wanted(system: System, execution: str) -> None:
    some = system.cli("rows", execution, "start", "--limit", "2", "--json")
    assert len(some.stdout.splitlines()) == 2
    assert "--limit 0" in some.stderr
    all_of_them = system.cli("rows", execution, "start", "--limit", "0", "--json")
    assert len(all_of_them.stdout.splitlines()) == 5
    assert not all_of_them.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("strat",), "start, after"),
        (("start", "--csv", "--json"), "exclude each other"),
        (("start", "--limit", "-1"), "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_shown(system: System, execution: str, arguments: tuple[str, ...], says: str) -> None:
    refused = system.cli("rows", execution, *arguments)
    assert refused.returncode == 2
    assert says in refused.stderr
