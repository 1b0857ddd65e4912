"""A past for systems that were made a moment ago: weeks of events, and executions that ended long ago."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: runs a statement in a transaction of its own
Query = Callable[..., Any]


def give_past(q: Query, number: int) -> None:
    """A partition for this week and each of ``number`` weeks before it, in the place of the one for all the past.

    Call it before anything has happened.
    """
    q(f"""
        DO $$ DECLARE week timestamptz; old name; BEGIN
          SELECT relname INTO STRICT old FROM pg_class WHERE relname LIKE 'event_before_%' AND relkind = 'r';
          EXECUTE format('DROP TABLE noetl.%I', old);
          FOR week IN
            SELECT date_trunc('week', now(), 'UTC') - n * interval '168 hours' FROM generate_series(0, {number}) n
          LOOP EXECUTE format('CREATE TABLE noetl.%I PARTITION OF noetl.event FOR VALUES FROM (%L) TO (%L)',
            to_char(week AT TIME ZONE 'UTC', '"event_"IYYY"w"IW'), week, week + interval '168 hours');
          END LOOP; END $$
    """)


def make_old(q: Query, executions: Sequence[int], days: float) -> None:
    """They, and what happened in them, were so many days ago."""
    for table, times in {"execution": ("created_at", "started_at", "finished_at"), "event": ("created_at",)}.items():
        changes = ", ".join(f"{time} = {time} - %s * interval '1 day'" for time in times)
        values = [days] * len(times)
        q(f"UPDATE noetl.{table} SET {changes} WHERE execution_id = ANY(%s)", *values, list(executions))


def weeks(q: Query) -> list[str]:
    """The partitions of events, in order."""
    found = q("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r' ORDER BY 1")
    return [row["relname"] for row in found]
