"""The Python API: register playbooks, submit executions, follow them to their end.

PostgreSQL is the truth: whatever a method returns is committed there. Redis only brings news faster, so a broker
that is away is no error; workers find what was submitted once they can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from noetl_celery.engine.state import FINAL
from noetl_celery.errors import ExecutionFailed, InputError, NotFound, Problem, ServiceError, WaitTimeout
from noetl_celery.report import Snapshot, StepProgress, brief_error, build_report, step_progress
from noetl_celery.settings import CONTROL_QUEUE, Settings, load
from noetl_celery.submission import Playbook, checked_workload, read_playbook

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from noetl_celery.runtime.publish import Publisher
    from noetl_celery.store.db import Database
    from noetl_celery.store.prune import Pruned
    from noetl_celery.store.results import Opener

T = TypeVar("T")

STATUSES = ("PENDING", "RUNNING", "PAUSED", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED")

FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.05, 0.5
#: how long PostgreSQL may be away once it was reached
AWAY_SECONDS = 60.0
#: the same before that: most likely it is not there at all
PATIENCE_SECONDS = 2.0
#: how long Redis may take; a missed announcement costs time only
BROKER_SECONDS = 3
EVENT_PAGE = 1000
#: events that commit late may have an earlier id than ones already seen; so far back we look again
EVENT_OVERLAP = 10_000
_LARGEST_ID = 2**63 - 1
#: one thread at a time imports Celery: its modules are lazy, and another thread may find them half made
_MAKING_PUBLISHER = threading.Lock()


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a playbook in the catalog. ``new`` is False if the same content was there already."""

    path: str
    version: int
    catalog_id: int
    new: bool
    warnings: tuple[Problem, ...] = ()


