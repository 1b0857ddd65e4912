"""Playbooks that call each other, and the executions that come of it."""

from __future__ import annotations

import json
from typing import Any

from world import World

from noetl_celery.store.outbox import Dispatch


def playbook(path: str, workflow: str, workload: str = "{}") -> str:
    """A playbook under ``path``; ``workflow`` is the list of its steps."""
    head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: case, path: {path}}}\n"
    return f"{head}workload: {workload}\nworkflow:\n{workflow}"


def child(path: str = "test/child", **given: Any) -> str:
    """A playbook of one step that hands its input to the probe."""
    tool = {"kind": "probe", "input": {"n": "{{ workload.n }}"}} | given
    return playbook(path, f"  - step: work\n    tool: {json.dumps(tool)}\n", "{n: 0}")


def calling(at: str = "test/parent", **call: Any) -> str:
    """A playbook (its path is ``at``) of one step that calls a child."""
    tool = {"kind": "playbook", "path": "test/child"} | call
    return playbook(at, f"  - step: call\n    tool: {json.dumps(tool)}\n    next: []\n")


def looping(items: str, *, spec: str = "mode: parallel, max_in_flight: 4", step: str = "{}", **call: Any) -> str:
    """A playbook with a loop over a list that calls a child for each item."""
    tool = {"kind": "playbook", "path": "test/child", "input": {"n": "{{ iter.item }}"}} | call
    return playbook(
        "test/parent",
        f"""
  - step: call
    spec: {step}
    loop: {{in: {json.dumps(items)}, iterator: item, spec: {{{spec}}}}}
    tool: {json.dumps(tool)}
    next: []
""",
    )


def children_of(world: World, execution_id: int) -> list[int]:
    """The executions that rows of this one have started, oldest first."""
    return world.column(
        "SELECT execution_id FROM noetl.execution WHERE parent_execution_id = %s ORDER BY execution_id", execution_id
    )


def child_of(world: World, execution_id: int, row: int) -> int:
    """The child that this row of a loop waits for; children of one loop are started in no particular order."""
    found = world.value(
        "SELECT waits_for FROM noetl.row JOIN noetl.frame USING (frame_id) WHERE execution_id = %s AND row_index = %s",
        execution_id,
        row,
    )
    return int(found)


def statuses(world: World) -> list[str]:
    """Of all executions, oldest first."""
    return world.column("SELECT status FROM noetl.execution ORDER BY execution_id")


def error_of(world: World, execution_id: int) -> dict[str, Any]:
    found: dict[str, Any] = world.value("SELECT error FROM noetl.execution WHERE execution_id = %s", execution_id)
    return found


def hold(world: World, execution_id: int) -> int:
    """Delivers messages until this execution has started a child and parked for it; the child. Its own messages wait
    in ``world.publisher``."""
    while not (found := children_of(world, execution_id)):
        assert world.deliver(), "no child was started"
    return found[0]


def run_alone(world: World, *execution_ids: int) -> None:
    """Delivers all messages of these executions, and no other; those stay in ``world.publisher``."""

    def theirs(message: Dispatch | int) -> bool:
        return (message if isinstance(message, int) else message.execution_id) in execution_ids

    while message := next(filter(theirs, world.publisher.sent), None):
        world.publisher.sent.remove(message)
        world.publisher.sent.appendleft(message)
        world.deliver()


def nothing_left(world: World) -> None:
    """No lease, message, signal or wakeup is left behind, and no row that is not final."""
    for table in ("run", "outbox", "signal", "wakeup"):
        assert world.q(f"SELECT * FROM noetl.{table}") == [], table
    assert world.column("SELECT DISTINCT status FROM noetl.frame") in ([], ["COMPLETED"])
    assert not world.q("SELECT * FROM noetl.row WHERE status IN ('READY', 'TAKEN', 'PARKED')")
