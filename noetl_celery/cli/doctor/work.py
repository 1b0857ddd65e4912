"""Checks of the work under way: nothing that waits for somebody who will not come."""

from __future__ import annotations

from collections.abc import Iterator

from noetl_celery.cli.console import seconds_text
from noetl_celery.cli.doctor.findings import Check, Finding, ok, problem, warning
from noetl_celery.cli.doctor.place import Place
from noetl_celery.errors import NoetlError
from noetl_celery.playbook import compile_playbook
from noetl_celery.playbook.plan import Plan
from noetl_celery.settings import BODY_QUEUE
from noetl_celery.store import health
from noetl_celery.store.decisions import body_queue

#: publications without a taker after which a dispatch or a signal is stuck, and how late it may be, in seconds
PUBLISHED, LATE_SECONDS = 4, 60.0
#: what is late by a sweep or two is not late
SWEEP_GRACE_SECONDS = 30.0
UNDECIDED_SECONDS = 600.0


def _sweep(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    work = health.work(place.postgres)
    under_way = f"{work['executions']} executions under way, {work['runs']} runs, {work['dispatches']} dispatches"
    late = SWEEP_GRACE_SECONDS + place.settings.sweep_seconds
    waits = work["executions"] or work["dispatches"] or work["signals"] or work["runs"]
    if waits and (work["unswept"] is None or work["unswept"] > late):
        since = "has ever swept" if work["unswept"] is None else f"has swept for {seconds_text(work['unswept'])}"
        yield problem(
            f"no process {since}: lost work is not looked for ({under_way})", "start a worker, look at its log"
        )
    else:
        yield ok(under_way)


def _outbox(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    stuck = health.stuck_dispatches(place.postgres, published=PUBLISHED, late_seconds=LATE_SECONDS)
    for row in stuck:
        yield problem(
            f"{row['count']} dispatches for {row['queue']} have no taker; the oldest was published {row['published']} "
            f"times (execution {row['execution_id']})",
            f"see whether a worker takes {row['queue']}, and what its log says",
        )
    if not stuck:
        yield ok("no dispatch is stuck")


def _signals(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    old = health.old_signals(place.postgres, seconds=LATE_SECONDS)
    for row in old:
        what = f"{row['count']} signals to execution {row['execution_id']}"
        if row["status"] is None:
            yield problem(
                f"{what}, which does not exist", f"DELETE FROM noetl.signal WHERE execution_id = {row['execution_id']}"
            )
            continue
        yield problem(
            f"{what} ({row['status']}) have not been read for {seconds_text(row['seconds'])}",
            "look at the logs of workers for this execution: can they read its playbook?",
        )
    if not old:
        yield ok("all are read in time")


def _leases(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    expired = health.expired_leases(place.postgres, seconds=SWEEP_GRACE_SECONDS)
    for row in expired:
        yield problem(
            f"run {row['run_id']} (execution {row['execution_id']}) lost its lease {seconds_text(row['seconds'])} ago, "
            "and nobody has taken its rows back",
            "start a worker; if one runs, look at its log for `sweep:`",
        )
    if not expired:
        yield ok("none has ended without being noticed")


def _left_over(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    found = health.left_over(place.postgres)
    for row in found:
        yield problem(
            f"noetl.{row['what']}: {row['count']} open, though their executions have ended or are gone "
            f"(execution {row['execution_id']})",
            f"a bug, if it stays: please report it with `noetl-celery events {row['execution_id']} --json`",
        )
    for row in health.sleepers(place.postgres):
        waits = f"waits for execution {row['waits_for']}, which has ended" if row["waits_for"] else "has no wake-up"
        place_ = f"row {row['row_index']} of frame {row['frame_id']} (execution {row['execution_id']})"
        yield problem(
            f"{place_} is parked and {waits}",
            "wake it: INSERT INTO noetl.wakeup (frame_id, row_index, due_at) "
            f"VALUES ({row['frame_id']}, {row['row_index']}, now())",
        )
        found.append(row)
    for row in health.strays(place.postgres):
        lost = f"{row['lost']} rows at work for nobody, " if row["lost"] else ""
        yield problem(
            f"frame {row['frame_id']} of execution {row['execution_id']}: {lost}{row['open']} open rows, counted "
            f"{row['open_rows']}",
            f"ask again; if it stays, see `noetl-celery verify {row['execution_id']}`",
        )
        found.append(row)
    for row in health.undecided(place.postgres, seconds=UNDECIDED_SECONDS):
        yield warning(
            f"frame {row['frame_id']} (execution {row['execution_id']}) has waited {seconds_text(row['seconds'])} for "
            "its source to say whether the claim was committed",
            "see whether its source can be reached from the workers",
        )
        found.append(row)
    if not found:
        yield ok("nothing is open without a reason")


def _playbooks(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    from noetl_celery.cursors.registry import CursorRegistry
    from noetl_celery.tools.registry import ToolRegistry

    tools, cursors = ToolRegistry(), CursorRegistry()
    rows = health.playbooks(place.postgres)
    broken = 0
    for row in rows:
        name = f"'{row['path']}' version {row['version']}"
        try:
            plan = compile_playbook(
                row["content"], file=row["file"] or row["path"], tools=tools, cursors=cursors, warn=False
            ).plan
        except NoetlError as error:
            broken += 1
            level, use = (problem, ", and an execution under way uses it") if row["in_use"] else (warning, "")
            yield level(
                f"{name} cannot be compiled here{use}: {str(error).splitlines()[0]}",
                "install the plugin or the version that it needs; or register it again, corrected",
            )
            continue
        yield from _without_workers(place, name, plan)
    if not broken:
        yield ok(f"{len(rows)} in the catalog can be compiled here")


def _without_workers(place: Place, name: str, plan: Plan) -> Iterator[Finding]:
    """Pools that a playbook names and no worker serves."""
    if not place.nodes:
        return
    taken = frozenset().union(*(node.queues for node in place.nodes.values()))
    queues = {body_queue(plan, step, place.settings) for step in plan.steps}
    for queue in sorted(queues - taken - {BODY_QUEUE}):
        pool = queue.removeprefix(f"{BODY_QUEUE}.")
        yield warning(f"{name} names the pool {pool}, which no worker serves", f"noetl-celery worker -Q {pool}")


WORK = [
    Check("sweep", ("postgres", "schema"), _sweep),
    Check("outbox", ("postgres", "schema"), _outbox),
    Check("signals", ("postgres", "schema"), _signals),
    Check("leases", ("postgres", "schema"), _leases),
    Check("books", ("postgres", "schema"), _left_over),
    Check("playbooks", ("postgres", "schema"), _playbooks),
]
