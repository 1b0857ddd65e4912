"""Housekeeping: executions that ended long ago go, with all that belongs to them, and the weeks of events about them.

A *family*, an execution that nobody called and all that it led to, goes as a whole or stays: a caller's results refer
to what its children made. First the root loses its stages, in the transaction that finds it old: without them nothing
of it can be run again. Then the rest goes in short transactions, the deepest children first, and the root's own record
last: wherever a prune was interrupted, the next one finds what it left.

Events are not deleted one by one. A partition is dropped when it ends before the oldest execution that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from noetl_celery.errors import InputError
from noetl_celery.store import partitions
from noetl_celery.store.db import Connection, changed, every, one
from noetl_celery.store.partitions import Partition

T = TypeVar("T")

#: what one transaction removes at most of each kind
BATCH = 5_000
#: families that are judged at once, and executions that are removed together
PAGE = 100
#: a partition is given up for now if it cannot be had in so many milliseconds: writers of events wait behind us
WAIT_MS = 200
LONGEST = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune has removed, or with ``dry_run`` would remove. ``partitions``: weeks of events."""

    executions: int = 0
    stages: int = 0
    frames: int = 0
    rows: int = 0
    claims: int = 0
    results: int = 0
    #: lines that tasks printed
    logs: int = 0
    partitions: tuple[Partition, ...] = ()

    def plus(self, counts: dict[str, int]) -> Pruned:
        """With so many more."""
        return replace(self, **{name: getattr(self, name) + count for name, count in counts.items()})


