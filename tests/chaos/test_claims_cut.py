"""Workers die or stand still at each point of a claim, and in the bodies of claimed rows."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import psycopg
import pytest
from harness import Trial, arena
from nodes import Cluster, Node, wait_for

from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE

pytestmark = pytest.mark.chaos

ROWS = 30
#: the points that a claim passes, by where its source is
HERE = ("claim.claimed", "claim.committed")
ELSEWHERE = ("claim.taken", "claim.claimed", "claim.recorded", "claim.source_committed", "claim.committed")
#: no sweep: frozen inside one it would keep its locks until PostgreSQL ends the session
QUIET = {"NOETL_SWEEP_SECONDS": "3600"}


def cases() -> Iterator[Any]:
    for place, points in (("here", HERE), ("elsewhere", ELSEWHERE)):
        for point in points:
            for action in ("kill", "stop"):
                short = (place, point, action) == ("elsewhere", "claim.claimed", "stop")
                yield pytest.param(
                    place, point, action, id=f"{place}-{point}-{action}", marks=[pytest.mark.short] * short
                )


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with arena(tmp_path_factory.mktemp("claims")) as made:
        made.q(
            "CREATE TABLE public.fenced (batch text, id int, state text NOT NULL DEFAULT 'open', claimed_by text, "
            "claimed_at timestamptz, done_by int, writes int NOT NULL DEFAULT 0)"
        )
        made.q("CREATE TABLE public.sent (batch text, id int, worker int, touched int)")
        yield made


@pytest.fixture(scope="module")
def healthy(system: Cluster) -> Node:
    """A worker that lives through all tests; a test may tell it to take no messages for a while."""
    return system.start("healthy", "-P", "threads", "-c", "8")


def stands_still(node: Node) -> bool:
    return bool(psutil.Process(node.process.pid).status() == psutil.STATUS_STOPPED)


def claims(system: Cluster, place: str, batch: str) -> list[int]:
    """How often rows of a batch were claimed at their source, as far as that was committed there."""
    url = system.env["NOETL_DATABASE_URL"] if place == "here" else system.url("source")
    with psycopg.connect(url) as connection:
        return sorted(n for (n,) in connection.execute("SELECT claims FROM public.work WHERE batch = %s", (batch,)))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("place", "point", "action"), list(cases()))
def test_a_claim_is_cut_off(place: str, point: str, action: str, system: Cluster, healthy: Node) -> None:
    """This execution goes on with what was claimed: the playbook has no rule that would bring it back."""
    trial = Trial(system, f"claims cut off by SIG{action.upper()}")
    system.consume(healthy, False, queues=CONTROL_QUEUE)
    name, fault = f"{place}-{point}-{action}", f"{point}:{action}:2"
    doomed = system.start(name, "-P", "threads", "-c", "4", queues=CONTROL_QUEUE, **QUIET, NOETL_FAULT=fault)
    doomed.ended = True
    try:
        work = trial.submit(rows=ROWS, source=place, max_rows=5)
        if action == "kill":
            wait_for(lambda: doomed.process.poll() is not None, "the worker dies")
            assert doomed.process.returncode == -signal.SIGKILL, doomed.text
        else:
            wait_for(lambda: stands_still(doomed), "the worker stands still")
        system.consume(healthy, True, queues=CONTROL_QUEUE)
        assert work.execution.wait(timeout=90) == "COMPLETED"
        if action == "stop":
            wait_for(lambda: not system.q("SELECT FROM noetl.signal"), "all is decided")
            before = system.snapshot(work.execution.id)
            doomed.process.send_signal(signal.SIGCONT)
            # Its session is gone, or its ticket is; either way its task comes to an end.
            wait_for(lambda: claims_ended(doomed), "it goes on")
            assert system.snapshot(work.execution.id) == before
    finally:
        doomed.kill()
        system.consume(healthy, True, queues=CONTROL_QUEUE)
    assert claims(system, place, work.batch) == [1] * ROWS
    trial.check()


def claims_ended(node: Node) -> bool:
    """Every claim task that the node was given has ended."""
    told = re.findall(r"Task noetl\.claim\[.*?\] (received|succeeded|raised|retry)", node.text)
    return told.count("received") > 0 and 2 * told.count("received") == len(told)


class Fenced:
    """Rows in the table ``fenced``, and what was sent about them."""

    def __init__(self, system: Cluster, batch: str, rows: int) -> None:
        self.system, self.batch, self.rows = system, batch, rows
        system.q("INSERT INTO public.fenced (batch, id) SELECT %s, generate_series(1, %s)", batch, rows)

    def sent(self, worker: int) -> list[int]:
        """The rows that each UPDATE of a process has touched."""
        found = self.system.q("SELECT touched FROM public.sent WHERE batch = %s AND worker = %s", self.batch, worker)
        return [row["touched"] for row in found]

    def states(self) -> list[tuple[Any, ...]]:
        return [
            tuple(row.values())
            for row in self.system.q(
                "SELECT DISTINCT state, claimed_by, writes, done_by FROM public.fenced WHERE batch = %s", self.batch
            )
        ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("by", [pytest.param("another lane", marks=pytest.mark.short), "another claim"])
def test_a_body_that_wakes_up_touches_nothing(by: str, system: Cluster, healthy: Node) -> None:
    """It sends its UPDATE after its rows were finished by another lane, or claimed anew by another execution."""
    batch = by.replace(" ", "-")
    rows = Fenced(system, batch, 3)
    system.consume(healthy, False, queues=BODY_QUEUE)
    try:
        frozen = system.start(f"frozen-{batch}", "-P", "threads", "-c", "1", queues=BODY_QUEUE, **QUIET)
        frozen.ended = True
        execution = system.client.submit("chaos/fenced", {"batch": batch, "pause": 3})
        sleeping = "SELECT FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(3)%%' AND pid <> pg_backend_pid()"
        wait_for(lambda: len(system.q(sleeping)) == rows.rows, "its rows are at work")
        frozen.process.send_signal(signal.SIGSTOP)
        if by == "another claim":
            again = system.client.submit("chaos/fenced", {"batch": batch, "pause": 0, "stale": 0.1})
    finally:
        system.consume(healthy, True, queues=BODY_QUEUE)
    if by == "another claim":
        assert again.wait(timeout=60) == "COMPLETED"
    assert execution.wait(timeout=60) == "COMPLETED"
    finished = [("done", None, 1, healthy.process.pid)]
    assert rows.states() == finished
    frozen.process.send_signal(signal.SIGCONT)
    wait_for(lambda: len(rows.sent(frozen.process.pid)) == rows.rows, "it sends what it had to send")
    assert rows.sent(frozen.process.pid) == [0] * rows.rows
    assert rows.states() == finished
    frozen.kill()
