"""The engine's parts in one process and without Celery: what a test of store or runtime drives by hand."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from noetl_celery.ids import new_id
from noetl_celery.plans import Plans
from noetl_celery.playbook import compile_playbook
from noetl_celery.runtime import process as processes
from noetl_celery.runtime.claim import run_claim
from noetl_celery.runtime.lane import Lane
from noetl_celery.runtime.onward import After, Onward, run_on
from noetl_celery.runtime.process import Process
from noetl_celery.settings import Settings
from noetl_celery.store import catalog, executions, verify
from noetl_celery.store.credentials import Vault
from noetl_celery.store.loaders import Limits
from noetl_celery.store.outbox import Dispatch
from noetl_celery.store.verify import Verification
from noetl_celery.tools.base import ToolCall
from noetl_celery.tools.registry import ToolRegistry


class FakePublisher:
    """Keeps messages instead of sending them; what is kept may be lost, repeated or reordered by the test."""

    def __init__(self) -> None:
        self.sent: deque[Dispatch | int] = deque()
        #: what Redis is like: whether it keeps what it was sent (None: away), and whether it takes nothing more
        self.keeps: bool | None = True
        self.away = False

    def kept(self, seconds: float) -> bool | None:
        return self.keeps

    def mark(self, seconds: float) -> bool:
        return not self.away

    def orchestrate(self, execution_id: int, queue: str = "") -> bool:
        if not self.away:
            self.sent.append(execution_id)
        return not self.away

    def dispatch(self, dispatches: Iterable[Dispatch]) -> bool:
        if not self.away:
            self.sent.extend(dispatches)
        return not self.away

    def lanes(self) -> list[tuple[int, int]]:
        """(frame, lane) of the lane messages, in order."""
        kept = [message for message in self.sent if isinstance(message, Dispatch) and message.kind == "lanes"]
        return [(message.target, lane) for message in kept for lane in message.lanes]

    def claims(self) -> list[int]:
        return [message.target for message in self.sent if isinstance(message, Dispatch) and message.kind == "claim"]


class Apart(Onward):
    """As if somebody else held every execution whenever a lane or a claim tells it something: what follows is left to
    messages, one step at a time."""

    def after(self) -> After:
        return _Left(self)


class _Left(After):
    def decide(self, *args: Any, told: bool = True, **kwargs: Any) -> bool:
        super().decide(*args, told=False, **kwargs)
        self._told = args[1] if told else None
        return False

    _told: int | None = None

    def go_on(self) -> None:
        self.publish()
        if self._told is not None:
            self._onward.publisher.orchestrate(self._told)


class Probe:
    """A tool whose behaviour the test decides: calls ``act(input)``, and knows how many ran at once."""

    kind = "probe"
    raw_keys: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.act: Callable[[Mapping[str, Any]], Any] = lambda given: None
        self.calls: list[Mapping[str, Any]] = []
        self.running: list[Mapping[str, Any]] = []
        self.most = 0
        self._lock = threading.Lock()

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        return ()

    def run(self, call: ToolCall) -> Any:
        given = dict(call.input)
        with self._lock:
            self.calls.append(given)
            self.running.append(given)
            self.most = max(self.most, len(self.running))
        try:
            return self.act(given)
        finally:
            with self._lock:
                self.running.remove(given)

    def close(self) -> None:
        return None


class World:
    """One database, one worker process (of threads), its messages, and a second connection to look at it all."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.publisher = FakePublisher()
        #: whether what follows from a transaction is decided in it and gone on with, as in a worker; else step by step
        self.together = False
        self.probe = Probe()
        self._processes: list[Process] = []
        self.process = self.another_process()
        self.session = psycopg.connect(settings.libpq_url, autocommit=True, row_factory=dict_row)

    def another_process(self, settings: Settings | None = None) -> Process:
        process = Process(settings or self.settings)
        process.tools = ToolRegistry([self.probe])
        process.plans = Plans(process.tools, process.cursors)
        self._processes.append(process)
        return process

    def close(self) -> None:
        processes._stop_at[:] = bytes(len(processes._stop_at))
        for process in self._processes:
            process.close()
        self.session.close()

    # -- looking ---------------------------------------------------------------------------------------------------

    def q(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.session.execute(statement, values or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description is not None else []

    def value(self, statement: str, *values: Any) -> Any:
        rows = self.q(statement, *values)
        return next(iter(rows[0].values())) if rows else None

    def column(self, statement: str, *values: Any) -> list[Any]:
        return [next(iter(row.values())) for row in self.q(statement, *values)]

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of all tables that a write of a run may touch: to see that nothing changed."""
        tables = ("execution", "stage", "claim", "frame", "row", "run", "signal", "outbox", "wakeup", "log", "event")
        return {name: self.q(f"SELECT * FROM noetl.{name} AS t ORDER BY t::text") for name in tables}

    def rows(self, frame_id: int) -> list[str]:
        return self.column("SELECT status FROM noetl.row WHERE frame_id = %s ORDER BY row_index", frame_id)

    def status(self, execution_id: int) -> str:
        return str(self.value("SELECT status FROM noetl.execution WHERE execution_id = %s", execution_id))

    def events(self, execution_id: int) -> list[str]:
        """What happened; how it was decided is left out."""
        told = "SELECT event_type FROM noetl.event WHERE execution_id = %s AND event_type <> 'playbook.decided'"
        return self.column(f"{told} ORDER BY event_id", execution_id)

    def steps(self, execution_id: int) -> dict[str, dict[str, Any]]:
        with self.process.db.begin() as connection:
            return {step["step_name"]: step for step in executions.steps(connection, execution_id)}

    # -- doing -----------------------------------------------------------------------------------------------------

    def do(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A store function in a transaction of its own."""
        with self.process.db.begin() as connection:
            return work(connection, *args, **kwargs)

    def register(self, playbook: str) -> tuple[int, str]:
        plan = compile_playbook(playbook, file="case.yaml", tools=self.process.tools, cursors=self.process.cursors).plan
        found = self.do(catalog.register, plan.path, playbook, str(hash(playbook)), None)
        return found[0], plan.path

    def submit(self, playbook: str, **workload: Any) -> int:
        """Registers and submits; the ``start`` signal waits for somebody to orchestrate."""
        catalog_id, path = self.register(playbook)
        execution_id = new_id()
        self.do(executions.submit, execution_id, catalog_id, path, workload, republish_seconds=30.0)
        return execution_id

    def begin(self, playbook: str, **workload: Any) -> int:
        """Submits and makes the first decision; returns the execution."""
        execution_id = self.submit(playbook, **workload)
        self.orchestrate(execution_id)
        return execution_id

    def add_execution(self, **columns: Any) -> int:
        """A row of ``noetl.execution`` without anything that belongs to it."""
        values = {"execution_id": new_id(), "catalog_id": 1, "path": "p", "status": "RUNNING", **columns}
        values |= dict.fromkeys(("workload", "ctx", "state"), "{}")
        marks = ", ".join(["%s"] * len(values))
        self.q(f"INSERT INTO noetl.execution ({', '.join(values)}) VALUES ({marks})", *values.values())
        return int(values["execution_id"])

    def credential(self, name: str, fields: Mapping[str, Any]) -> None:
        vault = Vault(self.settings)
        self.do(lambda connection: vault.store(connection, name, "postgres", fields))

    def orchestrate(self, execution_id: int) -> int:
        return Onward(self.process, self.publisher).orchestrate(execution_id)

    def onward(self, process: Process | None = None) -> Onward:
        return (Onward if self.together else Apart)(process or self.process, self.publisher)

    def claim(self, claim_id: int, process: Process | None = None) -> None:
        run_claim(process or self.process, self.onward(process), claim_id)

    def lane(self, frame_id: int, number: int = 0, process: Process | None = None) -> None:
        lane = self.taken_lane(frame_id, number, process)
        if lane is not None:
            lane.run()

    def taken_lane(self, frame_id: int, number: int = 0, process: Process | None = None) -> Lane | None:
        """A lane that has started, and runs nothing yet; None if there is nothing to do for it."""
        found = self.q("SELECT execution_id, stage_id FROM noetl.frame WHERE frame_id = %s", frame_id)
        place = (found[0]["execution_id"], found[0]["stage_id"]) if found else (0, 0)
        lane = Lane(process or self.process, self.onward(process), Dispatch("lanes", *place, frame_id, (number,)))
        if not lane.start_alone():
            return None
        lane.hold()
        return lane

    def sweep(self, process: Process | None = None) -> None:
        from noetl_celery.runtime.sweep import sweep

        self.q("UPDATE noetl.sweep SET due_at = clock_timestamp()")
        assert sweep(process or self.process, self.publisher)  # type: ignore[arg-type]

    def deliver(self) -> bool:
        """Runs the oldest message here and now; lanes of a frame at once, each in a thread. False: there was none."""
        if not self.publisher.sent:
            return False
        message = self.publisher.sent.popleft()
        if isinstance(message, int):
            self.orchestrate(message)
        elif message.kind == "claim":
            self.claim(message.target)
        else:
            threads = [
                threading.Thread(target=self._body, args=(message, number), name=f"lane-{number}")
                for number in message.lanes
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.publisher.orchestrate(message.execution_id)
        return True

    def _body(self, message: Dispatch, number: int) -> None:
        if self.together:
            run_on(self.process, self.publisher, replace(message, lanes=(number,)))
        else:
            self.lane(message.target, number)

    def run(self, execution_id: int, *, messages: int = 1000) -> str:
        """Delivers every message until none is left; the execution's status."""
        for _ in range(messages):
            if not self.deliver():
                break
        return self.status(execution_id)

    def settle(self, execution_id: int, *, seconds: float = 20.0) -> str:
        """Delivers messages and sweeps until the execution has ended; its status."""
        deadline = time.monotonic() + seconds
        while (status := self.run(execution_id)) not in {"COMPLETED", "FAILED", "CANCELLED"}:
            assert time.monotonic() < deadline, f"the execution is still {status}"
            self.sweep()
            time.sleep(0.02)
        found = self.verify(execution_id)
        assert found.turns, found.notes
        assert not found.differences, list(verify.shown(found.differences))
        return status

    def verify(self, execution_id: int) -> Verification:
        """What comes of deciding the execution again."""
        catalog_id = self.value("SELECT catalog_id FROM noetl.execution WHERE execution_id = %s", execution_id)
        plan = self.do(self.process.plans.get, catalog_id)
        limits = Limits.of(self.settings)
        return self.process.db.read(lambda connection: verify.verify(connection, execution_id, plan, limits))

    def one_frame(self, execution_id: int) -> int:
        return int(self.value("SELECT frame_id FROM noetl.frame WHERE execution_id = %s", execution_id))


@contextmanager
def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Runs ``work`` in a thread meanwhile, and waits for it at the end; what it raised is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work(*args)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="meanwhile")
    thread.start()
    try:
        yield thread
    finally:
        thread.join(timeout=30)
    assert not thread.is_alive(), "the thread has not ended"
    if raised:
        raise raised[0]


def withdraw_stop() -> None:
    """As if nobody had told this process to stop."""
    from noetl_celery.runtime import process

    process._stop_at[:] = bytes(len(process._stop_at))


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
