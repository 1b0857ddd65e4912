"""A world per test: a database, a process, and the messages it would have sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from world import World

from noetl_celery.cli.embedded import EmbeddedServices
from noetl_celery.settings import Settings


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    made = World(settings)
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The URL of a Redis."""
    with EmbeddedServices(fresh=True, postgres=False) as embedded:
        yield embedded.broker_url or ""
