"""The watchdog: who is starved, and who is only idle, busy or cut off."""

from __future__ import annotations

import pytest

from noetl_celery.runtime.watchdog import PATIENCE, Watchdog


class Node:
    """A node as the watchdog sees it."""

    def __init__(self, *, taken: int = 0, active: int = 0, backlog: int | None = 0) -> None:
        self.taken, self.active, self.backlog, self.ended = taken, active, backlog, 0
        self.dog = Watchdog(lambda: self.taken, lambda: self.active, lambda: self.backlog, self.end)

    def end(self) -> None:
        self.ended += 1

    def look(self, times: int) -> None:
        for _ in range(times):
            self.dog.look()


def test_a_starved_node_ends_once_its_patience_is_over() -> None:
    node = Node(taken=7, backlog=3)
    node.look(PATIENCE)  # the first look only learns how many were taken
    assert not node.ended
    node.look(1)
    assert node.ended == 1


@pytest.mark.parametrize(
    "node",
    [Node(backlog=0), Node(backlog=None), Node(backlog=3, active=1)],
    ids=["nothing waits", "redis is away", "at work"],
)
def test_a_node_that_is_only_idle_busy_or_cut_off_stays(node: Node) -> None:
    node.look(PATIENCE * 3)
    assert not node.ended


def test_one_message_taken_starts_the_count_again() -> None:
    node = Node(backlog=3)
    node.look(PATIENCE)
    node.taken += 1
    node.look(PATIENCE)
    assert not node.ended
    node.look(1)
    assert node.ended == 1
