"""What ``doctor`` asks PostgreSQL: reads only, each statement for itself and none for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from noetl_celery.settings import Settings
from noetl_celery.store.db import Connection, away, every, one

#: a question that takes longer is given up: whoever looks after a sick server must not add to its load
STATEMENT_SECONDS = 10
#: examples that a finding names
SHOWN = 5
#: tables whose rows come and go: what autovacuum has to keep up with
HOT_TABLES = ("row", "run", "claim", "frame", "outbox", "signal", "wakeup", "execution", "worker")
#: is the worker ``w`` alive? It is while its session holds its lock, and for ``%(dead)s`` seconds after it was seen
ALIVE = """
    (EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
             AND l.classid::bigint = w.worker_id >> 32 AND l.objid::bigint = w.worker_id & 4294967295)
     OR w.seen_at > clock_timestamp() - %(dead)s * interval '1 second')
"""
_ENDED = "('COMPLETED', 'FAILED', 'CANCELLED')"


@contextmanager
def session(
    settings: Settings,
    *,
    connect_seconds: int = 5,
    statement_seconds: int = STATEMENT_SECONDS,
    name: str = "noetl-celery doctor",
) -> Iterator[Connection]:
    """A connection in which each statement is a transaction of its own. Raises ``Unreachable``."""
    options = f"-c statement_timeout={statement_seconds}s"
    arguments: dict[str, Any] = {"connect_timeout": connect_seconds, "application_name": name, "options": options}
    try:
        connection = Connection.connect(settings.libpq_url, autocommit=True, **arguments)
    except psycopg.OperationalError as error:
        raise away(error) from error
    connection.silence_seconds = statement_seconds + 1
    with connection:
        yield connection


def server(connection: Connection) -> Mapping[str, Any]:
    """Version, whether it takes writes, its clock (Unix time), and how its connections are used."""
    row = one(
        connection,
        """
        SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
               pg_is_in_recovery() AS standby, current_setting('autovacuum')::bool AS autovacuum,
               current_setting('max_connections')::int AS most,
               current_setting('superuser_reserved_connections')::int AS reserved,
               (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
               (SELECT count(*) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND application_name LIKE 'noetl-celery%%') AS ours,
               current_setting('default_transaction_read_only')::bool AS read_only
        """,
    )
    assert row is not None
    return row


def clock(connection: Connection) -> float:
    """The server's clock, as Unix time in seconds."""
    row = one(connection, "SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    assert row is not None
    return float(row["now"])


def long_transactions(connection: Connection, *, seconds: float) -> list[dict[str, Any]]:
    """Transactions of this server that are older than ``seconds``, and hold back what vacuum may remove."""
    return every(
        connection,
        """
        SELECT pid, coalesce(application_name, '') AS name, state,
               extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
        FROM pg_stat_activity
        WHERE xact_start < clock_timestamp() - %(seconds)s * interval '1 second' AND backend_type = 'client backend'
        ORDER BY xact_start LIMIT %(shown)s
        """,
        seconds=seconds,
        shown=SHOWN,
    )


def held_back(connection: Connection) -> list[dict[str, Any]]:
    """What else keeps the oldest row version that vacuum has to spare: prepared transactions, replication slots."""
    return every(
        connection,
        """
        SELECT 'prepared transaction' AS what, gid AS name, age(transaction) AS age FROM pg_prepared_xacts
        UNION ALL
        SELECT 'replication slot', slot_name, greatest(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
        WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
        ORDER BY age DESC LIMIT %(shown)s
        """,
        shown=SHOWN,
    )


def bloat(connection: Connection) -> list[dict[str, Any]]:
    """Of each hot table the rows that live, those that are dead, its size, and when it was vacuumed."""
    return every(
        connection,
        """
        SELECT relname AS name, n_live_tup AS live, n_dead_tup AS dead, pg_total_relation_size(relid) AS bytes,
               extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum))::float8 AS seconds
        FROM pg_stat_user_tables WHERE schemaname = 'noetl' AND relname = ANY(%(tables)s) ORDER BY dead DESC
        """,
        tables=list(HOT_TABLES),
    )


def processes(connection: Connection, *, dead_after_seconds: float) -> list[dict[str, Any]]:
    """The registered worker processes: alive or not, seconds since they were seen, runs that they hold."""
    return every(
        connection,
        f"""
        SELECT w.worker_id, w.host, w.pid, extract(epoch FROM clock_timestamp() - w.seen_at)::float8 AS seconds,
               {ALIVE} AS alive,
               (SELECT count(*) FROM noetl.run r WHERE r.worker_id = w.worker_id) AS runs
        FROM noetl.worker w ORDER BY w.seen_at DESC
        """,
        dead=dead_after_seconds,
    )


def work(connection: Connection) -> Mapping[str, Any]:
    """How much is under way, and since when nobody sweeps (seconds; None: nobody ever did)."""
    row = one(
        connection,
        f"""
        SELECT (SELECT count(*) FROM noetl.execution WHERE status NOT IN {_ENDED}) AS executions,
               (SELECT count(*) FROM noetl.outbox) AS dispatches,
               (SELECT count(*) FROM noetl.signal WHERE due_at <= clock_timestamp()) AS signals,
               (SELECT count(*) FROM noetl.run) AS runs,
               (SELECT max(lease_seconds) FROM noetl.run) AS longest_lease,
               (SELECT extract(epoch FROM clock_timestamp() - due_at)::float8
                FROM noetl.sweep WHERE name = 'sweep') AS unswept
        """,
    )
    assert row is not None
    return row


def stuck_dispatches(connection: Connection, *, published: int, late_seconds: float) -> list[dict[str, Any]]:
    """By queue: dispatches that were published so often and not taken, or are so late to be published."""
    return every(
        connection,
        """
        SELECT queue, count(*) AS count, max(published) AS published, min(execution_id) AS execution_id,
               max(extract(epoch FROM clock_timestamp() - publish_at))::float8 AS late
        FROM noetl.outbox
        WHERE published >= %(published)s OR publish_at < clock_timestamp() - %(late)s * interval '1 second'
        GROUP BY queue ORDER BY queue
        """,
        published=published,
        late=late_seconds,
    )


def wanted_queues(connection: Connection) -> list[str]:
    """Queues that work in the outbox waits for."""
    return [row["queue"] for row in every(connection, "SELECT DISTINCT queue FROM noetl.outbox ORDER BY queue")]


def old_signals(connection: Connection, *, seconds: float) -> list[dict[str, Any]]:
    """By execution: unread signals that were due so long ago; ``status`` is None if there is no such execution."""
    return every(
        connection,
        """
        SELECT s.execution_id, e.status, count(*) AS count, max(s.published) AS published,
               max(extract(epoch FROM clock_timestamp() - s.due_at))::float8 AS seconds
        FROM noetl.signal s LEFT JOIN noetl.execution e USING (execution_id)
        WHERE s.due_at < clock_timestamp() - %(seconds)s * interval '1 second'
           OR e.execution_id IS NULL
        GROUP BY s.execution_id, e.status ORDER BY seconds DESC LIMIT %(shown)s
        """,
        seconds=seconds,
        shown=SHOWN,
    )


def expired_leases(connection: Connection, *, seconds: float) -> list[dict[str, Any]]:
    """Runs whose lease ended so long ago, and which nobody has taken back."""
    return every(
        connection,
        """
        SELECT run_id, execution_id, worker_id, extract(epoch FROM clock_timestamp() - lease_until)::float8 AS seconds
        FROM noetl.run WHERE lease_until < clock_timestamp() - %(seconds)s * interval '1 second'
        ORDER BY lease_until LIMIT %(shown)s
        """,
        seconds=seconds,
        shown=SHOWN,
    )


def left_over(connection: Connection) -> list[dict[str, Any]]:
    """By kind: work that is open although its execution ended a minute ago (or is not there at all), and one such."""
    open_parts: Sequence[tuple[str, str]] = (
        ("frame", "t.status IN ('RUNNING', 'TENTATIVE')"),
        ("claim", "t.status IN ('OPEN', 'TAKEN')"),
        ("stage", "t.status = 'OPEN'"),
        ("run", "true"),
        ("outbox", "true"),
    )
    selects = [
        f"SELECT '{table}' AS what, count(*) AS count, min(t.execution_id) AS execution_id FROM noetl.{table} t "
        f"LEFT JOIN noetl.execution e USING (execution_id) WHERE {open_} "
        "AND (e.execution_id IS NULL OR e.finished_at < clock_timestamp() - interval '1 minute')"
        for table, open_ in open_parts
    ]
    return every(connection, f"SELECT * FROM ({' UNION ALL '.join(selects)}) parts WHERE count > 0")


def sleepers(connection: Connection) -> list[dict[str, Any]]:
    """Parked rows that nothing will wake: no wake-up, and no child that could end. At most :data:`SHOWN`."""
    return every(
        connection,
        f"""
        SELECT f.execution_id, r.frame_id, r.row_index, r.waits_for
        FROM noetl.frame f JOIN noetl.row r USING (frame_id)
        LEFT JOIN noetl.execution child ON child.execution_id = r.waits_for
        WHERE f.status = 'RUNNING' AND r.status = 'PARKED' AND (child.status IS NULL OR child.status IN {_ENDED})
          AND NOT EXISTS (SELECT FROM noetl.wakeup w WHERE w.frame_id = r.frame_id AND w.row_index = r.row_index)
        LIMIT %(shown)s
        """,
        shown=SHOWN,
    )


def strays(connection: Connection) -> list[dict[str, Any]]:
    """Rows at work for a run that is gone, and frames whose count of open rows is not what their rows say."""
    return every(
        connection,
        """
        SELECT f.execution_id, f.frame_id, f.open_rows,
               count(*) FILTER (WHERE r.status IN ('READY', 'TAKEN', 'PARKED')) AS open,
               count(*) FILTER (WHERE r.status = 'TAKEN' AND run.run_id IS NULL) AS lost
        FROM noetl.frame f JOIN noetl.row r USING (frame_id) LEFT JOIN noetl.run run ON run.run_id = r.taken_by
        WHERE f.status = 'RUNNING' GROUP BY f.frame_id
        HAVING f.open_rows <> count(*) FILTER (WHERE r.status IN ('READY', 'TAKEN', 'PARKED'))
            OR count(*) FILTER (WHERE r.status = 'TAKEN' AND run.run_id IS NULL) > 0
        LIMIT %(shown)s
        """,
        shown=SHOWN,
    )


def undecided(connection: Connection, *, seconds: float) -> list[dict[str, Any]]:
    """Tentative frames that are so old: their source has not said what became of the claim."""
    return every(
        connection,
        """
        SELECT execution_id, frame_id, extract(epoch FROM clock_timestamp() - created_at)::float8 AS seconds
        FROM noetl.frame
        WHERE status = 'TENTATIVE' AND created_at < clock_timestamp() - %(seconds)s * interval '1 second'
        ORDER BY created_at LIMIT %(shown)s
        """,
        seconds=seconds,
        shown=SHOWN,
    )


def playbooks(connection: Connection) -> list[dict[str, Any]]:
    """The newest version of each playbook, and every version that an execution under way uses (``in_use``)."""
    return every(
        connection,
        f"""
        WITH used AS (SELECT DISTINCT catalog_id FROM noetl.execution WHERE status NOT IN {_ENDED})
        SELECT c.catalog_id, c.path, c.version, c.content, c.file, used.catalog_id IS NOT NULL AS in_use
        FROM noetl.catalog c LEFT JOIN used USING (catalog_id)
        WHERE used.catalog_id IS NOT NULL
           OR c.version = (SELECT max(version) FROM noetl.catalog n WHERE n.path = c.path)
        ORDER BY c.path, c.version
        """,
    )
