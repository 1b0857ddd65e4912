"""A Redis to claim from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis

from noetl_celery.cli.embedded import EmbeddedServices
from noetl_celery.cursors.redis_stream import RedisStreamCursor
from noetl_celery.errors import InputError


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """An embedded Redis for all tests of this folder. None: skipped, but a failure on CI."""
    with ExitStack() as stack:
        try:
            services = stack.enter_context(EmbeddedServices(fresh=True, postgres=False))
        except InputError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        assert services.broker_url is not None
        yield services.broker_url


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """The same Redis, emptied."""
    with redis.Redis.from_url(redis_url, decode_responses=True, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
def driver() -> Iterator[RedisStreamCursor]:
    made = RedisStreamCursor()
    yield made
    made.close()
