"""A run's surroundings: services, our client, worker processes; and what the cases do with them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet import ROOT, Fleet, environment, started, wait_said
from benchmarks.model import Command, Options, Values
from benchmarks.services import Services, services
from noetl_celery import Noetl
from noetl_celery.cli.embedded import free_port
from noetl_celery.execution import Execution
from noetl_celery.settings import load
from noetl_celery.store import migrate
from noetl_celery.store.credentials import Vault
from noetl_celery.store.db import Database

PLAYBOOKS = Path(__file__).parent / "playbooks"
ACCEPTANCE = ROOT / "playbooks" / "patient_flow" / "patient_flow.yaml"
CREDENTIAL = "bench"
#: nothing that is compared takes longer
RUN_SECONDS = 3600.0
#: a look at the table of work takes a moment of PostgreSQL's; no time is measured by it
POLL_SECONDS = 0.25


class BenchError(Exception):
    """A run did not do its work; the message says which and why."""


@dataclass
class Bench:
    """What runs of cases use."""

    options: Options
    services: Services
    client: Noetl
    fleet: Fleet
    env: Mapping[str, str]
    stack: contextlib.ExitStack
    _api_url: str = ""

    def api_url(self) -> str:
        """Where the API of the acceptance playbook answers; started by the first who asks."""
        if not self._api_url:
            port = free_port()
            command = Command(("benchmarks.stub", str(port)), "stub is ready")
            child = started("stub", command, self.options.out / "logs", self.env)
            self.stack.callback(child.kill)
            wait_said(child, command)
            self._api_url = f"http://127.0.0.1:{port}"
        return self._api_url

    def now(self) -> float:
        """The clock that all times are read from: PostgreSQL's, in seconds."""
        return float(self.services.value("SELECT extract(epoch FROM clock_timestamp())"))

    def fill(self, rows: int, payload_bytes: int = 0) -> None:
        """A fresh table with so many rows of work, and as little as possible left to do for the server itself."""
        q = self.services.q
        q("DROP TABLE IF EXISTS bench.work")
        q(
            "CREATE TABLE bench.work (id int PRIMARY KEY, state text NOT NULL DEFAULT 'open', done_at timestamptz, "
            "runs int NOT NULL DEFAULT 0, payload text NOT NULL DEFAULT '', size int)"
        )
        q("DROP TABLE IF EXISTS bench.outcome")
        q("CREATE TABLE bench.outcome (id int PRIMARY KEY, ok boolean, result json, finished_at timestamptz)")
        q("CREATE INDEX work_open ON bench.work (id) WHERE state = 'open'")
        text = f"left(repeat(md5(n::text), {payload_bytes // 32 + 1}), {payload_bytes})"
        q(f"INSERT INTO bench.work (id, payload) SELECT n, {text} FROM generate_series(1, {rows}) n")
        q("VACUUM ANALYZE bench.work")
        q("CHECKPOINT")

    def all_done(self) -> bool:
        return bool(self.services.value("SELECT NOT EXISTS (SELECT FROM bench.work WHERE state <> 'done')"))

    def drained(self, start: Callable[[], object]) -> Values:
        """Calls ``start`` and waits until all rows are done. The time is that of the last row, not when we saw it."""
        began = self.now()
        start()
        self.wait_for(self.all_done, "all rows are done")
        return self.work_done(began)

    def work_done(self, began: float, ended: float | None = None) -> Values:
        """What the table of work says about a run; raises if a row was not done, or not exactly once."""
        row = self.services.q(
            "SELECT count(*) AS rows, count(done_at) AS done, max(runs) AS most, "
            "extract(epoch FROM max(done_at)) AS ended FROM bench.work"
        )[0]
        if row["done"] != row["rows"] or row["most"] != 1:
            raise BenchError(f"{row['done']} of {row['rows']} rows done, one of them {row['most']} times")
        return {"rows": float(row["rows"]), "seconds": (ended or float(row["ended"])) - began}

    def execute(self, path: str, workload: Mapping[str, Any]) -> tuple[Values, Execution]:
        """Runs a playbook to its end; the time is from before it was handed in to the end of the execution."""
        began = self.now()
        execution = self.client.submit(path, workload)
        status = execution.wait(RUN_SECONDS)
        if status != "COMPLETED":
            raise BenchError(f"execution {execution.id} of {path} is {status}: {execution.row()['error']}")
        return {"seconds": execution.row()["finished_at"].timestamp() - began, **self.traces(execution)}, execution

    def traces(self, execution: Execution) -> Values:
        """How much of it is left in our tables."""
        return {
            name: float(
                self.services.value(
                    f"WITH RECURSIVE family AS (SELECT {execution.id}::bigint AS id UNION ALL "
                    "SELECT e.execution_id FROM noetl.execution e JOIN family ON e.parent_execution_id = family.id) "
                    f"SELECT count(*) FROM noetl.{table} WHERE execution_id IN (SELECT id FROM family)"
                )
            )
            for name, table in (("events", "event"), ("frames", "frame"))
        }

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = RUN_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.fleet.check()
            if time.monotonic() > deadline:
                raise BenchError(f"not within {seconds:g} s: {what}")
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def bench(options: Options) -> Iterator[Bench]:
    """Starts the services, with our schema and the playbooks of this folder."""
    with contextlib.ExitStack() as stack:
        from cryptography.fernet import Fernet

        found = stack.enter_context(services(options.out))
        env = environment(
            {
                "NOETL_DATABASE_URL": found.database_url,
                "NOETL_BROKER_URL": found.redis_url("noetl"),
                "NOETL_SECRET_KEY": Fernet.generate_key().decode(),
                "BENCH_DATABASE_URL": found.database_url,
                "BENCH_CELERY_URL": found.redis_url("celery"),
                "BENCH_DRAMATIQ_URL": found.redis_url("dramatiq"),
            }
        )
        own = {name.removeprefix("NOETL_").lower(): value for name, value in env.items() if name.startswith("NOETL_")}
        settings = load(**own)
        migrate.upgrade(settings)
        database, vault = Database(settings), Vault(settings)
        with database.begin() as connection:
            vault.store(connection, CREDENTIAL, "postgres", {"dsn": found.database_url})
        database.close()
        client = stack.enter_context(Noetl(settings))
        for path in (*sorted(PLAYBOOKS.glob("*.yaml")), ACCEPTANCE):
            client.register(path)
        fleet = Fleet(env, options.out / "logs", exclusive=not options.quick)
        stack.callback(fleet.close)
        yield Bench(options, found, client, fleet, env, stack)
