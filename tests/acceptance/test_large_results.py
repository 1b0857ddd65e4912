"""A result of 5 MB on a running system: a step makes it, others index into it, loop over it, fetch it, show it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import System

from noetl_celery import AsyncNoetl, Execution, InputError, NotFound

pytestmark = pytest.mark.acceptance

ROWS = 3_000
LARGE = """\
  - step: start
    tool:
      kind: python
      input: {rows: "{{ workload.rows }}"}
      code: |
        items = [{"id": i, "name": f"item {i}", "text": "x" * 1700} for i in range(rows)]
        result = {"status": "success", "count": len(items), "items": items}
    output: {store: {kind: auto}, output_select: [status, count]}
    next: {arcs: [{step: pick}]}
  - step: pick
    tool:
      kind: python
      input: {status: "{{ start.status }}", count: "{{ start.count }}", ref: "{{ start._ref is defined }}"}
      code: "result = [status, count, ref]"
    next: {arcs: [{step: load}]}
  - step: load
    tool: {kind: artifact, action: get, input: {result_ref: "{{ start._ref }}"}}
    next: {arcs: [{step: each}]}
  - step: each
    loop:
      in: "{{ load.data['items'] }}"
      iterator: item
      spec: {mode: parallel, max_in_flight: 32}
    tool: {kind: noop, result: {double: "{{ iter.item.id * 2 }}", name: "{{ load.data['items'][17].name }}"}}
    next: {arcs: [{step: whole}]}
  - step: whole
    tool:
      kind: python
      input: {data: "{{ load.data }}", last: "{{ each.results[-1] }}", n: "{{ each.results | length }}"}
      code: |
        result = {"items": len(data["items"]), "text": len(data["items"][-1]["text"]), "last": last, "n": n}
"""


@pytest.fixture(scope="module")
def ran(system: System) -> Iterator[Execution]:
    """An execution that has run through all of it."""
    with system.client() as client:
        execution = client.submit(client.register(system.playbook("large", LARGE, f"{{rows: {ROWS}}}")).path)
        assert execution.wait(120) == "COMPLETED", execution.row()["error"]
        yield execution


def test_steps_use_what_they_need(ran: Execution) -> None:
    assert ran.step_result("pick") == ["success", ROWS, True]
    last = {"double": 2 * (ROWS - 1), "name": "item 17"}
    assert ran.result() == {"items": ROWS, "text": 1700, "last": last, "n": ROWS}


def test_it_is_kept_once(system: System, ran: Execution) -> None:
    kept = system.sql("SELECT bytes FROM noetl.result WHERE execution_id = %s", ran.id)
    assert [size > 5_000_000 for (size,) in kept] == [True]
    in_stages = "SELECT sum(octet_length(result::text)) FROM noetl.stage WHERE execution_id = %s"
    assert system.sql(in_stages, ran.id)[0][0] < 10_000


def test_a_report_shows_it_briefly(system: System, ran: Execution) -> None:
    shown = system.json("status", str(ran.id))["steps"]
    assert {key: shown["start"]["output"][key] for key in ("status", "count")} == {"status": "success", "count": ROWS}
    assert shown["start"]["output"]["bytes"] > 5_000_000
    assert set(shown["each"]["output"]["results"]) == {"_ref", "bytes"}
    assert len(json.dumps(shown)) < 5000


def test_the_command_line_has_all_of_it(system: System, ran: Execution, tmp_path: Path) -> None:
    file = tmp_path / "each.json"
    done = system.cli("result", str(ran.id), "each", "--path", "results", "--output", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert [row["double"] for row in json.loads(file.read_text())] == [2 * n for n in range(ROWS)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["each.json"]
    whole = json.loads(system.cli("result", str(ran.id), "start").stdout)
    assert (whole["status"], len(whole["items"])) == ("success", ROWS)
    assert (
        json.loads(system.cli("result", str(ran.id), "start", "--path", "items[-1].name").stdout) == f"item {ROWS - 1}"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 2, "step 'nothing' of execution"),
        (["start", "--path", "items[99999]"], 2, "there is no `items[99999]`"),
        (["start", "--path", "items["], 2, "is no path"),
        (["start", "--output", "/nowhere/file"], 2, "/nowhere/file cannot be written"),
    ],
)
def test_what_is_not_there_is_said(
    system: System, ran: Execution, arguments: list[str], code: int, message: str
) -> None:
    done = system.cli("result", str(ran.id), *arguments)
    assert done.returncode == code
    assert message in done.stderr


def test_the_api_gives_parts_and_pieces(system: System, ran: Execution) -> None:
    assert ran.step_result("start", "items[5].id") == 5
    assert len(ran.step_result("start")["items"]) == ROWS
    assert json.loads("".join(ran.step_result_text("each", "results[3]"))) == {"double": 6, "name": "item 17"}
    with pytest.raises(NotFound, match="its steps: start, pick, load, each, whole"):
        ran.step_result("none")
    with pytest.raises(InputError, match="is no path"):
        ran.step_result("start", "..")

    async def asked() -> tuple[Any, str]:
        async with AsyncNoetl(ran._client.settings) as client:
            execution = await client.execution(ran.id)
            pieces = [piece async for piece in execution.step_result_text("pick")]
            return await execution.step_result("start", "count"), "".join(pieces)

    assert asyncio.run(asked()) == (ROWS, f'["success", {ROWS}, true]')
