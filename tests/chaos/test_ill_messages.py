"""Messages are repeated, late, out of order or lost: it costs time, and nothing is run twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from harness import SEED, Trial
from nodes import Cluster

pytestmark = pytest.mark.chaos

#: where nodes find the module of their app
PATH = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

LATE = "every message 30 s late"
ALL = "messages twice, late, out of order and 5 % lost"
ILLS = {
    "every message twice": {"duplicate": 1.0},
    LATE: {"delay": 30.0},
    "messages out of order": {"reorder": 2.0},
    "5 % of the messages lost": {"drop": 0.05},
    ALL: {"duplicate": 1.0, "delay": 0.5, "reorder": 1.0, "drop": 0.05},
}


@pytest.fixture
def workers(system: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes for decisions and two for bodies, so that a copy meets its twin at work; with one kind of illness."""
    ill = json.dumps(ILLS[request.param] | {"seed": SEED})
    env = {"NOETL_TEST_ILL": ill, "PYTHONPATH": PATH}
    begun = len(system.nodes)
    for side in ("left", "right"):
        for pool, queue in (("threads", "control"), ("prefork", "body")):
            name = f"{queue}-{side}"
            system.start(name, "-P", pool, "-c", "2", queues=f"noetl.{queue}", wait=False, app="ill_app", **env)
    for node in system.nodes[begun:]:
        system.ready(node)
    yield system
    for node in system.nodes[begun:]:
        node.kill()
    with redis.Redis.from_url(system.env["NOETL_BROKER_URL"]) as broker:
        broker.flushall()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("workers", "rows", "frame"),
    [pytest.param(ALL, 40, 20, marks=pytest.mark.short, id="all at once, short")]
    + [pytest.param(name, 100 if name == LATE else 300, 25, id=name) for name in ILLS],
    indirect=["workers"],
)
def test_messages_are_not_as_they_should_be(
    workers: Cluster, rows: int, frame: int, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["workers"]
    trial = Trial(workers, name)
    trial.submit(rows=rows, max_rows=frame)
    verdict = trial.check(within=500 if name == LATE else 200)
    with redis.Redis.from_url(workers.env["NOETL_BROKER_URL"]) as broker:
        happened = {kind.decode() for kind in broker.hkeys("ill")}
    assert happened == {"sent", *ILLS[name]}
    assert verdict.rerun == 0, "no worker died, so no row is run again"
