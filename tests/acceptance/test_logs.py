"""What tasks printed, for people and for programs, while they are at work and afterwards."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from running import System, until

from noetl_celery import AsyncNoetl

pytestmark = pytest.mark.acceptance

WORKFLOW = """
  - step: start
    tool: {kind: python, code: "print('hello'); print('from start')"}
    next: [{step: numbers}]
  - step: numbers
    spec: {policy: {failure: {mode: best_effort}}}
    loop: {in: "{{ [1, 0] }}", iterator: number, spec: {mode: sequential}}
    tool:
      - name: say
        kind: python
        input: {number: "{{ iter.number }}"}
        code: "print('number', number)"
      - name: divide
        kind: python
        input: {number: "{{ iter.number }}"}
        code: |
          print('dividing')
          result = 1 / number
    next: [{step: shell}]
  - step: shell
    tool: {kind: shell, command: "echo out; echo err >&2"}
"""

#: prints, waits for a file, and dies over the first row that it is given
DYING = """
  - step: start
    tool:
      kind: python
      input: {folder: "{{ workload.folder }}"}
      code: |
        import os, pathlib, time
        folder = pathlib.Path(folder)
        again = (folder / "seen").exists()
        print("again" if again else "for the first time", flush=True)
        while not (folder / "seen").exists():
            time.sleep(0.05)
        if not again:
            os._exit(9)
"""


@pytest.fixture(scope="module")
def execution(system: System) -> str:
    return str(system.json("run", system.playbook("logs", WORKFLOW))["execution_id"])


def test_lines_for_people(system: System, execution: str) -> None:
    shown = system.cli("logs", execution)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3}  ", line) for line in lines)
    assert [line[14:] for line in lines if " shell" not in line] == [
        "start  hello",
        "start  from start",
        "numbers/say 0.0  number 1",
        "numbers/divide 0.0  dividing",
        "numbers/say 0.1  number 0",
        "numbers/divide 0.1  dividing",
    ]
    assert sorted(line[14:] for line in lines if " shell" in line) == ["shell  err", "shell  out"]


def test_lines_of_a_step_as_json(system: System, execution: str) -> None:
    lines = [json.loads(line) for line in system.cli("logs", execution, "numbers", "--json").stdout.splitlines()]
    assert [(line["row"], line["task"], line["text"]) for line in lines] == [
        (0, "say", "number 1"),
        (0, "divide", "dividing"),
        (1, "say", "number 0"),
        (1, "divide", "dividing"),
    ]
    assert {line["step"] for line in lines} == {"numbers"}
    assert [line["log_id"] for line in lines] == sorted(line["log_id"] for line in lines)


@pytest.mark.parametrize(
    ("options", "texts"),
    [(("--tail", "2"), ["number 0", "dividing"]), (("--limit", "1"), ["number 1"]), (("--tail", "0"), [])],
)
def test_some_of_the_lines(system: System, execution: str, options: tuple[str, ...], texts: list[str]) -> None:
    shown = system.cli("logs", execution, "numbers", *options)
    assert [line.split("  ", 2)[2] for line in shown.stdout.splitlines()] == texts
    assert not shown.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("strat",), "start, numbers, shell"),
        (("strat", "--follow"), "start, numbers, shell"),
        (("start", "--tail", "1", "--limit", "1"), "exclude each other"),
    ],
)
def test_what_cannot_be_shown(system: System, execution: str, arguments: tuple[str, ...], says: str) -> None:
    refused = system.cli("logs", execution, *arguments)
    assert refused.returncode == 2
    assert says in refused.stderr


def test_nothing_was_printed(system: System) -> None:
    silent = system.json("run", system.playbook("silent", "  - step: start\n    tool: {kind: noop}\n"))
    shown = system.cli("logs", silent["execution_id"])
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "nothing was printed" in shown.stderr


def test_it_follows_a_row_that_dies_and_is_run_again(system: System, tmp_path: Path) -> None:
    """What was printed before the crash stays, and the next run prints again."""
    file = system.playbook("dying", DYING, workload=json.dumps({"folder": str(tmp_path)}))
    execution = system.cli("run", file, "--detach").stdout.strip()
    with system.start("logs", execution, "--follow") as following:
        assert following.stdout
        first = following.stdout.readline()
        (tmp_path / "seen").touch()
        rest = following.stdout.read()
    assert first.endswith("start  for the first time\n")
    assert [line[14:] for line in rest.splitlines()] == ["start  again"]
    assert following.returncode == 0
    assert system.sql("SELECT reruns FROM noetl.frame WHERE execution_id = %s", int(execution)) == [(1,)]


def test_lines_in_python(system: System, execution: str) -> None:
    with system.client() as client:
        there = list(client.execution(execution).logs("start"))
        assert [line["text"] for line in there] == ["hello", "from start"]
        assert [line["text"] for line in client.execution(execution).logs("start", after=there[0]["log_id"])] == [
            "from start"
        ]
        settings = client.settings

    async def lines() -> list[str]:
        async with AsyncNoetl(settings) as client:
            found = await client.execution(execution)
            return [line["text"] async for line in found.logs("start", follow=True)]

    assert asyncio.run(lines()) == ["hello", "from start"]


def test_they_go_with_the_execution(system: System) -> None:
    done = system.json("run", system.playbook("logs", WORKFLOW))
    count = "SELECT count(*) FROM noetl.log WHERE execution_id = %s"
    assert system.sql(count, int(done["execution_id"])) == [(8,)]
    long_ago = "created_at = created_at - interval '9 d', finished_at = finished_at - interval '9 d'"
    system.sql(f"UPDATE noetl.execution SET {long_ago} WHERE execution_id = %s", int(done["execution_id"]))
    pruned = system.json("prune", "--older-than", "8d")
    assert (pruned["executions"], pruned["logs"]) == (1, 8)
    until(lambda: system.sql(count, int(done["execution_id"])) == [(0,)], "they are gone")
