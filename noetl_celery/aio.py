"""The asynchronous twin of :mod:`noetl_celery.client`: the same names and arguments, to be awaited.

Each method runs the synchronous one in a thread, so there is one logic only. Waiting pauses in the event loop,
not in a thread: it can be cancelled at any time, and any number of executions can be waited for.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from noetl_celery.client import Noetl
from noetl_celery.execution import Execution
from noetl_celery.report import Snapshot
from noetl_celery.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", contravariant=True)


class _Wrapper(Protocol):
    """Anything that has the synchronous object which it speaks for."""

    sync: Any


def _awaited(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """``method`` of the synchronous object, in a thread."""

    @functools.wraps(method)
    async def call(self: _Wrapper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.sync, *args, **kwargs)

    return call


async def _stepped(items: Iterator[T] | Generator[T, None, None]) -> AsyncIterator[T]:
    """A synchronous iterator, each step in a thread."""
    nothing = object()
    while (item := await asyncio.to_thread(next, items, nothing)) is not nothing:
        yield item  # type: ignore[misc]


async def _paused(feed: Generator[T | float, None, None]) -> AsyncIterator[T]:
    """What a feed brings; the seconds between are paused in the event loop."""
    async for found in _stepped(feed):
        if isinstance(found, float):
            await asyncio.sleep(found)
        else:
            yield found


class AsyncExecution:
    """:class:`~noetl_celery.execution.Execution`, to be awaited. ``sync`` is the synchronous one."""

    def __init__(self, sync: Execution) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @property
    def id(self) -> int:
        """Its 64-bit number."""
        return self.sync.id

    @property
    def announced(self) -> bool:
        """False if Redis was away when the workers were last to be told about it."""
        return self.sync.announced

    row = _awaited(Execution.row)
    overview = _awaited(Execution.overview)
    status = _awaited(Execution.status)
    progress = _awaited(Execution.progress)
    duration = _awaited(Execution.duration)
    summary = _awaited(Execution.summary)
    steps = _awaited(Execution.steps)
    report = _awaited(Execution.report)
    step_result = _awaited(Execution.step_result)
    cancel = _awaited(Execution.cancel)
    pause = _awaited(Execution.pause)
    resume = _awaited(Execution.resume)
    books = _awaited(Execution.books)
    retry = _awaited(Execution.retry)
    verify = _awaited(Execution.verify)
    explain = _awaited(Execution.explain)
    row_page = _awaited(Execution.row_page)
    event_page = _awaited(Execution.event_page)
    log_page = _awaited(Execution.log_page)
    latest_events = _awaited(Execution.latest_events)
    outcome = _awaited(Execution.outcome)

    async def wait(self, timeout: float | None = None) -> str:
        """See :meth:`Execution.wait <noetl_celery.execution.Execution.wait>`."""
        status = ""
        async for snapshot, pause in _stepped(self.sync.looks(timeout, steps=False)):
            status = snapshot.status
            await asyncio.sleep(pause)
        return status

    async def watch(self, timeout: float | None = None) -> AsyncIterator[Snapshot]:
        """See :meth:`Execution.watch <noetl_celery.execution.Execution.watch>`."""
        async for snapshot, pause in _stepped(self.sync.looks(timeout)):
            yield snapshot
            await asyncio.sleep(pause)

    async def result(self, timeout: float | None = None) -> Any:
        """See :meth:`Execution.result <noetl_celery.execution.Execution.result>`."""
        await self.wait(timeout)
        return await self.outcome()

    async def outcome_text(self, path: str = "") -> AsyncIterator[str]:
        """See :meth:`Execution.outcome_text <noetl_celery.execution.Execution.outcome_text>`."""
        async for piece in _stepped(await asyncio.to_thread(self.sync.outcome_text, path)):
            yield piece

    async def step_result_text(self, step: str, path: str = "") -> AsyncIterator[str]:
        """See :meth:`Execution.step_result_text <noetl_celery.execution.Execution.step_result_text>`."""
        pieces = await asyncio.to_thread(self.sync.step_result_text, step, path)
        async for piece in _stepped(pieces):
            yield piece

    async def rows(self, step: str, *, failed: bool = False) -> AsyncIterator[dict[str, Any]]:
        """See :meth:`Execution.rows <noetl_celery.execution.Execution.rows>`."""
        async for row in _stepped(self.sync.rows(step, failed=failed)):
            yield row

    async def events(self, after: int = 0, *, follow: bool = False) -> AsyncGenerator[dict[str, Any], None]:
        """See :meth:`Execution.events <noetl_celery.execution.Execution.events>`."""
        async for event in _paused(self.sync.event_feed(after, follow=follow)):
            yield event

    async def logs(
        self, step: str | None = None, *, after: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """See :meth:`Execution.logs <noetl_celery.execution.Execution.logs>`."""
        async for line in _paused(self.sync.log_feed(step, after=after, tail=tail, follow=follow)):
            yield line


class AsyncNoetl:
    """:class:`~noetl_celery.client.Noetl`, to be awaited. ``sync`` is the synchronous one."""

    def __init__(
        self, settings: Settings | None = None, *, database_url: str | None = None, broker_url: str | None = None
    ) -> None:
        self.sync = Noetl(settings, database_url=database_url, broker_url=broker_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    close = _awaited(Noetl.close)
    register = _awaited(Noetl.register)
    executions = _awaited(Noetl.executions)
    registered = _awaited(Noetl.registered)
    prune = _awaited(Noetl.prune)
    queues = _awaited(Noetl.queues)
    playbooks = _awaited(Noetl.playbooks)
    versions = _awaited(Noetl.versions)
    entry = _awaited(Noetl.entry)
    credentials = _awaited(Noetl.credentials)
    set_credential = _awaited(Noetl.set_credential)
    delete_credential = _awaited(Noetl.delete_credential)
    _submit = _awaited(Noetl.submit)
    _execution = _awaited(Noetl.execution)

    async def submit(
        self,
        path: str,
        workload: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        key: str | None = None,
    ) -> AsyncExecution:
        """See :meth:`Noetl.submit <noetl_celery.client.Noetl.submit>`."""
        return AsyncExecution(await self._submit(path, workload, version=version, key=key))

    async def execution(self, execution_id: int | str) -> AsyncExecution:
        """See :meth:`Noetl.execution <noetl_celery.client.Noetl.execution>`."""
        return AsyncExecution(await self._execution(execution_id))
