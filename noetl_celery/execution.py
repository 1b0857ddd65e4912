"""One execution, followed and told what to do. Every method is a short transaction of its own."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from noetl_celery.engine.state import FINAL
from noetl_celery.errors import ExecutionFailed, InputError, NotFound, ServiceError, WaitTimeout, WrongState
from noetl_celery.feed import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, feed
from noetl_celery.report import Snapshot, StepProgress, Summary, brief_error, build_report, step_progress

if TYPE_CHECKING:
    from noetl_celery.client import Noetl
    from noetl_celery.explanation import Reason
    from noetl_celery.store.db import Connection
    from noetl_celery.store.ledger import Books
    from noetl_celery.store.results import Opener
    from noetl_celery.store.verify import Verification

#: how long PostgreSQL may be away once it was reached
AWAY_SECONDS = 60.0
#: events, rows and lines that are read at once
PAGE = 1000


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

        row = self._client.read(lambda connection: executions.get(connection, self.id))
        if row is None:
            raise NotFound(f"there is no execution {self.id}", hint="`noetl-celery list` shows the latest ones")
        return dict(row)

    def overview(self) -> dict[str, Any]:
        """Its line in a list of executions: see :func:`noetl_celery.store.browse.executions`. Raises ``NotFound``."""
        from noetl_celery.store import browse

        row = self._client.read(lambda connection: browse.execution(connection, self.id))
        if row is None:
            raise NotFound(f"there is no execution {self.id}", hint="`noetl-celery list` shows the latest ones")
        return row

    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, CANCELLING, COMPLETED, FAILED or CANCELLED."""
        return str(self.row()["status"])

    def progress(self) -> tuple[StepProgress, ...]:
        """The open steps and how far each is."""
        from noetl_celery.store import executions

        return tuple(step_progress(row) for row in self._client.read(lambda c: executions.progress(c, self.id)))

    def wait(self, timeout: float | None = None) -> str:
        """Waits for the end; its final status. PostgreSQL may be away for up to a minute in the meantime.

        Raises :class:`~noetl_celery.errors.WaitTimeout` after ``timeout`` seconds (the execution goes on).
        """
        status = ""
        with self._client.news(self.id) as wait:
            for snapshot, pause in self.looks(timeout, steps=False):
                status = snapshot.status
                wait(pause)
        return status

    def watch(self, timeout: float | None = None) -> Iterator[Snapshot]:
        """Like :meth:`wait`, with a snapshot for every look; the last one is final."""
        with self._client.news(self.id) as wait:
            for snapshot, pause in self.looks(timeout):
                yield snapshot
                wait(pause)

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

        return self._client.read(read, patience_seconds=0)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the end and returns the result of the last step that had a task.

        Raises :class:`~noetl_celery.errors.ExecutionFailed` if it ended FAILED or CANCELLED, ``WaitTimeout``.
        """
        self.wait(timeout)
        return self.outcome()

    def outcome(self) -> Any:
        """What :meth:`result` returns or raises, of an execution that has ended; ``WaitTimeout`` if it has not."""
        return self._whole(self._final())

    def outcome_text(self, path: str = "") -> Iterator[str]:
        """JSON text of the same, piece by piece and of any size; with ``path`` (``rows[3].name``) only a part of it."""
        from noetl_celery.store.results import chunks

        return chunks(_part(self._final(), path))

    def _final(self) -> Any:
        from noetl_celery.store import executions

        row, kept = self._client.read(lambda c: (executions.get(c, self.id), executions.result(c, self.id)))
        if row is None:
            raise NotFound(f"there is no execution {self.id}")
        if row["status"] not in FINAL:
            raise WaitTimeout(f"execution {self.id} is still {row['status']}")
        if row["status"] != "COMPLETED":
            error = brief_error(row["error"])
            said = f": {error['message']}" if error else ""
            raise ExecutionFailed(f"execution {self.id} is {row['status']}{said}", error=error)
        return self._opener().open(kept)

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

        return Opener(self._client.read, Limits.of(self._client.settings))

    def _kept(self, step: str, path: str) -> Any:
        from noetl_celery.store import stages

        opener = self._opener()
        found = self._client.read(lambda c: stages.Results(c, self.id, [step], opener).load([step]))
        if step not in found:
            steps = ", ".join(line["step_name"] for line in self.steps()) or "none yet"
            raise NotFound(f"step '{step}' of execution {self.id} has no result", hint=f"its steps: {steps}")
        return _part(found[step], path)

    def _whole(self, value: Any) -> Any:
        from noetl_celery.template.lazy import TooLarge, plain, unselected

        try:
            return plain(unselected(value))
        except TooLarge as error:
            hint = f"noetl-celery result {self.id} STEP --output FILE writes one of any size"
            raise InputError(str(error), hint=hint) from None

    def report(self) -> dict[str, Any]:
        """Everything at a glance, as ``noetl-celery run --json`` prints it: status, error, every step's last visit."""
        from noetl_celery.store import executions, ledger

        row, steps, seconds, books = self._client.read(
            lambda c: (
                executions.get(c, self.id),
                executions.steps(c, self.id),
                executions.duration(c, self.id),
                ledger.of_execution(c, self.id),
            )
        )
        if row is None:
            raise NotFound(f"there is no execution {self.id}")
        return build_report(row, steps, seconds, books)

    def duration(self) -> float:
        """Seconds from its submission to its end, or to now."""
        from noetl_celery.store import executions

        return self._client.read(lambda connection: executions.duration(connection, self.id))

    def summary(self) -> Summary:
        """What it came to: time, rows, retries, the slowest step. Complete when it has ended."""
        from noetl_celery.store import executions

        return Summary(**self._client.read(lambda connection: executions.summary(connection, self.id)))

    def steps(self) -> list[dict[str, Any]]:
        """The last visit of every step: name, status, error, rows, times; without results."""
        from noetl_celery.store import executions

        return self._client.read(lambda connection: executions.step_summaries(connection, self.id))

    def books(self) -> list[Books]:
        """The books of every visit of a step that has work: where its rows are, and what does not add up."""
        from noetl_celery.store import ledger

        return self._client.read(lambda connection: ledger.of_execution(connection, self.id))

    def rows(self, step: str, *, failed: bool = False) -> Iterator[dict[str, Any]]:
        """The rows of the last visit of a step, or only those that failed, in order; read page by page.

        Each as :func:`noetl_celery.store.browse.rows` has it. Raises ``NotFound`` for a step that was never entered.
        """
        from noetl_celery.store import browse

        look = partial(browse.rows, stage_id=self._last_stage(step)["stage_id"], limit=PAGE, failed=failed)
        after = browse.START
        while page := self._client.read(partial(look, after=after)):
            yield from page
            after = browse.place(page[-1])

    def row_page(
        self, step: str, limit: int = PAGE, *, failed: bool = False, after: tuple[int, int, int] | None = None
    ) -> list[dict[str, Any]]:
        """At most ``limit`` of the same rows, behind the place ``after`` (:func:`noetl_celery.store.browse.place`)."""
        from noetl_celery.store import browse

        stage_id, start = self._last_stage(step)["stage_id"], after or browse.START
        return self._client.read(lambda c: browse.rows(c, stage_id, after=start, limit=limit, failed=failed))

    def _last_stage(self, step: str) -> Mapping[str, Any]:
        from noetl_celery.store import browse

        stage = self._client.read(lambda connection: browse.last_stage(connection, self.id, step))
        if stage is None:
            entered = ", ".join(line["step_name"] for line in self.steps())
            hint = f"these were: {entered}" if entered else "no step was"
            raise NotFound(f"execution {self.id} has not entered a step '{step}'", hint=hint)
        return stage

    def explain(self) -> list[Reason]:
        """Why it is where it is, in words, with what to do. Workers are asked which queues they take (a second).

        Raises ``NotFound``, ``ServiceError``.
        """
        from noetl_celery.explanation import explain
        from noetl_celery.store import situation

        dead = self._client.settings.dead_after_seconds
        found = self._client.read(lambda c: situation.of(c, self.id, dead_after_seconds=dead))
        if found is None:
            raise NotFound(f"there is no execution {self.id}", hint="`noetl-celery list` shows the latest ones")
        ended = found.execution["status"] in FINAL
        return explain(found, None if ended else self._client.queues())

    def events(self, after: int = 0, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """What happened, oldest first, from behind the event id ``after``; with ``follow`` until the execution ends."""
        return _paused(self.event_feed(after, follow=follow))

    def event_page(self, limit: int = PAGE, *, after: int = 0) -> list[dict[str, Any]]:
        """At most ``limit`` events, oldest first, from behind the event id ``after``."""
        from noetl_celery.store import events

        return self._client.read(lambda connection: events.read(connection, self.id, after=after, limit=limit))

    def latest_events(self, limit: int, *, skip: int = 0) -> tuple[list[dict[str, Any]], int]:
        """At most ``limit`` events, the newest first, but for the ``skip`` newest; and how many there are in all."""
        from noetl_celery.store import events

        return self._client.read(
            lambda c: (events.latest(c, self.id, skip=skip, limit=limit), events.count(c, self.id))
        )

    def event_feed(self, after: int = 0, *, follow: bool = False) -> Generator[dict[str, Any] | float, None, None]:
        """Events, and between them seconds to pause: :meth:`events` for those who pause in their own way."""
        from noetl_celery.store import events

        look = partial(events.read, execution_id=self.id, limit=PAGE)
        return feed(
            lambda at: self._client.read(partial(look, after=at)), self._ended, "event_id", after, follow=follow
        )

    def logs(
        self, step: str | None = None, *, after: int = 0, tail: int | None = None, follow: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What tasks printed, oldest first: of all steps, or of all visits of one; from behind the line ``after``, or
        the last ``tail`` lines; with ``follow`` until the execution ends.

        Each as :func:`noetl_celery.store.lines.read` has it. Raises ``NotFound`` for a step that was never entered.
        """
        return _paused(self.log_feed(step, after=after, tail=tail, follow=follow))

    def log_page(self, limit: int = PAGE, *, step: str | None = None, after: int = 0) -> list[dict[str, Any]]:
        """At most ``limit`` of the same lines, oldest first, from behind the line ``after``."""
        from noetl_celery.store import lines

        return self._client.read(lambda c: lines.read(c, self.id, step=step, after=after, limit=limit))

    def log_feed(
        self, step: str | None = None, *, after: int = 0, tail: int | None = None, follow: bool = False
    ) -> Generator[dict[str, Any] | float, None, None]:
        """Lines, and between them seconds to pause: :meth:`logs` for those who pause in their own way."""
        from noetl_celery.store import lines

        if tail is not None:
            before = partial(lines.before_the_last, execution_id=self.id, step=step, count=tail)
            after = max(after, self._client.read(before))
        look = partial(lines.read, execution_id=self.id, step=step, limit=PAGE)
        found = feed(lambda at: self._client.read(partial(look, after=at)), self._ended, "log_id", after, follow=follow)
        if (yield from _any(found)) or step is None:
            return
        self._last_stage(step)

    def _ended(self) -> bool:
        return self.status() in FINAL

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

    def retry(self, *, step: str | None = None) -> None:
        """Runs failed work again.

        Without ``step``: what made a FAILED execution fail, only rows without an ok outcome; it goes on from there.
        With ``step``: the failed rows of that step's last visit, also of an execution that has COMPLETED; when they
        have ended, the step's arcs are followed again. Returns at once. Raises ``WrongState`` where there is nothing to
        run again, ``NotFound``.
        """
        status = self.status()
        if step is None and status != "FAILED":
            raise WrongState(f"execution {self.id} is {status}; only a failed one is run again", hint=_RETRY_HINT)
        if step is not None:
            _check_retry(self.id, status, step, {line["step_name"]: line for line in self.steps()})
        self._signal("retry", {"step": step} if step else {}, unless=frozenset())

    def wait_until_under_way(self, timeout: float = 30.0) -> None:
        """Waits until an execution that was told to run failed work again does so, or has done it already."""
        from noetl_celery.store import signals

        end, pause = time.monotonic() + timeout, FIRST_POLL_SECONDS
        while self._client.read(lambda c: signals.pending(c, self.id)()):
            if time.monotonic() > end:
                raise WaitTimeout(f"no worker has looked at execution {self.id} in {timeout:g} s", hint="is one there?")
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)

    def verify(self) -> Verification:
        """Decides everything that happened again, from the events, and compares it with the tables.

        Changes nothing, and may be asked at any time. See :mod:`noetl_celery.store.verify`.
        """
        from noetl_celery.store import verify
        from noetl_celery.store.loaders import Limits

        row = self.row()
        plan = self._client.plan(row["catalog_id"])
        limits = Limits.of(self._client.settings)
        return self._client.read(lambda c: verify.verify(c, self.id, plan, limits))

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


def _paused(feed: Generator[dict[str, Any] | float, None, None]) -> Iterator[dict[str, Any]]:
    for found in feed:
        if isinstance(found, float):
            time.sleep(found)
        else:
            yield found


def _any(feed: Generator[dict[str, Any] | float, None, None]) -> Generator[dict[str, Any] | float, None, bool]:
    """All of a feed; was there anything but pauses?"""
    something = False
    for found in feed:
        something = something or not isinstance(found, float)
        yield found
    return something


_RETRY_HINT = "`noetl-celery retry ID --rows failed STEP` runs failed rows of a loop again"


def _check_retry(execution_id: int, status: str, step: str, last: Mapping[str, Mapping[str, Any]]) -> None:
    if status in ("CANCELLING", "CANCELLED"):
        raise WrongState(f"execution {execution_id} is {status}: it is not run again")
    found = last.get(step)
    if found is None:
        raise WrongState(f"execution {execution_id} has no step '{step}'", hint=f"its steps: {', '.join(last)}")
    if found["status"] == "OPEN":
        raise WrongState(f"step '{step}' is still at work; its failed rows can be run again when it has ended")
    if not found["failed"]:
        raise WrongState(f"step '{step}' has no failed rows")
    if not found["kept"]:
        raise WrongState(f"step '{step}' ended under a version that could not run rows again")


def _part(value: Any, path: str) -> Any:
    from noetl_celery.template.lazy import at, parse_path, unselected

    try:
        keys = parse_path(path)
    except ValueError as error:
        raise InputError(str(error)) from None
    try:
        return at(unselected(value), keys)
    except KeyError as error:
        raise NotFound(str(error.args[0])) from None
