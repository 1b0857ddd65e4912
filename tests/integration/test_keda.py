"""The query that KEDA asks, on the tables as they are."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml

pytestmark = pytest.mark.integration

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"


def query_of(file: str) -> str:
    """What the first trigger of a ScaledObject asks."""
    [trigger] = yaml.safe_load((KUBERNETES / file).read_text())["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


QUERY = query_of("keda/bodies.yaml")
GPU_QUERY = query_of("pool/gpu/scaling.yaml")
#: what docs/deployment.md gives the role of KEDA
RIGHTS = """
    CREATE ROLE noetl_keda_test;
    GRANT USAGE ON SCHEMA noetl TO noetl_keda_test;
    GRANT SELECT ON noetl.outbox, noetl.run, noetl.worker TO noetl_keda_test;
"""


def lane(connection: psycopg.Connection, frame: int, queue: str) -> None:
    """A lane that waits."""
    connection.execute(
        "INSERT INTO noetl.outbox (execution_id, stage_id, frame_id, queue, publish_at) VALUES (1, 1, %s, %s, now())",
        (frame, queue),
    )


def run(connection: psycopg.Connection, number: int, host: str, *, claim: bool = False) -> None:
    """A lane (or a claim) at work in a process on ``host``."""
    connection.execute(
        "INSERT INTO noetl.worker (worker_id, name, host, pid) VALUES (%s, %s, %s, 1)", (number, host, host)
    )
    connection.execute(
        "INSERT INTO noetl.run (run_id, worker_id, execution_id, frame_id, claim_id, lease_seconds, lease_until,"
        " heartbeat_seconds) VALUES (%s, %s, 1, %s, %s, 9, now(), 9)",
        (number, number, None if claim else number, number if claim else None),
    )


def test_lanes_that_wait_and_lanes_at_work(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(RIGHTS)
        lane(connection, 1, "noetl.body")
        lane(connection, 2, "noetl.body")
        lane(connection, 3, "noetl.body.gpu")
        run(connection, 11, "noetl-bodies-5c9-x7")
        run(connection, 12, "noetl-gpu-77d-aa")
        run(connection, 13, "noetl-control-1-b", claim=True)
        connection.execute("SET LOCAL ROLE noetl_keda_test")
        assert connection.execute(QUERY).fetchone() == (3,)
        assert connection.execute(GPU_QUERY).fetchone() == (2,)
        connection.rollback()


def test_nothing_to_do_is_a_number(database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.execute(QUERY).fetchone() == (0,)
