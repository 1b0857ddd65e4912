"""Worker processes: who is there. A process is alive while its session holds the advisory lock of its id."""

from __future__ import annotations

import os
import socket
from typing import Any

import psycopg

from noetl_celery.store.db import POOL_SESSIONS, STILL_SECONDS, Connection, every, execute


def register(session: psycopg.Connection[Any], worker_id: int, name: str) -> bool:
    """Makes the process visible and takes its lock in its own session. Again after a reconnect: idempotent.

    False if the lock is not free: the server still keeps our session from before. It says that we live as well as
    this one, so nobody waits for its end; ask ``lock`` again later.
    """
    session.execute(
        """
        INSERT INTO noetl.worker (worker_id, name, host, pid) VALUES (%s, %s, %s, %s)
        ON CONFLICT (worker_id) DO UPDATE SET seen_at = clock_timestamp()
        """,
        (worker_id, name, socket.gethostname(), os.getpid()),
    )
    return lock(session, worker_id)


def lock(session: psycopg.Connection[Any], worker_id: int) -> bool:
    """Takes the process's lock if it is free; it is held until the session ends."""
    row = session.execute("SELECT pg_try_advisory_lock(%s)", (worker_id,)).fetchone()
    return bool(row and row[0])


def seen(session: psycopg.Connection[Any], worker_id: int) -> None:
    """Says that the process is alive."""
    session.execute("UPDATE noetl.worker SET seen_at = clock_timestamp() WHERE worker_id = %s", (worker_id,))


def leave(session: psycopg.Connection[Any], worker_id: int) -> None:
    """The process ends in order."""
    session.execute("DELETE FROM noetl.worker WHERE worker_id = %s", (worker_id,))


def forget_dead(connection: Connection, *, after_seconds: float) -> None:
    """Removes processes that have not been seen for long and hold no run."""
    execute(
        connection,
        """
        DELETE FROM noetl.worker w WHERE seen_at < clock_timestamp() - %(after)s * interval '1 second'
        AND NOT EXISTS (SELECT FROM noetl.run r WHERE r.worker_id = w.worker_id)
        """,
        after=after_seconds,
    )


def end_still_sessions(connection: Connection) -> int:
    """Ends sessions that stand still with their locks, as a process does that is stopped there. Their number.

    The server does so itself (``idle_in_transaction_session_timeout``), but neither in the middle of a batch nor, up to
    PostgreSQL 18 at least, always after one.
    """
    ended = every(
        connection,
        """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND usename = current_user AND application_name = %(name)s
          AND state IN ('active', 'idle in transaction') AND wait_event = 'ClientRead'
          AND state_change < clock_timestamp() - %(after)s * interval '1 second'
        """,
        name=POOL_SESSIONS,
        after=STILL_SECONDS,
    )
    return len(ended)
