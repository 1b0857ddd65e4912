"""Slow and odd claims on real workers: none leaves a row behind, and those that cannot work say why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from nodes import PLAYBOOKS, Cluster, Node, cluster, wait_for

from noetl_celery.execution import Execution

pytestmark = pytest.mark.acceptance

#: `%(name)s` is bound by the driver: this text is a value of the workload, and no template
CLAIM = """
UPDATE public.work SET state = 'claimed', claims = claims + 1 WHERE batch = '{batch}' AND id IN (
  SELECT id FROM public.work WHERE batch = '{batch}' AND state = 'open'
  ORDER BY id LIMIT {limit} FOR UPDATE SKIP LOCKED)
RETURNING id
"""
ASKED = "%(__frame_max_rows)s"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("odd"), NOETL_LEASE_SECONDS="1.5") as made:
        made.client.register(PLAYBOOKS / "odd.yaml")
        yield made


@pytest.fixture(scope="module", autouse=True)
def worker(system: Cluster) -> Node:
    return system.start("worker", "-P", "threads", "-c", "8")


def submit(system: Cluster, batch: str, *, limit: str = ASKED, claim: str = CLAIM, **workload: Any) -> Execution:
    return system.submit(batch, path="test/odd", claim=claim.format(batch=batch, limit=limit), **workload)


def counts(execution: Execution) -> dict[str, int]:
    output = execution.report()["steps"]["start"]["output"]
    return {name: output[name] for name in ("processed", "ok", "failed")}


def all_done(system: Cluster, execution: Execution, batch: str, rows: int) -> None:
    """Each row once, none pending, and no frame without a row."""
    assert execution.wait(timeout=90) == "COMPLETED", execution.report()
    assert counts(execution) == {"processed": rows, "ok": rows, "failed": 0}
    assert system.done(batch) == rows
    left = system.q("SELECT state, claims FROM public.work WHERE batch = %s GROUP BY 1, 2", batch)
    assert left == [{"state": "claimed", "claims": 1}]


@pytest.mark.parametrize("frames", [1, 4, 64])
def test_rows_that_bodies_enqueue_while_claims_come_back_empty(system: Cluster, frames: int) -> None:
    """A tree grows from one row: most claims find nothing, as the next rows are not there yet."""
    batch = f"tree-{frames}"
    system.q("INSERT INTO public.work (batch, id) VALUES (%s, 1)", batch)
    execution = submit(system, batch, frames=frames, max_rows=2, pause=0.1, deepest=32)
    all_done(system, execution, batch, 63)


@pytest.mark.parametrize("source", ["here", "elsewhere"])
def test_a_claim_that_is_slower_than_its_lease(system: Cluster, source: str) -> None:
    """Quick frames are worked meanwhile; nobody takes the slow claim for dead."""
    batch = f"slow-{source}"
    system.fill(batch, 15, source)
    slow = "SELECT pg_sleep(CASE WHEN %(__frame_index)s = '1' THEN 4 ELSE 0 END);" + CLAIM
    execution = submit(system, batch, claim=slow, source=source, frames=3)
    wait_for(lambda: system.done(batch) == 15, "all rows are done")
    slept = system.q("SELECT FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(CASE%%' AND pid <> pg_backend_pid()")
    assert slept, "and the slow claim still runs"
    assert execution.wait(timeout=60) == "COMPLETED"
    assert counts(execution) == {"processed": 15, "ok": 15, "failed": 0}
    assert system.done(batch) == 15
    assert (
        system.q("SELECT FROM noetl.event WHERE execution_id = %s AND event_type = 'claim.retry'", execution.id) == []
    )


@pytest.mark.parametrize(("limit", "frames"), [("17", 1), ("1", 4)], ids=["more", "fewer"])
def test_a_claim_that_returns_another_number_of_rows_than_asked_for(system: Cluster, limit: str, frames: int) -> None:
    batch = f"limit-{limit}"
    system.fill(batch, 40)
    all_done(system, submit(system, batch, limit=limit, frames=frames), batch, 40)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_claim_that_changes_nothing_is_refused(system: Cluster, frames: int) -> None:
    batch = f"nothing-{frames}"
    system.fill(batch, 10)
    same = "SELECT id FROM public.work WHERE batch = '{batch}' ORDER BY id LIMIT {limit}"
    execution = submit(system, batch, claim=same, frames=frames)
    assert execution.wait(timeout=60) == "FAILED"
    error = execution.report()["error"]
    assert (error["step"], error["kind"]) == ("start", "endless_claim")
    assert "the claim must change what it returns" in error["message"]
    assert system.done(batch) <= 15


@pytest.mark.parametrize("source", ["here", "elsewhere"])
def test_a_claim_that_fails_at_its_commit(system: Cluster, source: str) -> None:
    batch = f"commit-{source}"
    system.fill(batch, 10, source)
    run = system.q if source == "here" else system.other
    run(
        "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'row % is not to be claimed', NEW.id USING ERRCODE = '23514'; END $$"
    )
    run(
        f"CREATE CONSTRAINT TRIGGER refused_{source} AFTER UPDATE ON public.work DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW WHEN (NEW.batch = '{batch}' AND NEW.id = 7) EXECUTE FUNCTION public.refuse()"
    )
    execution = submit(system, batch, source=source, frames=1)
    assert execution.wait(timeout=60) == "FAILED"
    error = execution.report()["error"]
    assert (error["kind"], error["step"]) == ("constraint", "start")
    assert "row 7 is not to be claimed" in error["message"]
    url = system.env["NOETL_DATABASE_URL"] if source == "here" else system.url("source")
    with psycopg.connect(url) as connection:
        claimed = connection.execute("SELECT count(*) FROM public.work WHERE batch = %s AND claims > 0", (batch,))
        (before,) = claimed.fetchone() or (0,)
    assert system.done(batch) == before, "what was claimed before it was worked to the end, and nothing else is leased"


def test_rows_that_are_given_back_by_their_bodies_come_again(system: Cluster) -> None:
    """The same row, claim after claim, but not the same frame: no claim is taken for endless."""
    batch = "again"
    system.fill(batch, 12)
    system.q(
        "CREATE FUNCTION public.give_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE public.work SET state = 'open' WHERE batch = NEW.batch AND id = NEW.id AND claims < 3; "
        "RETURN NULL; END $$"
    )
    system.q(
        "CREATE TRIGGER gives_back AFTER INSERT ON public.effects FOR EACH ROW WHEN (NEW.batch = 'again') "
        "EXECUTE FUNCTION public.give_back()"
    )
    returning = CLAIM.replace("RETURNING id", "RETURNING id, claims")
    execution = submit(system, batch, claim=returning, frames=2)
    assert execution.wait(timeout=60) == "COMPLETED", execution.report()
    assert counts(execution) == {"processed": 36, "ok": 36, "failed": 0}
    assert system.q("SELECT state, claims FROM public.work WHERE batch = 'again' GROUP BY 1, 2") == [
        {"state": "claimed", "claims": 3}
    ]
