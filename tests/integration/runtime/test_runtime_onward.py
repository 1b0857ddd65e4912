"""What follows from a transaction is decided with it, and done by the worker that is there; it is never in its way."""

from __future__ import annotations

from typing import Any

import pytest
from cases import cursor, fill, states
from services import credential_of
from world import World, wait_for

from noetl_celery import faults
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.runtime import onward as module
from noetl_celery.runtime.lane import Lane
from noetl_celery.settings import BODY_QUEUE
from noetl_celery.store import executions
from noetl_celery.store.outbox import Dispatch

pytestmark = pytest.mark.integration

CHAIN = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain, path: test/chain}
workflow:
  - {step: start, tool: {kind: probe, input: {item: 1}}, next: [{step: second}]}
  - {step: second, tool: {kind: probe, input: {item: "{{ start.n + 1 }}"}}, next: [{step: third}]}
  - {step: third, tool: {kind: probe, input: {item: "{{ second.n + 1 }}"}}}
"""


@pytest.fixture
def together(world: World) -> World:
    world.together = True
    world.probe.act = lambda given: {"n": given["item"]}
    return world


@pytest.fixture
def queue(together: World, database: str) -> World:
    """The rows are in our own database."""
    together.credential("src", credential_of(together.settings.libpq_url))
    fill(database, 7)
    return together


def commits(world: World) -> int:
    return int(world.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))


def test_a_chain_is_one_message_and_a_commit_for_each_step(together: World) -> None:
    execution = together.begin(CHAIN)
    assert len(together.publisher.sent) == 1
    before = commits(together)
    together.deliver()
    # The first lane starts by itself; the pulse and the session that notes beginnings have a few of their own.
    assert commits(together) - before <= 1 + 3 + 4
    assert together.status(execution) == "COMPLETED"
    assert [call["item"] for call in together.probe.calls] == [1, 2, 3]
    assert together.value("SELECT count(*) FROM noetl.outbox") == 0
    assert together.settle(execution) == "COMPLETED"


def test_a_worker_for_bodies_begins_an_execution_and_goes_on_with_it(together: World) -> None:
    execution = together.submit(CHAIN)
    before = commits(together)
    module.run_on(together.process, together.publisher, Dispatch("orchestrate", execution, queue=BODY_QUEUE))
    assert together.status(execution) == "COMPLETED"
    assert commits(together) - before <= 1 + 3 + 4
    assert not together.publisher.sent
    assert together.settle(execution) == "COMPLETED"


@pytest.mark.parametrize("pool", ["", "big"])
def test_a_lane_of_another_queue_is_left_to_its_workers(together: World, pool: str) -> None:
    together.process.settings = together.settings.model_copy(update={"pools": pool})
    execution = together.submit(CHAIN.replace("workflow:", "executor: {spec: {pool: big}}\nworkflow:"))
    module.run_on(together.process, together.publisher, Dispatch("orchestrate", execution, queue=BODY_QUEUE))
    assert (together.status(execution) == "COMPLETED") == (not pool)
    queues = [message.queue for message in together.publisher.sent if isinstance(message, Dispatch)]
    assert queues == ([f"{BODY_QUEUE}.big"] if pool else [])


def test_a_worker_claims_for_itself_what_it_works_on_next(queue: World, database: str) -> None:
    execution = queue.begin(cursor())
    queue.deliver()  # the first claim is not a worker's for bodies
    assert len(queue.publisher.lanes()) == 1
    queue.deliver()
    assert queue.status(execution) == "COMPLETED"
    assert states(database) == {"claimed": 7}
    assert len(queue.probe.calls) == 7
    assert not queue.publisher.claims()
    assert queue.settle(execution) == "COMPLETED"


def test_of_several_lanes_a_worker_keeps_one(queue: World) -> None:
    queue.process.settings = queue.settings.model_copy(update={"lane_width": 1})
    execution = queue.begin(cursor(spec="max_in_flight: 1", frame="max_rows: 3, row_concurrency: 3"))
    queue.deliver()
    [first] = [message for message in queue.publisher.sent if not isinstance(message, int)]
    queue.publisher.sent.clear()
    queue.publisher.sent.append(first)
    queue.deliver()
    assert [lane for _, lane in queue.publisher.lanes()] != [0, 1, 2], "the next frame's first lane was kept"
    assert queue.settle(execution) == "COMPLETED"
    assert len(queue.probe.calls) == 7


def test_its_time_over_it_leaves_the_rest_to_messages(together: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONWARD_SECONDS", 0.0)
    execution = together.begin(CHAIN)
    together.deliver()
    assert len(together.probe.calls) == 1
    assert len(together.publisher.lanes()) == 1
    assert together.settle(execution) == "COMPLETED"


@pytest.mark.parametrize("playbook", ["chain", "cursor"])
@pytest.mark.parametrize("error", [RuntimeError("no"), ToolError(ErrorInfo("internal", "no"))], ids=["bug", "ours"])
def test_what_cannot_be_decided_now_undoes_nothing(
    queue: World, playbook: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = queue.begin(CHAIN if playbook == "chain" else cursor())
    if playbook == "cursor":
        queue.deliver()
    real, failed = module.decide, []

    def decide(*args: Any) -> Any:
        if len(failed) < 2:
            failed.append(args)
            raise error
        return real(*args)

    monkeypatch.setattr(module, "decide", decide)
    queue.deliver()
    assert failed
    assert queue.settle(execution) == "COMPLETED"
    items = [call["item"] for call in queue.probe.calls]
    assert len(items) == (3 if playbook == "chain" else 7), "no row was run again"


def test_a_lane_that_cannot_start_is_left_to_a_message(together: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = together.begin(CHAIN)
    real, failed = Lane.take_first, []

    def take_first(self: Lane, *args: Any) -> Any:
        if len(failed) == 0 and together.probe.calls:
            failed.append(self)
            raise ToolError(ErrorInfo("credential", "there is no such thing"))
        return real(self, *args)

    monkeypatch.setattr(Lane, "take_first", take_first)
    together.deliver()
    assert failed
    assert len(together.probe.calls) == 3
    assert together.settle(execution) == "COMPLETED"
    assert len(together.probe.calls) == 3


def test_an_execution_that_somebody_holds_is_decided_on_after_the_commit(together: World) -> None:
    execution = together.begin(CHAIN)
    with together.process.db.begin() as holder:
        executions.lock(holder, execution)()
        together.q("INSERT INTO noetl.signal (execution_id, type, data) VALUES (%s, 'nudge', '{}')", execution)
        holder.execute("SELECT FROM noetl.execution WHERE execution_id = %s FOR NO KEY UPDATE", (execution,))
        together.deliver()
        assert len(together.probe.calls) == 1
        assert together.value("SELECT count(*) FROM noetl.row WHERE status = 'OK'") == 1
    assert together.settle(execution) == "COMPLETED"


@pytest.mark.parametrize(
    "point", ["orchestrate.before_commit", "orchestrate.committed", "lane.started", "lane.finished"]
)
@pytest.mark.parametrize("playbook", ["chain", "cursor"])
def test_a_death_in_between_loses_nothing(queue: World, playbook: str, point: str, crash_at: Any) -> None:
    execution = queue.begin(CHAIN if playbook == "chain" else cursor())
    if playbook == "cursor":
        queue.deliver()
    [message] = [message for message in queue.publisher.sent if not isinstance(message, int)]
    queue.publisher.sent.clear()
    crash_at(point)
    dead = queue.another_process()
    with pytest.raises(faults.FaultInjected):
        module.run_on(dead, queue.publisher, message)
    dead.close()
    queue.publisher.sent.clear()
    queue.q("UPDATE noetl.run SET lease_until = clock_timestamp()")
    queue.q("UPDATE noetl.outbox SET publish_at = clock_timestamp()")
    queue.q("UPDATE noetl.signal SET publish_at = clock_timestamp()")
    assert queue.settle(execution) == "COMPLETED"
    wait_for(lambda: queue.value("SELECT count(*) FROM noetl.run") == 0, "all runs have ended")
    ends = queue.column("SELECT status FROM noetl.row")
    assert ends == ["OK"] * (3 if playbook == "chain" else 7)
