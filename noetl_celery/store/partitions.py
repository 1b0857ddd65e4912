"""The weeks of ``noetl.event``: a partition for each, from Monday 00:00 UTC, made well before events need it.

Dropping a partition costs nothing however many events it holds, so that is how old ones go (``store/prune.py``).
There is no default partition: PostgreSQL would have to look through it whenever a week is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import psycopg

from noetl_celery.session import Session as Connection

WEEKS_AHEAD = 8
#: key of the advisory lock under which partitions are made
_LOCK = 4_873_220_612
#: of ``noetl.event``, with the times that each holds: from ``lower`` on, to before ``upper``
_PARTITIONS = r"""
    SELECT c.oid, c.relname AS name,
           coalesce(substring(b FROM 'FROM \(''([^'']+)''\)')::timestamptz, '-infinity') AS lower,
           coalesce(substring(b FROM 'TO \(''([^'']+)''\)')::timestamptz, 'infinity') AS upper
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) AS b
    WHERE i.inhparent = to_regclass('noetl.event')
"""
_MISSING = rf"""
    SELECT to_char(week AT TIME ZONE 'UTC', '"event_"IYYY"w"IW') AS name,
           week::text AS lower, (week + interval '168 hours')::text AS upper
    FROM generate_series(date_trunc('week', clock_timestamp(), 'UTC'),
                         clock_timestamp() + %(weeks)s * interval '168 hours', interval '168 hours') AS week
    WHERE EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = to_regclass('noetl.event'))
      AND NOT EXISTS (SELECT FROM ({_PARTITIONS}) p WHERE p.lower <= week AND p.upper > week)
    ORDER BY week
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of ``noetl.event``: its name, and what it takes on disk, indexes included."""

    name: str
    bytes: int


def make(connection: Connection) -> int:
    """Makes the partitions of this week and the next eight that are missing; says how many.

    Idempotent, safe for several at once, and one look at the catalog where nothing is missing. Holds nobody up: a
    table is made first and attached then, which events that are being written do not notice.
    """
    run = connection.execute
    if run(_MISSING, {"weeks": WEEKS_AHEAD}).fetchone() is None:
        return 0
    run("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    run("SET LOCAL lock_timeout = '5s'")
    missing = run(_MISSING, {"weeks": WEEKS_AHEAD}).fetchall()
    for name, lower, upper in missing:
        run(f"CREATE TABLE noetl.{name} (LIKE noetl.event INCLUDING DEFAULTS)")
        run(f"ALTER TABLE noetl.event ATTACH PARTITION noetl.{name} FOR VALUES FROM ('{lower}') TO ('{upper}')")
    return len(missing)


def lacking(error: BaseException) -> bool:
    """Was an event refused because there is no partition for it?"""
    # A violated CHECK, which has the same state, names its constraint.
    return (
        isinstance(error, psycopg.errors.CheckViolation)
        and error.diag.table_name == "event"
        and error.diag.constraint_name is None
    )


def before(connection: Connection, time: datetime) -> list[Partition]:
    """The partitions that hold only events before ``time``, oldest first."""
    found = f"SELECT name, pg_total_relation_size(oid) FROM ({_PARTITIONS}) p WHERE upper <= %(time)s ORDER BY upper"
    return [Partition(name, size) for name, size in connection.execute(found, {"time": time})]


def drop(connection: Connection, name: str, *, wait_ms: int) -> None:
    """Drops a partition with its events; gone already: nothing happens.

    It needs the table for itself for a moment. Whoever writes events waits behind it, so it gives up after
    ``wait_ms`` milliseconds (SQLSTATE 55P03, to be tried again).
    """
    connection.execute(f"SET LOCAL lock_timeout = {wait_ms}")
    connection.execute(f'DROP TABLE IF EXISTS noetl."{name}"')
