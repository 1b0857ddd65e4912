"""Sources to claim from, and processes that die over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cases import fill
from services import credential_of
from tickets import Arm
from world import World

from noetl_celery import faults


@pytest.fixture
def here(world: World, database: str) -> World:
    """The source is our own database, with our own role."""
    world.credential("src", credential_of(database))
    fill(database, 7)
    return world


@pytest.fixture
def source(world: World, empty_database: str) -> str:
    """The source is another database."""
    world.credential("src", credential_of(empty_database))
    fill(empty_database, 7)
    return empty_database


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Arm]:
    """Arms a fault point with ``error``: what runs there ends as if its process had died, but for open sockets."""

    def arm(point: str) -> None:
        faults._visits.clear()
        monkeypatch.setattr(faults, "_armed", {point: ("error", 1)})

    yield arm
    faults._visits.clear()
