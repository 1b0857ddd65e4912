"""The Python API: register playbooks, submit executions, follow them to their end.

PostgreSQL is the truth: whatever a method returns is committed there. Redis only brings news faster, so a broker
that is away is no error; workers find what was submitted once they can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from noetl_celery.errors import InputError, NotFound, Problem, ServiceError
from noetl_celery.execution import AWAY_SECONDS, Execution
from noetl_celery.settings import CONTROL_QUEUE, Settings, load
from noetl_celery.submission import Playbook, check_credential, checked_id, checked_workload, read_playbook

if TYPE_CHECKING:
    import psycopg

    from noetl_celery.plans import Plans
    from noetl_celery.playbook.plan import Plan
    from noetl_celery.runtime.publish import Publisher
    from noetl_celery.store.db import Connection, Database
    from noetl_celery.store.news import News
    from noetl_celery.store.prune import Pruned

T = TypeVar("T")

STATUSES = ("PENDING", "RUNNING", "PAUSED", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED")

#: how long PostgreSQL may be away before it was ever reached: most likely it is not there at all
PATIENCE_SECONDS = 2.0
#: how long Redis may take; a missed announcement costs time only
BROKER_SECONDS = 3
#: how long workers have to say what they take
ANSWER_SECONDS = 1.0
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
    Nothing is connected before it is needed; ``connections`` to PostgreSQL are kept, as many again opened in a rush.
    ``patience_seconds``: how long it may be away before a method gives up; a minute, and 2 s if it was never there.
    Raises ``InputError`` for settings that cannot be used.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        database_url: str | None = None,
        broker_url: str | None = None,
        connections: int = 2,
        patience_seconds: float | None = None,
    ) -> None:
        given = {"database_url": database_url, "broker_url": broker_url}
        overrides = {name: value for name, value in given.items() if value is not None}
        if settings is None or overrides:
            chosen = {name: getattr(settings, name) for name in settings.model_fields_set} if settings else {}
            settings = load(**{**chosen, **overrides})
        self.settings: Settings = settings
        self._connections, self._patience = connections, patience_seconds
        self._db: Database | None = None
        self._publisher: Publisher | None = None
        self._news: News | None = None
        self._plans: Plans | None = None
        self._reached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client may be used again, and closed again."""
        if self._news is not None:
            self._news.close()
            self._news = None
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

    def submit(
        self,
        path: str,
        workload: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        key: str | None = None,
    ) -> Execution:
        """Starts an execution of a registered playbook: of its newest ``version``, if none is given.

        ``workload`` is merged deeply over the playbook's own, whose templates are rendered. The execution is committed
        when this returns; ``Execution.announced`` is False if Redis was away, and it then starts when Redis is back.
        Of several calls with the same path and ``key`` one starts an execution, and all return it, as long as it is
        kept: the first one's workload counts. Raises ``NotFound`` for an unknown path or version, ``InputError`` for a
        workload that is no JSON mapping, ``ServiceError``.
        """
        from noetl_celery import faults
        from noetl_celery.ids import id_of, new_id
        from noetl_celery.playbook.workload import workload_of
        from noetl_celery.store import executions
        from noetl_celery.store.decisions import start_queue

        overrides = checked_workload(workload)
        execution_id = new_id() if key is None else id_of("submit", path, key)
        if key is not None and self.read(lambda connection: executions.get(connection, execution_id)):
            return Execution(self, execution_id)
        entry = self.registered(path, version)
        plan = self._known_plans().of(entry)
        complete = checked_workload(workload_of(plan, overrides, execution_id))

        def write(connection: Connection) -> None:
            if key is not None:
                executions.alone(connection, execution_id)
            # Run again after a lost reply of COMMIT, it must not start a second one.
            if executions.get(connection, execution_id) is None:
                again = self.settings.republish_seconds
                executions.submit(
                    connection, execution_id, entry["catalog_id"], path, complete, republish_seconds=again
                )

        self.run(write)
        faults.reached("submit.committed")
        return Execution(self, execution_id, announced=self.announce(execution_id, start_queue(plan)))

    def registered(self, path: str, version: int | None = None) -> Mapping[str, Any]:
        """A version of a playbook in the catalog, the newest if none is given.

        ``{catalog_id, path, version, fingerprint, content, file, created_at}``. Raises ``NotFound``, with paths that
        look like it.
        """
        from noetl_celery.store import catalog

        wanted = None if version is None else str(version)
        entry, last = self.read(lambda c: (e := catalog.version(c, path, wanted), e or catalog.latest(c, path)))
        if entry is not None:
            return entry
        if last is not None:
            raise NotFound(f"'{path}' has no version {version}", hint=f"the newest is {last['version']}")
        near = self.read(lambda connection: catalog.like(connection, path))
        hint = f"did you mean {' or '.join(near)}?" if near else "register it with: noetl-celery register FILE"
        raise NotFound(f"no playbook is registered as '{path}'", hint=hint)

    def execution(self, execution_id: int | str) -> Execution:
        """An execution by its id. Raises ``NotFound``, ``InputError`` for what is no id, ``ServiceError``."""
        execution = Execution(self, checked_id(execution_id))
        execution.row()
        return execution

    def executions(
        self,
        limit: int = 20,
        status: str | None = None,
        *,
        path: str | None = None,
        before: tuple[datetime, int] | None = None,
    ) -> list[dict[str, Any]]:
        """The latest executions, newest first, as :func:`noetl_celery.store.browse.executions` has them.

        Only those with this ``status`` and of the playbook ``path``; ``before``: only older ones than the one that was
        created then and has this id, to read on behind it. Raises ``InputError``, ``ServiceError``.
        """
        from noetl_celery.store import browse

        wanted = status.upper() if status else None
        if wanted is not None and wanted not in STATUSES:
            raise InputError(f"there is no status {status!r}", hint=f"one of {', '.join(STATUSES)}")
        if limit < 1:
            raise InputError("limit must be at least 1")
        return self.read(
            lambda connection: browse.executions(connection, status=wanted, path=path, before=before, limit=limit)
        )

    def playbooks(self, limit: int = 100, *, after: str = "") -> list[dict[str, Any]]:
        """The newest version of each playbook whose path comes behind ``after``, in the order of paths.

        ``{catalog_id, path, version, created_at}``. Raises ``ServiceError``.
        """
        from noetl_celery.store import catalog

        return self.read(lambda connection: catalog.listed(connection, after=after, limit=limit))

    def versions(self, path: str, limit: int = 100, *, before: int | None = None) -> list[dict[str, Any]]:
        """The versions of a playbook below ``before``, newest first: the same fields. Raises ``ServiceError``."""
        from noetl_celery.store import catalog

        return self.read(lambda connection: catalog.versions(connection, path, before=before, limit=limit))

    def entry(self, catalog_id: int) -> Mapping[str, Any]:
        """What :meth:`registered` has, by its ``catalog_id``. Raises ``NotFound``, ``ServiceError``."""
        from noetl_celery.store import catalog

        found = self.read(lambda connection: catalog.get(connection, catalog_id))
        if found is None:
            raise NotFound(f"the catalog has no entry {catalog_id}")
        return found

    def credentials(self) -> list[dict[str, Any]]:
        """Names, types and times of all credentials, never their fields. Raises ``ServiceError``."""
        from noetl_celery.store import credentials

        return self.read(credentials.names)

    def set_credential(self, name: str, type_: str, fields: Mapping[str, Any]) -> None:
        """Creates or replaces a credential, encrypted with the key of the settings.

        Raises ``InputError`` for fields that are sure not to work (it says which, and shows none), without a key and
        for a name that is none; ``ServiceError``.
        """
        from noetl_celery.hiding import learn_credential
        from noetl_celery.store.credentials import Vault

        learn_credential(fields)
        check_credential(name, type_, fields)
        vault = Vault(self.settings)
        self.run(lambda connection: vault.store(connection, name, type_, fields))

    def delete_credential(self, name: str) -> None:
        """Removes a credential. Raises ``NotFound``, ``ServiceError``."""
        from noetl_celery.store import credentials

        if not self.run(lambda connection: credentials.delete(connection, name)):
            raise NotFound(f"there is no credential '{name}'", hint="`noetl-celery credential list` shows all names")

    def prune(
        self, older_than: timedelta, *, dry_run: bool = False, told: Callable[[Pruned], object] | None = None
    ) -> Pruned:
        """Removes executions that ended longer ago, and the weeks of events about nothing else; says what went.

        See :func:`noetl_celery.store.prune.prune`. Raises ``InputError`` for a time that is none, ``ServiceError``.
        """
        from noetl_celery.store.prune import prune

        return prune(self.run, older_than, dry_run=dry_run, told=told)

    def announce(self, execution_id: int, queue: str = CONTROL_QUEUE) -> bool:
        """Tells the workers that something waits for this execution. False if Redis is away; never raises for that."""
        return self._messages().orchestrate(execution_id, queue)

    def queues(self) -> frozenset[str] | None:
        """The queues that workers take now, which takes a moment to ask. None if Redis is away; never raises."""
        return self._messages().queues(ANSWER_SECONDS)

    def _messages(self) -> Publisher:
        with _MAKING_PUBLISHER:
            self._publisher = self._publisher or _publisher(self.settings)
            return self._publisher

    def run(self, work: Callable[[Connection], T], *, patience_seconds: float | None = None) -> T:
        """Runs ``work``, which must be re-runnable, in a transaction. PostgreSQL's errors become ours here.

        A server that was reached before may be away for a minute, one that was not is reported soon.
        """
        return self._ask(lambda db, patience: db.run(work, patience_seconds=patience), patience_seconds)

    def read(self, look: Callable[[Connection], T], *, patience_seconds: float | None = None) -> T:
        """Runs ``look``, which only reads, each statement for itself; else like :meth:`run`."""
        return self._ask(lambda db, patience: db.read(look, patience_seconds=patience), patience_seconds)

    def news(self, execution_id: int) -> AbstractContextManager[Callable[[float], None]]:
        """A function that waits for the end of an execution, or so many seconds; see :class:`store.news.News`."""
        from noetl_celery.store.news import News

        if self._news is None:
            self._news = News(self._database())
        return self._news.of(execution_id)

    def _database(self) -> Database:
        from noetl_celery.store.db import Database

        if self._db is None:
            self._db = Database(self.settings, pool_size=self._connections)
        return self._db

    def _ask(self, ask: Callable[[Database, float], T], patience_seconds: float | None) -> T:
        import psycopg

        if patience_seconds is None:
            patience_seconds = self._patience
        if patience_seconds is None:
            patience_seconds = AWAY_SECONDS if self._reached else PATIENCE_SECONDS
        try:
            result = ask(self._database(), patience_seconds)
        except psycopg.Error as error:
            raise self._refused(error) from error
        self._reached = True
        return result

    def plan(self, catalog_id: int) -> Plan:
        """The plan of a registered version. Raises ``NotFound``, ``PlaybookInvalid`` if this process cannot read it."""
        return self.read(lambda connection: self._known_plans().get(connection, catalog_id))

    def _refused(self, error: psycopg.Error) -> ServiceError:
        """What to say about a statement that PostgreSQL refused; never its parameters."""
        from noetl_celery.store.db import first_line

        if error.sqlstate in ("42P01", "42703", "3F000"):
            from noetl_celery.store import migrate

            try:
                migrate.check(self.settings)
            except ServiceError as reason:
                return reason
        return ServiceError(f"PostgreSQL refused a statement: {first_line(error)}")

    def _known_plans(self) -> Plans:
        from noetl_celery.cursors.registry import CursorRegistry
        from noetl_celery.plans import Plans
        from noetl_celery.tools.registry import ToolRegistry

        if self._plans is None:
            self._plans = Plans(ToolRegistry(), CursorRegistry())
        return self._plans


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
