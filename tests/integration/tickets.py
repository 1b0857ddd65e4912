"""What tests of claims look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from world import World

#: arms a fault point
Arm = Callable[[str], None]


def ticket(world: World) -> dict[str, Any]:
    return world.q("SELECT * FROM noetl.claim ORDER BY claim_id DESC LIMIT 1")[0]


def claim_ids(world: World) -> list[int]:
    return [int(number) for number in world.column("SELECT claim_id FROM noetl.claim ORDER BY claim_id")]


def frames_of(world: World) -> list[dict[str, Any]]:
    return world.q("SELECT status, rows, source, slots, weight FROM noetl.frame ORDER BY frame_id")


def seen(world: World) -> list[int]:
    return sorted(call["item"]["id"] for call in world.probe.calls)


def crash(world: World) -> None:
    """A lane takes rows and begins them, and its process dies."""
    frame, number = world.publisher.lanes()[0]
    world.publisher.sent.clear()
    other = world.another_process()
    lane = world.taken_lane(frame, number, other)
    assert lane is not None
    other.beginnings.begin(lane.held.run_id, [row.index for row in lane.waiting], seconds=5.0)
    lane.close()
    other.close()
    world.q("UPDATE noetl.run SET lease_until = clock_timestamp()")
    world.sweep()
