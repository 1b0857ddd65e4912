"""PostgreSQL sessions that never wait for ever.

TCP notices a peer that is gone, if it is told how soon. It does not notice one that holds the connection and says
nothing: a proxy that has lost its server, a frozen machine. There only a limit to the silence helps.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

T = TypeVar("T")

#: a server that has not ended a statement by itself when its time was over is given this many seconds more
GRACE_SECONDS = 5.0


class Session(psycopg.Connection[Any]):
    """A connection that counts as lost when the server has said nothing for ``silence_seconds`` (None: no limit).

    It is closed then, and the statement fails with ``psycopg.OperationalError``, as after any lost connection.
    """

    silence_seconds: float | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: on the monotonic clock
        self.opened_at = time.monotonic()
        self._batch: psycopg.Pipeline | None = None

    @contextmanager
    def patient(self, seconds: float | None) -> Iterator[None]:
        """Meanwhile the server may take ``seconds`` for a statement, and a bit longer (None: as long as it likes)."""
        before, self.silence_seconds = self.silence_seconds, None if seconds is None else seconds + GRACE_SECONDS
        try:
            yield
        finally:
            self.silence_seconds = before

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Meanwhile a statement is sent without waiting for its reply, until somebody looks at one: then all that were
        sent before it are answered as well. What is wrong with a statement is raised there, at the latest at the end.

        Each statement has to be a single one, and none a COPY (libpq's pipeline mode).
        """
        if self._batch is not None:  # part of that one: leaving psycopg's inner pipelines is a round trip each
            yield
            return
        try:
            with self.pipeline() as self._batch:
                try:
                    yield
                    self._flush()
                finally:
                    self._batch = None
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                self.close()  # libpq may not know that it is lost ("cannot exit pipeline mode while busy")
            raise

    def settle(self, cursor: psycopg.Cursor[Any]) -> None:
        """Waits for the reply to what ``cursor`` has sent, and all before it; raises what was wrong with them."""
        if self._batch is not None and cursor.pgresult is None:
            self._flush()
            self._batch.sync()  # psycopg's own fetch leaves the server without limits to its waiting for us

    def _flush(self) -> None:
        """Sends all of what psycopg's pipeline has handed to libpq: it looks for replies when only some has gone."""

        def sent() -> Generator[Wait, Ready, None]:
            while self.pgconn.flush():
                if (yield Wait.RW) & Ready.R:
                    self.pgconn.consume_input()

        self.wait(sent())

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """psycopg's own wait for an answer, within the limit."""
        limit = self.silence_seconds
        return super().wait(gen if limit is None else self._within(gen, limit), *args, **kwargs)

    def _within(self, answer: Generator[Any, Any, T], limit: float) -> Generator[Any, Any, T]:
        until = time.monotonic() + limit
        try:
            wanted = next(answer)
            while True:
                ready = yield wanted
                if ready:
                    until = time.monotonic() + limit
                elif time.monotonic() >= until:
                    self.close()
                    raise psycopg.OperationalError(f"the server has said nothing for {limit:g} s")
                wanted = answer.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
