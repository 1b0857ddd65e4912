"""A loop over a Redis stream on real workers: every entry, once; what a crash leaves comes again, and is not run again
where its outcome is known."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from nodes import PLAYBOOKS, Cluster, Node, cluster, wait_for

from noetl_celery.execution import Execution
from noetl_celery.store.credentials import Vault
from noetl_celery.store.db import Database

pytestmark = pytest.mark.acceptance

GROUP = "workers"
#: rows at work at once, and those whose outcomes are still collected, when their worker dies
IN_THE_AIR = 4 + 20


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("stream")) as made:
        settings = made.client.settings
        database, vault = Database(settings), Vault(settings)
        with database.begin() as connection:
            vault.store(connection, "redis", "redis", {"url": made.env["NOETL_BROKER_URL"]})
        database.close()
        made.client.register(PLAYBOOKS / "stream.yaml")
        yield made


@pytest.fixture(scope="module")
def broker(system: Cluster) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(system.env["NOETL_BROKER_URL"], decode_responses=True) as client:
        yield client


@pytest.fixture
def worker(system: Cluster) -> Iterator[Node]:
    node = system.start("worker", "-P", "threads", "-c", "4")
    yield node
    node.kill()


def fill(broker: redis.Redis, stream: str, entries: int) -> None:
    with broker.pipeline() as pipe:
        for number in range(entries):
            pipe.xadd(stream, {"n": number})
        pipe.execute()


def submit(system: Cluster, stream: str, **workload: Any) -> Execution:
    return system.submit(stream, path="test/stream", **workload)


def pending(broker: redis.Redis, stream: str) -> int:
    answer: Any = broker.xpending(stream, GROUP)
    return int(answer["pending"])


def effects(system: Cluster, stream: str) -> dict[int, int]:
    """How often each entry was run."""
    rows = system.q("SELECT id, count(*)::int AS n FROM public.effects WHERE batch = %s GROUP BY id", stream)
    return {row["id"]: row["n"] for row in rows}


def known(system: Cluster, execution: Execution) -> set[int]:
    """Entries whose outcome is committed."""
    rows = system.q(
        "SELECT r.payload ->> 'n' AS n FROM noetl.row r JOIN noetl.frame f USING (frame_id) "
        "WHERE f.execution_id = %s AND r.status = 'OK'",
        execution.id,
    )
    return {int(row["n"]) for row in rows}


def test_two_workers_drain_a_stream_and_run_every_entry_once(
    system: Cluster, broker: redis.Redis, worker: Node
) -> None:
    second = system.start("second", "-P", "threads", "-c", "4")
    fill(broker, "drained", 500)
    execution = submit(system, "drained")
    assert execution.wait(timeout=90) == "COMPLETED"
    second.kill()
    output = execution.report()["steps"]["start"]["output"]
    assert (output["processed"], output["ok"], output["failed"]) == (500, 500, 0)
    assert effects(system, "drained") == dict.fromkeys(range(500), 1)
    assert pending(broker, "drained") == 0


def test_a_worker_killed_in_mid_frame(system: Cluster, broker: redis.Redis, worker: Node) -> None:
    """Its rows are in the database: they go on in the same execution, long before the stream's own lease is over."""
    doomed = system.start("doomed", "-P", "threads", "-c", "4")
    fill(broker, "killed", 100)
    execution = submit(system, "killed", pause=0.05)
    wait_for(lambda: len(effects(system, "killed")) > 30, "entries are at work")
    doomed.kill()
    assert execution.wait(timeout=90) == "COMPLETED"
    assert execution.report()["steps"]["start"]["output"]["processed"] == 100
    again = effects(system, "killed")
    assert sorted(again) == list(range(100))
    assert sum(again.values()) <= 100 + 2 * IN_THE_AIR
    wait_for(lambda: not system.q("SELECT FROM noetl.run"), "all lanes are given up")
    # Outcomes that were committed and not acknowledged are nobody's any more: a later execution takes them after the
    # lease.
    if pending(broker, "killed"):
        entries: Any = broker.xpending_range("killed", GROUP, "-", "+", 100)
        broker.xclaim("killed", GROUP, "lost", 0, [entry["message_id"] for entry in entries], idle=3_600_000)
        assert submit(system, "killed").wait(timeout=60) == "COMPLETED"
    assert pending(broker, "killed") == 0


def test_acknowledgements_that_are_lost_run_nothing_again(system: Cluster, broker: redis.Redis) -> None:
    """The worker dies right after it has committed outcomes. The loop goes on for longer than the stream's lease, so
    the entries come again: this stage knows them, and only acknowledges."""
    fill(broker, "unheard", 60)
    doomed = system.start("doomed", "-P", "threads", "-c", "4", NOETL_FAULT="lane.flushed:kill:2")
    execution = submit(system, "unheard", pause=0.4, max_rows=10, lease=1)
    wait_for(lambda: doomed.process.poll() is not None, "the worker dies")
    assert doomed.process.returncode == -signal.SIGKILL
    before = known(system, execution)
    assert before
    assert pending(broker, "unheard") > 0
    healthy = system.start("healthy", "-P", "threads", "-c", "4")
    assert execution.wait(timeout=120) == "COMPLETED"
    again = effects(system, "unheard")
    assert sorted(again) == list(range(60))
    assert {again[number] for number in before} == {1}, "what was known was not run again"
    assert execution.report()["steps"]["start"]["output"]["processed"] == 60
    wait_for(lambda: pending(broker, "unheard") == 0, "all is acknowledged")
    healthy.kill()
