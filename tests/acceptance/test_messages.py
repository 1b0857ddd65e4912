"""What the broker sees of an execution."""

from __future__ import annotations

import pytest
import redis
from running import ROOT, System

pytestmark = pytest.mark.acceptance


def test_nobody_listens_for_results(system: System) -> None:
    """A subscription per published task would stay for as long as the worker lives."""
    report = system.json("run", str(ROOT / "playbooks" / "hello.yaml"))
    assert report["status"] == "COMPLETED"
    with redis.Redis.from_url(system.env["NOETL_BROKER_URL"]) as connection:
        assert connection.pubsub_channels("celery-task-meta-*") == []