class Runner(Protocol):
    """Runs re-runnable work in a transaction, again while what undoes it is passing."""

    def __call__(self, work: Callable[[Connection], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class _Family:
    root: int
    #: deepest first, the root last
    members: list[int]


def prune(
    run: Runner, older_than: timedelta, *, dry_run: bool = False, told: Callable[[Pruned], object] | None = None
) -> Pruned:
    """Removes the families of which every member ended more than ``older_than`` ago; safe beside running work.

    May be interrupted anywhere and run again, also by several at once. ``told`` hears of every step. The catalog and
    credentials stay. With ``dry_run`` nothing changes. Raises ``InputError`` for a time that is none.
    """
    if not timedelta(0) < older_than <= LONGEST:
        raise InputError(f"older_than must be more than nothing and at most {LONGEST.days} days")
    told = told or (lambda _: None)
    cutoff = run(partial(_ago, time=older_than))
    done = Pruned()
    doomed: set[int] = set()
    for family in _old_families(run, cutoff):
        if dry_run:
            doomed.update(family.members)
        for counts in _counted(run, family) if dry_run else _removed(run, family, cutoff):
            done = done.plus(counts)
            told(done)
    until = run(partial(_nothing_before, cutoff=cutoff, without=doomed))
    for week in run(lambda connection: partitions.before(connection, until)):
        if not dry_run:
            run(partial(partitions.drop, name=week.name, wait_ms=WAIT_MS))
        done = replace(done, partitions=(*done.partitions, week))
        told(done)
    while not dry_run and run(partial(drop_strays, limit=BATCH)):
        pass
    return done


def drop_strays(connection: Connection, *, limit: int) -> bool:
    """Removes notes about executions that are not there: they would be announced for ever. Idempotent.

    Up to ``limit`` of each kind; says whether there may be more.
    """
    return limit in [
        changed(
            connection,
            f"DELETE FROM noetl.{table} WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM noetl.{table} t WHERE NOT EXISTS ("
            f"SELECT FROM noetl.{owner} o WHERE o.{owner}_id = t.{owner}_id) LIMIT %(limit)s))",
            limit=limit,
        )
        for table, owner in (("signal", "execution"), ("outbox", "execution"), ("wakeup", "frame"))
    ]


def _ago(connection: Connection, *, time: timedelta) -> datetime:
    """By the database's clock, as everything that is stored."""
    (row,) = every(connection, "SELECT clock_timestamp() - %(time)s::interval AS then", time=time)
    then: datetime = row["then"]
    return then


def _old_families(run: Runner, cutoff: datetime) -> Iterator[_Family]:
    """Page by page, the oldest first; those that are not old enough are passed over."""
    after = (datetime.min.replace(tzinfo=cutoff.tzinfo), 0)
    while page := run(partial(_page, cutoff=cutoff, after=after)):
        after = (page[-1]["created_at"], page[-1]["root"])
        yield from (_Family(line["root"], line["members"]) for line in page if line["old"])


def _page(connection: Connection, *, cutoff: datetime, after: tuple[datetime, int]) -> list[dict[str, Any]]:
    return every(
        connection,
        """
        WITH RECURSIVE root AS (
            SELECT execution_id, created_at FROM noetl.execution e
            WHERE created_at < %(cutoff)s AND (created_at, execution_id) > (%(time)s, %(id)s)
              AND finished_at < %(cutoff)s
              AND NOT EXISTS (SELECT FROM noetl.execution p WHERE p.execution_id = e.parent_execution_id)
            ORDER BY created_at, execution_id LIMIT %(limit)s
        ), family AS (
            SELECT r.execution_id AS root, r.created_at, e.execution_id, e.depth, e.finished_at
            FROM root r JOIN noetl.execution e USING (execution_id)
            UNION ALL
            SELECT f.root, f.created_at, e.execution_id, e.depth, e.finished_at
            FROM family f JOIN noetl.execution e ON e.parent_execution_id = f.execution_id
        )
        SELECT root, created_at, array_agg(execution_id ORDER BY depth DESC, execution_id) AS members,
               bool_and(coalesce(finished_at < %(cutoff)s, false)) AS old
        FROM family GROUP BY root, created_at ORDER BY created_at, root
        """,
        cutoff=cutoff,
        time=after[0],
        id=after[1],
        limit=PAGE,
    )


def _counted(run: Runner, family: _Family) -> Iterator[dict[str, int]]:
    yield {"executions": len(family.members)}
    of_frames = "noetl.row JOIN noetl.frame USING (frame_id)"
    for name in ("stages", "frames", "claims", "results", "logs", "rows"):
        source = of_frames if name == "rows" else f"noetl.{name[:-1]}"
        count = f"SELECT count(*) AS n FROM {source} WHERE execution_id = ANY(%(ids)s)"
        (line,) = run(partial(every, sql=count, ids=family.members))
        yield {name: line["n"]}


def _removed(run: Runner, family: _Family, cutoff: datetime) -> Iterator[dict[str, int]]:
    stages = run(partial(_seal, root=family.root, cutoff=cutoff))
    if stages is None:
        return
    yield {"stages": stages}
    for start in range(0, len(family.members), PAGE):
        ids = family.members[start : start + PAGE]
        more = True
        while more:
            more, counts = run(partial(_remove_some, ids=ids))
            yield counts


def _seal(connection: Connection, *, root: int, cutoff: datetime) -> int | None:
    """Takes the root's stages away, and with them the possibility to run anything of it again: their number.

    None if somebody else is about it, or wants to run it again.
    """
    old = one(
        connection,
        """
        SELECT FROM noetl.execution e WHERE execution_id = %(root)s AND finished_at < %(cutoff)s AND NOT EXISTS (
            SELECT FROM noetl.signal s WHERE s.execution_id = e.execution_id AND s.type = 'retry')
        FOR UPDATE SKIP LOCKED
        """,
        root=root,
        cutoff=cutoff,
    )
    if old is None:
        return None
    return changed(connection, "DELETE FROM noetl.stage WHERE execution_id = %(root)s", root=root)


def _remove_some(connection: Connection, *, ids: list[int]) -> tuple[bool, dict[str, int]]:
    """Removes a batch of what belongs to these executions, and with the last of it the executions themselves.

    Says whether there is more, and what went. Each kind waits until the one before it, which refers to it, is gone.
    """

    def of_ids(table: str, limit: int) -> int:
        return _delete(connection, table, "execution_id = ANY(%(ids)s)", limit, ids=ids)

    held = every(
        connection,
        "SELECT frame_id FROM noetl.frame WHERE execution_id = ANY(%(ids)s) ORDER BY frame_id LIMIT %(limit)s",
        ids=ids,
        limit=PAGE,
    )
    frames = [line["frame_id"] for line in held]
    counts = {"rows": _delete(connection, "row", "frame_id = ANY(%(frames)s)", BATCH, frames=frames)}
    if counts["rows"] == BATCH:
        return True, counts
    _delete(connection, "wakeup", "frame_id = ANY(%(frames)s)", BATCH, frames=frames)
    counts["frames"] = _delete(connection, "frame", "frame_id = ANY(%(frames)s)", PAGE, frames=frames)
    if len(frames) == PAGE:
        return True, counts
    for name, limit in (("results", PAGE), ("logs", BATCH), ("claims", BATCH), ("stages", BATCH)):
        counts[name] = of_ids(name[:-1], limit)
        if counts[name] == limit:
            return True, counts
    of_ids("signal", BATCH)
    of_ids("outbox", BATCH)
    counts["executions"] = of_ids("execution", PAGE)
    return False, counts


def _delete(connection: Connection, table: str, where: str, limit: int, **values: object) -> int:
    return changed(
        connection,
        f"DELETE FROM noetl.{table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM noetl.{table} WHERE {where} "
        "LIMIT %(limit)s))",
        limit=limit,
        **values,
    )


def _nothing_before(connection: Connection, *, cutoff: datetime, without: set[int]) -> datetime:
    """No execution that stays was submitted before this time: no event of one is older.

    ``without``: executions that would have been removed.
    """
    after = (datetime.min.replace(tzinfo=cutoff.tzinfo), 0)
    while page := every(
        connection,
        """
        SELECT execution_id, created_at FROM noetl.execution
        WHERE (created_at, execution_id) > (%(time)s, %(id)s) AND created_at < %(cutoff)s
        ORDER BY created_at, execution_id LIMIT %(limit)s
        """,
        time=after[0],
        id=after[1],
        cutoff=cutoff,
        limit=BATCH,
    ):
        for line in page:
            after = (line["created_at"], line["execution_id"])
            if line["execution_id"] not in without:
                return after[0]
    return cutoff
