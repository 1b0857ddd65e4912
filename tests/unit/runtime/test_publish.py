"""Publishing to a broker that is away: no error, no wait, and the sweep is told."""

from __future__ import annotations

import logging

import pytest

from noetl_celery.app import create
from noetl_celery.runtime.publish import Publisher
from noetl_celery.settings import Settings
from noetl_celery.store.outbox import Dispatch


@pytest.mark.timeout(15)
def test_a_broker_that_is_away_is_said_once_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher(create(Settings(broker_url="redis://127.0.0.1:1/0")))
    with caplog.at_level(logging.WARNING):
        assert not publisher.orchestrate(1)
        assert not publisher.dispatch([Dispatch("claim", 1, 2, 3, queue="noetl.control")])
        assert not publisher.dispatch([Dispatch("lanes", 1, 2, 3, (0, 1), "noetl.body")])
        assert publisher.kept(10) is None
        assert not publisher.mark(10)
    assert len([record for record in caplog.records if "Redis is away" in record.message]) == 1