class Noetl:
    """A client of one NoETL system. Safe to share between threads; close it, or use it as a context manager.

    Without ``settings`` they are read from ``NOETL_…`` variables; ``database_url`` and ``broker_url`` win over either.
    Nothing is connected before it is needed. Raises ``InputError`` for settings that cannot be used.
    """

    def __init__(
        self, settings: Settings | None = None, *, database_url: str | None = None, broker_url: str | None = None
    ) -> None:
        given = {"database_url": database_url, "broker_url": broker_url}
        overrides = {name: value for name, value in given.items() if value is not None}
        if settings is None or overrides:
            chosen = {name: getattr(settings, name) for name in settings.model_fields_set} if settings else {}
            settings = load(**{**chosen, **overrides})
        self.settings: Settings = settings
        self._db: Database | None = None
        self._publisher: Publisher | None = None
        self._reached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client may be used again, and closed again."""
        if self._db is not None:
            self._db.close()
        if self._publisher is not None:
            self._publisher = None

    def register(self, source: str | Path, *, text: str | None = None) -> Registered:
        """Puts a playbook into the catalog: the file ``source``, or ``text`` of which ``source`` is the name.

        Changed content makes a new version, unchanged content none. Raises ``PlaybookInvalid`` with all problems at
        once, ``InputError`` for a file that cannot be read, ``ServiceError``.
        """
        return self.register_playbook(read_playbook(source, text=text))

    def register_playbook(self, playbook: Playbook) -> Registered:
        """Puts a playbook that was read before into the catalog. Idempotent for the same content."""
        from noetl_celery.playbook import fingerprint
        from noetl_celery.store import catalog

        path = playbook.compiled.plan.path
        mark = fingerprint(playbook.text)
        catalog_id, version, new = self.run(lambda c: catalog.register(c, path, playbook.text, mark, playbook.file))
        return Registered(path, version, catalog_id, new, playbook.compiled.warnings)

    def submit(self, path: str, workload: Mapping[str, Any] | None = None) -> Execution:
        """Starts an execution of the newest version of a registered playbook.

        ``workload`` is merged deeply over the playbook's own, whose templates are rendered. The execution is committed
        when this returns; ``Execution.announced`` is False if Redis was away, and it then starts when Redis is back.
        Raises ``NotFound`` for an unknown path, ``InputError`` for a workload that is no JSON mapping,
        ``ServiceError``.
        """
        from noetl_celery import faults
        from noetl_celery.ids import new_id
        from noetl_celery.playbook.workload import workload_of
        from noetl_celery.store import executions

        overrides = checked_workload(workload)
        entry = self._entry(path)
        plan = read_playbook(entry["file"] or path, text=entry["content"]).compiled.plan
        execution_id = new_id()
        complete = checked_workload(workload_of(plan, overrides, execution_id))

        def write(connection: Connection) -> None:
            # Run again after a lost reply of COMMIT, it must not start a second one.
            if executions.get(connection, execution_id) is None:
                again = self.settings.republish_seconds
                executions.submit(
                    connection, execution_id, entry["catalog_id"], path, complete, republish_seconds=again
                )

        self.run(write)
        faults.reached("submit.committed")
        return Execution(self, execution_id, announced=self.announce(execution_id))

    def execution(self, execution_id: int | str) -> Execution:
        """An execution by its id. Raises ``NotFound``, ``InputError`` for what is no id, ``ServiceError``."""
        text = str(execution_id).strip()
        if not (text.isascii() and text.isdigit()) or int(text[:20]) > _LARGEST_ID:
            raise InputError(f"{text!r} is no execution id", hint="an id is a number; `noetl-celery list` shows them")
        execution = Execution(self, int(text))
        execution.row()
        return execution

    def executions(self, limit: int = 20, status: str | None = None) -> list[dict[str, Any]]:
        """The latest executions, newest first, with status and times. Raises ``InputError``, ``ServiceError``."""
        from noetl_celery.store import executions

        wanted = status.upper() if status else None
        if wanted is not None and wanted not in STATUSES:
            raise InputError(f"there is no status {status!r}", hint=f"one of {', '.join(STATUSES)}")
        if limit < 1:
            raise InputError("limit must be at least 1")
        return self.run(lambda connection: executions.recent(connection, limit=limit, status=wanted))

    def prune(
        self, older_than: timedelta, *, dry_run: bool = False, told: Callable[[Pruned], object] | None = None
    ) -> Pruned:
        """Removes executions that ended longer ago, and the weeks of events about nothing else; says what went.

        See :func:`noetl_celery.store.prune.prune`. Raises ``InputError`` for a time that is none, ``ServiceError``.
        """
        from noetl_celery.store.prune import prune

        return prune(self.run, older_than, dry_run=dry_run, told=told)

    def announce(self, execution_id: int) -> bool:
        """Tells the workers that something waits for this execution. False if Redis is away; never raises for that."""
        with _MAKING_PUBLISHER:
            publisher = self._publisher = self._publisher or _publisher(self.settings)
        return publisher.orchestrate(execution_id)

    def run(self, work: Callable[[Connection], T], *, patience_seconds: float | None = None) -> T:
        """Runs ``work``, which must be re-runnable, in a transaction. PostgreSQL's errors become ours here.

        A server that was reached before may be away for a minute, one that was not is reported soon.
        """
        import sqlalchemy as sa

        from noetl_celery.store.db import Database

        if self._db is None:
            self._db = Database(self.settings, pool_size=2)
        if patience_seconds is None:
            patience_seconds = AWAY_SECONDS if self._reached else PATIENCE_SECONDS
        try:
            result = self._db.run(work, patience_seconds=patience_seconds)
        except sa.exc.DBAPIError as error:
            raise self._refused(error) from error
        self._reached = True
        return result

    def _refused(self, error: Any) -> ServiceError:
        """What to say about a statement that PostgreSQL refused; never its parameters."""
        from noetl_celery.store.db import first_line

        state = getattr(error.orig, "sqlstate", None) or ""
        if state in ("42P01", "42703", "3F000"):
            from noetl_celery.store import migrate

            try:
                migrate.check(self.settings)
            except ServiceError as reason:
                return reason
        return ServiceError(f"PostgreSQL refused a statement: {first_line(error.orig or error)}")

    def _entry(self, path: str) -> Mapping[str, Any]:
        from noetl_celery.store import catalog

        entry, near = self.run(lambda c: (e := catalog.latest(c, path), [] if e else catalog.like(c, path)))
        if entry is not None:
            return entry
        hint = f"did you mean {' or '.join(near)}?" if near else "register it with: noetl-celery register FILE"
        raise NotFound(f"no playbook is registered as '{path}'", hint=hint)


class Execution:
    """One run of a playbook. ``id`` is its 64-bit number.

    ``announced`` is False if Redis was away when the workers were last to be told about it.
    """

    def __init__(self, client: Noetl, execution_id: int, *, announced: bool = True) -> None:
        self._client = client
        self.id = execution_id
        self.announced = announced

    def __repr__(self) -> str:
        return f"Execution({self.id})"

    def row(self) -> dict[str, Any]:
        """Its record: path, status, workload, error, times. Raises ``NotFound``, ``ServiceError``."""
        from noetl_celery.store import executions

        row = self._client.run(lambda connection: executions.get(connection, self.id))
        if row is None:
            raise NotFound(f"there is no execution {self.id}", hint="`noetl-celery list` shows the latest ones")
        return dict(row)

    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, CANCELLING, COMPLETED, FAILED or CANCELLED."""
        return str(self.row()["status"])

    def progress(self) -> tuple[StepProgress, ...]:
        """The open steps and how far each is."""
        from noetl_celery.store import executions

        return tuple(step_progress(row) for row in self._client.run(lambda c: executions.progress(c, self.id)))

    def wait(self, timeout: float | None = None) -> str:
        """Waits for the end; its final status. PostgreSQL may be away for up to a minute in the meantime.

        Raises :class:`~noetl_celery.errors.WaitTimeout` after ``timeout`` seconds (the execution goes on).
        """
        status = ""
        for snapshot, pause in self.looks(timeout, steps=False):
            status = snapshot.status
            time.sleep(pause)
        return status

    def watch(self, timeout: float | None = None) -> Iterator[Snapshot]:
        """Like :meth:`wait`, with a snapshot for every look; the last one is final."""
        for snapshot, pause in self.looks(timeout):
            yield snapshot
            time.sleep(pause)

    def looks(self, timeout: float | None = None, *, steps: bool = True) -> Iterator[tuple[Snapshot, float]]:
        """The looks of :meth:`watch`, each with the seconds to pause after it: for those who pause in their own way."""
        started = time.monotonic()
        pause = FIRST_POLL_SECONDS
        last, away_since = Snapshot(self.row()["status"]), None
        while True:
            try:
                last, away_since = self._look(steps), None
            except ServiceError as error:
                now = time.monotonic()
                away_since = away_since or now
                if now - away_since > AWAY_SECONDS:
                    raise
                last = Snapshot(last.status, last.steps, error.message)
            left = None if timeout is None else started + timeout - time.monotonic()
            if last.final:
                yield last, 0.0
                return
            if left is not None and left <= 0:
                raise WaitTimeout(f"execution {self.id} is still {last.status} after {timeout:g} s", hint="it goes on")
            yield last, pause if left is None else min(pause, left)
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)

    def _look(self, steps: bool) -> Snapshot:
        from noetl_celery.store import executions

        def read(connection: Connection) -> Snapshot:
            row = executions.get(connection, self.id)
            open_steps = executions.progress(connection, self.id) if steps else []
            return Snapshot(row["status"] if row else "CANCELLED", tuple(step_progress(line) for line in open_steps))

        return self._client.run(read, patience_seconds=0)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the end and returns the result of the last step that had a task.

        Raises :class:`~noetl_celery.errors.ExecutionFailed` if it ended FAILED or CANCELLED, ``WaitTimeout``.
        """
        self.wait(timeout)
        return self.outcome()

    def outcome(self) -> Any:
        """What :meth:`result` returns or raises, of an execution that has ended; ``WaitTimeout`` if it has not."""
        from noetl_celery.store import executions

        row, kept = self._client.run(lambda c: (executions.get(c, self.id), executions.result(c, self.id)))
        if row is None:
            raise NotFound(f"there is no execution {self.id}")
        if row["status"] not in FINAL:
            raise WaitTimeout(f"execution {self.id} is still {row['status']}")
        if row["status"] != "COMPLETED":
            error = brief_error(row["error"])
            said = f": {error['message']}" if error else ""
            raise ExecutionFailed(f"execution {self.id} is {row['status']}{said}", error=error)
        return self._whole(self._opener().open(kept))

    def step_result(self, step: str, path: str = "") -> Any:
        """The result of a step's last visit that has ended; with ``path`` (``rows[3].name``) only that part of it.

        Raises ``NotFound`` for a step without a result and a path that leads nowhere, ``InputError`` for what is no
        path or is too large for one process: :meth:`step_result_text` has no such limit.
        """
        return self._whole(self._kept(step, path))

    def step_result_text(self, step: str, path: str = "") -> Iterator[str]:
        """JSON text of the same, piece by piece and of any size. Raises what :meth:`step_result` does."""
        from noetl_celery.store.results import chunks

        return chunks(self._kept(step, path))

    def _opener(self) -> Opener:
        from noetl_celery.store.loaders import Limits
        from noetl_celery.store.results import Opener

        return Opener(self._client.run, Limits.of(self._client.settings))

    def _kept(self, step: str, path: str) -> Any:
        from noetl_celery.store import stages
        from noetl_celery.template.lazy import at, parse_path, unselected

        try:
            keys = parse_path(path)
        except ValueError as error:
            raise InputError(str(error)) from None
        opener = self._opener()
        found = self._client.run(lambda c: stages.Results(c, self.id, [step], opener).load([step]))
        if step not in found:
            steps = ", ".join(line["step_name"] for line in self.steps()) or "none yet"
            raise NotFound(f"step '{step}' of execution {self.id} has no result", hint=f"its steps: {steps}")
        try:
            return at(unselected(found[step]), keys)
        except KeyError as error:
            raise NotFound(str(error.args[0])) from None

    def _whole(self, value: Any) -> Any:
        from noetl_celery.template.lazy import TooLarge, plain, unselected

        try:
            return plain(unselected(value))
        except TooLarge as error:
            hint = f"noetl-celery result {self.id} STEP --output FILE writes one of any size"
            raise InputError(str(error), hint=hint) from None

    def report(self) -> dict[str, Any]:
        """Everything at a glance, as ``noetl-celery run --json`` prints it: status, error, every step's last visit."""
        from noetl_celery.store import executions

        row, steps, seconds = self._client.run(
            lambda c: (
                executions.get(c, self.id),
                executions.steps(c, self.id),
                executions.duration(c, self.id),
            )
        )
        if row is None:
            raise NotFound(f"there is no execution {self.id}")
        return build_report(row, steps, seconds)

    def duration(self) -> float:
        """Seconds from its submission to its end, or to now."""
        from noetl_celery.store import executions

        return self._client.run(lambda connection: executions.duration(connection, self.id))

    def steps(self) -> list[dict[str, Any]]:
        """The last visit of every step: name, status, error, rows, times; without results."""
        from noetl_celery.store import executions

        return self._client.run(lambda connection: executions.step_summaries(connection, self.id))

    def events(self, after: int = 0, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """What happened, oldest first, from behind the event id ``after``; with ``follow`` until the execution ends."""
        for found in self.event_feed(after, follow=follow):
            if isinstance(found, float):
                time.sleep(found)
            else:
                yield found

    def event_feed(self, after: int = 0, *, follow: bool = False) -> Generator[dict[str, Any] | float, None, None]:
        """Events, and between them seconds to pause: :meth:`events` for those who pause in their own way."""
        from noetl_celery.store import events

        seen: set[int] = set()
        start, pause = after, FIRST_POLL_SECONDS
        while True:
            # Asked before reading: an execution that has ended writes no further event.
            final = not follow or self.status() in FINAL
            position, fresh = start, False
            while page := self._client.run(
                lambda c, at=position: events.read(c, self.id, after=at, limit=EVENT_PAGE)  # type: ignore[misc]
            ):
                for event in page:
                    if event["event_id"] not in seen:
                        seen.add(event["event_id"])
                        fresh = True
                        yield event
                position = page[-1]["event_id"]
            if final:
                return
            start = max(after, position - EVENT_OVERLAP)
            seen = {event_id for event_id in seen if event_id > start}
            pause = FIRST_POLL_SECONDS if fresh else min(pause * 1.5, LONGEST_POLL_SECONDS)
            yield pause

    def cancel(self, reason: str | None = None) -> bool:
        """Asks for the end of the execution: no new row starts, running ones finish. False if it had ended already.

        Idempotent. Returns at once; ``wait`` for CANCELLED.
        """
        return self._signal("cancel", {"reason": reason} if reason else {}, unless=FINAL | {"CANCELLING"})

    def pause(self) -> bool:
        """No new step or claim starts until :meth:`resume`; rows that are claimed already go on.

        Idempotent; False if the execution had ended.
        """
        return self._signal("pause", {}, unless=FINAL)

    def resume(self) -> bool:
        """Goes on after :meth:`pause`. Idempotent; False if the execution had ended."""
        return self._signal("resume", {}, unless=FINAL)

    def _signal(self, type_: str, data: Mapping[str, Any], *, unless: frozenset[str]) -> bool:
        from noetl_celery.store import executions, signals

        def write(connection: Connection) -> str | None:
            row = executions.get(connection, self.id)
            if row is not None and row["status"] not in unless:
                again = self._client.settings.republish_seconds
                signals.add(connection, self.id, type_, data, republish_seconds=again)
            return row["status"] if row else None

        status = self._client.run(write)
        if status is None:
            raise NotFound(f"there is no execution {self.id}", hint="`noetl-celery list` shows the latest ones")
        if status in unless:
            return status not in FINAL
        self.announced = self._client.announce(self.id)
        return True


def _publisher(settings: Settings) -> Publisher:
    """A publisher on a Celery app of its own.

    It has no result backend (we would subscribe to results that nobody reads), does not become the current app of a
    program that uses Celery itself, and gives up soon.
    """
    from celery import Celery

    from noetl_celery.runtime.publish import Publisher

    app = Celery("noetl_celery.client", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=CONTROL_QUEUE,
        task_ignore_result=True,
        task_publish_retry=False,
        broker_connection_timeout=BROKER_SECONDS,
        broker_transport_options={
            "socket_connect_timeout": BROKER_SECONDS,
            "socket_timeout": BROKER_SECONDS,
            "max_retries": 1,
            "interval_start": 0.1,
        },
    )
    return Publisher(app)
