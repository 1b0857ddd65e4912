"""Celery nodes as subprocesses, on services of their own: what tests of recovery start, stop and kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
from celery import Celery
from psycopg.rows import dict_row

from noetl_celery import Noetl
from noetl_celery.cli.embedded import EmbeddedServices
from noetl_celery.execution import Execution
from noetl_celery.settings import load
from noetl_celery.store import migrate
from noetl_celery.store.credentials import Vault
from noetl_celery.store.db import Database

PLAYBOOKS = Path(__file__).parent / "acceptance" / "playbooks"
QUEUES = "noetl.control,noetl.body"
#: times that make a crash a matter of seconds
QUICK = {
    "NOETL_HEARTBEAT_SECONDS": "0.5",
    "NOETL_DEAD_AFTER_SECONDS": "1.5",
    "NOETL_LEASE_SECONDS": "5",
    "NOETL_REPUBLISH_SECONDS": "1",
    "NOETL_SWEEP_SECONDS": "0.3",
}


@dataclass
class Node:
    """One ``celery -A noetl_celery worker``."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    #: a test has ended it
    ended: bool = False

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())

    def kill(self) -> None:
        """SIGKILL to the node and its pool at once: the machine is gone."""
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Worker(Node):
    """One ``noetl-celery worker``: a process that minds two nodes, one of which has a pool of processes."""

    def nodes(self) -> dict[str, psutil.Process]:
        """The two by their role, ``control`` and ``bodies``; one that is being started again may be missing."""
        return {role: node for node in self.children() for role in ("control", "bodies") if f"{role}-" in _line(node)}

    def pool(self) -> list[psutil.Process]:
        """The processes in which bodies run."""
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):
            return list(self.nodes()["bodies"].children())
        return []

    def kill(self) -> None:
        """SIGKILL to all of it at once: the machine is gone."""
        self.ended = True
        with contextlib.suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self.process.pid)
            for process in (whole, *whole.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@dataclass
class Cluster:
    """PostgreSQL, Redis, and whatever nodes a test starts on them."""

    services: EmbeddedServices
    folder: Path
    env: dict[str, str]
    client: Noetl
    nodes: list[Node] = field(default_factory=list)
    #: processes that a test has killed: their end is no surprise
    killed: set[int] = field(default_factory=set)

    def kill(self, process: psutil.Process) -> None:
        """SIGKILL to one process, if it is still there."""
        self.killed.add(process.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    def start(
        self, name: str, *options: str, queues: str = QUEUES, wait: bool = True, app: str = "noetl_celery", **env: str
    ) -> Node:
        """Starts ``celery worker``; ``app``: the module that Celery finds its app in."""
        log = self.folder / f"{name}-{len(self.nodes)}.log"
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", f"{name}@test", "-Q", queues]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--without-gossip", "--without-mingle", "--loglevel", "INFO", *options],
                env=self.env | env,
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = Node(name, process, log)
        self.nodes.append(node)
        if wait:
            self.ready(node)
        return node

    def worker(self, name: str, *options: str, wait: bool = True, **env: str) -> Worker:
        """Starts ``noetl-celery worker``, as users do; ``options`` are its own (two processes for bodies)."""
        log = self.folder / f"{name}-{len(self.nodes)}.log"
        command = [sys.executable, "-m", "noetl_celery", "worker", "--name", name, *(options or ("-c", "2"))]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=self.env | env, cwd=self.folder, stdout=out, stderr=out, start_new_session=True
            )
        worker = Worker(name, process, log)
        self.nodes.append(worker)
        if wait:
            self.ready(worker)
        return worker

    def ready(self, node: Node) -> None:
        wanted = 2 if isinstance(node, Worker) else 1

        def up() -> bool:
            assert node.process.poll() is None, node.text
            return node.text.count(" ready.") >= wanted

        wait_for(up, f"{node.name} is ready", 120)

    def consume(self, node: Node, wanted: bool, *, queues: str = QUEUES) -> None:
        """Tells a node to take messages, or to take none; again, as one that is only just ready may not hear it yet."""
        verb = "add_consumer" if wanted else "cancel_consumer"
        redis = self.env["NOETL_BROKER_URL"]
        with Celery(broker=redis, backend=redis, set_as_current=False) as app:
            for queue in queues.split(","):
                tell = partial(
                    app.control.broadcast,
                    verb,
                    arguments={"queue": queue},
                    destination=[f"{node.name}@test"],
                    reply=True,
                    limit=1,
                    timeout=2,
                )
                wait_for(tell, f"{node.name} answers", 30)

    def q(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        url, ours = self.env["NOETL_DATABASE_URL"], "-c statement_timeout=0 -c default_transaction_read_only=off"
        with psycopg.connect(url, autocommit=True, row_factory=dict_row, options=ours) as connection:
            cursor = connection.execute(statement, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description is not None else []

    def value(self, statement: str, *values: Any) -> Any:
        return next(iter(self.q(statement, *values)[0].values()))

    def other(self, statement: str) -> None:
        """In the source that is another database."""
        with psycopg.connect(self.url("source"), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    def url(self, database: str) -> str:
        head, mark, query = self.env["NOETL_DATABASE_URL"].partition("?")
        return f"{head.rpartition('/')[0]}/{database}{mark}{query}"

    def fill(self, batch: str, rows: int, source: str = "here") -> None:
        statement = f"INSERT INTO public.work (batch, id) SELECT '{batch}', generate_series(1, {rows})"
        (self.q if source == "here" else self.other)(statement)

    def submit(self, batch: str, *, path: str = "test/recovery", **workload: Any) -> Execution:
        return self.client.submit(path, {"batch": batch, **workload})

    def done(self, batch: str) -> int:
        return int(self.value("SELECT count(*) FROM public.effects WHERE batch = %s", batch))

    def snapshot(self, execution: int) -> dict[str, list[dict[str, Any]]]:
        """Everything that a late write could change."""
        of_frame = "SELECT frame_id FROM noetl.frame WHERE execution_id = %s"
        return {
            "row": self.q(f"SELECT * FROM noetl.row WHERE frame_id IN ({of_frame}) ORDER BY 1, 2", execution),
            **{
                table: self.q(f"SELECT * FROM noetl.{table} t WHERE execution_id = %s ORDER BY t::text", execution)
                for table in ("frame", "stage", "claim", "run", "signal", "outbox", "event")
            },
        }

    def assert_whole(self, execution: Execution, batch: str, rows: int, *, again: int) -> None:
        """Completed, each row's effect there, each outcome final and once, nothing left open; few rows run twice."""
        number = execution.id
        assert execution.status() == "COMPLETED", execution.report()
        steps = execution.report()["steps"]
        output = steps["start"]["output"]
        assert (output["processed"], output["ok"], output["failed"]) == (rows, rows, 0)
        assert steps["end"]["output"]["rows"] == [{"n": rows}]
        outcomes = self.q(
            "SELECT r.payload ->> 'id' AS id, r.status FROM noetl.row r JOIN noetl.frame f USING (frame_id) "
            "JOIN noetl.stage s USING (stage_id) WHERE f.execution_id = %s AND s.step_name = 'start'",
            number,
        )
        assert sorted(int(row["id"]) for row in outcomes) == list(range(1, rows + 1))
        assert {row["status"] for row in outcomes} == {"OK"}
        effects = self.done(batch)
        assert rows <= effects <= rows + again, f"{effects - rows} rows ran again"
        for table in ("run", "outbox", "signal"):
            assert self.q(f"SELECT * FROM noetl.{table} WHERE execution_id = %s", number) == []
        assert self.q("SELECT status FROM noetl.frame WHERE execution_id = %s AND status <> 'COMPLETED'", number) == []


@contextlib.contextmanager
def cluster(folder: Path, **settings: str) -> Iterator[Cluster]:
    """Fresh services with the schema, the playbooks and two sources: ``here`` (our own database) and ``elsewhere``."""
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(EmbeddedServices(fresh=True))
        from cryptography.fernet import Fernet

        own = {
            "NOETL_DATABASE_URL": services.database_url or "",
            "NOETL_BROKER_URL": services.broker_url or "",
            "NOETL_SECRET_KEY": Fernet.generate_key().decode(),
            **QUICK,
            **settings,
        }
        configured = load(**{name.removeprefix("NOETL_").lower(): value for name, value in own.items()})
        migrate.upgrade(configured)
        client = stack.enter_context(Noetl(configured))
        env = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")} | own
        made = Cluster(services, folder, env, client)
        stack.callback(lambda: [node.kill() for node in made.nodes])
        made.q("CREATE DATABASE source")
        database, vault = Database(configured), Vault(configured)
        with database.begin() as connection:
            vault.store(connection, "here", "postgres", {"dsn": configured.database_url})
            vault.store(connection, "elsewhere", "postgres", {"dsn": made.url("source")})
        database.close()
        work = (
            "CREATE TABLE public.work (batch text, id int, state text NOT NULL DEFAULT 'open', "
            "claims int NOT NULL DEFAULT 0, PRIMARY KEY (batch, id))"
        )
        for run in (made.q, made.other):
            run(work)
        made.q("CREATE TABLE public.effects (batch text, id int)")
        made.q("CREATE TABLE public.once (batch text, key text, PRIMARY KEY (batch, key))")
        for name in ("recovery", "recovery_child", "effect", "family"):
            client.register(PLAYBOOKS / f"{name}.yaml")
        yield made


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
