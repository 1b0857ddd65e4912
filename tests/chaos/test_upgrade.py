"""The schema changes beside running work, and executions that began under an older revision come to their end."""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from harness import SECONDS, Trial
from nodes import Cluster, Worker, wait_for

from noetl_celery.store import migrate

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

#: the revision that makes another table of events: workers run before and after it
WEEKS = "0006"


@pytest.fixture(scope="module")
def workers(system: Cluster) -> list[Worker]:
    return [system.worker("a"), system.worker("b")]


def db(system: Cluster, *arguments: str) -> None:
    command = [sys.executable, "-m", "noetl_celery", "db", *arguments]
    done = subprocess.run(command, env=system.env, cwd=system.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def change_events(system: Cluster, direction: str) -> None:
    """Revision 0006 alone, there or back: what came after it stays, since the workers need that."""
    (weeks,) = (script.module for script in migrate.revisions() if script.revision == WEEKS)

    def change(config: Config) -> None:
        with Operations.context(MigrationContext.configure(config.attributes["connection"])):
            getattr(weeks, direction)()

    migrate._change(system.client.settings, change)


def event_ids(system: Cluster, trial: Trial) -> list[int]:
    found = system.q(
        "SELECT event_id FROM noetl.event WHERE execution_id = ANY(%s) ORDER BY event_id",
        [work.execution.id for work in trial.works],
    )
    return [row["event_id"] for row in found]


@pytest.mark.parametrize("seconds", [pytest.param(5.0, id="short", marks=pytest.mark.short), SECONDS])
def test_the_schema_changes_beside_running_work(seconds: float, system: Cluster, workers: list[Worker]) -> None:
    """There and back: the table of events is another one each time, while events are written."""
    trial = Trial(system, "schema up and down beside running work")
    for _ in trial.harm(seconds, every=2):
        before = event_ids(system, trial)
        change_events(system, "downgrade")
        change_events(system, "upgrade")
        assert set(before) <= set(event_ids(system, trial))  # others may have been committed late
    trial.check()
    assert migrate.current(system.client.settings) == migrate.head()


@pytest.mark.parametrize(
    "revision", [pytest.param("0005", marks=pytest.mark.short), "0004"], ids=lambda name: f"from {name}"
)
def test_an_execution_of_the_revision_before_ends(revision: str, system: Cluster, workers: list[Worker]) -> None:
    """Its workers died; what they left is brought to the new revision; workers start one by one, and one dies again."""
    trial = Trial(system, f"upgrade in flight, from revision {revision}")
    trial.submit(200)
    trial.submit(60, source="elsewhere", pause=0.1)
    trial.under_way(40)
    for worker in workers:
        worker.kill()
    before = event_ids(system, trial)
    db(system, "downgrade", revision)
    # What code of then would have written has no version.
    system.q("UPDATE noetl.execution SET state = (state::jsonb - 'version')::json")
    db(system, "upgrade")
    assert event_ids(system, trial) == before
    first = system.worker("first", "-c", "1")
    done = trial.done()
    wait_for(lambda: trial.done() > done + 20, "the first one works")
    second = system.worker("second")
    first.kill()
    workers[:] = [system.worker("third"), second]
    trial.check()
