"""Sending messages after the commit. A message is a hint: what cannot be sent now, the sweep sends later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from celery import Celery, chord
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from noetl_celery.settings import CONTROL_QUEUE
from noetl_celery.store.outbox import Dispatch

log = logging.getLogger(__name__)

ORCHESTRATE = "noetl.orchestrate"
CLAIM = "noetl.claim"
BODY = "noetl.body"
SWEEP = "noetl.sweep"

#: the key that says, as long as it is there: nothing was lost (:meth:`Publisher.kept`)
MARK = "noetl.mark"


class Messages(Protocol):
    """Where what a task leaves to do goes. False: it could not be sent, the sweep will."""

    def dispatch(self, dispatches: Iterable[Dispatch]) -> bool: ...

    def orchestrate(self, execution_id: int, queue: str = CONTROL_QUEUE) -> bool: ...


class Publisher:
    """Publishes through a Celery app. Never raises for a broker that is away; says so once per outage."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._away = False

    def kept(self, seconds: float) -> bool | None:
        """Does Redis still have what it was sent? None if it is away. False if messages may be gone: then make all of
        them due, and :meth:`mark` it.

        The mark is the id of the server's run. It is missing if Redis was emptied or replaced, another one if Redis was
        restarted or a replica took over, and over if nobody has looked (which renews it) for ``seconds``.
        """
        kept: list[bool] = []

        def look() -> None:
            for client in self._clients():
                with client.pipeline(transaction=False) as pipe:
                    pipe.info("server")
                    pipe.get(MARK)
                    pipe.pexpire(MARK, _milliseconds(seconds))
                    server, mark, _ = pipe.execute()
                kept.append(mark == _run(server))

        return all(kept) if self._send(look) else None

    def mark(self, seconds: float) -> bool:
        """Leaves the mark for ``seconds``. False if Redis is away."""

        def leave() -> None:
            for client in self._clients():
                client.set(MARK, _run(client.info("server")), px=_milliseconds(seconds))

        return self._send(leave)

    def queues(self, seconds: float) -> frozenset[str] | None:
        """The queues that workers take, of those that answer within ``seconds``. None if Redis is away."""
        found: set[str] = set()

        def look() -> None:
            answers = self._app.control.inspect(timeout=seconds).active_queues() or {}
            found.update(queue["name"] for queues in answers.values() for queue in queues)

        return frozenset(found) if self._send(look) else None

    def _clients(self) -> list[Redis]:
        """Of the broker and of the result backend, which may be two servers: lanes need both, as chords."""
        with self._app.producer_or_acquire() as producer:
            return [producer.channel.client, self._app.backend.client]

    def orchestrate(self, execution_id: int, queue: str = CONTROL_QUEUE) -> bool:
        """Asks for somebody to look at the execution's signals. False if the broker is away."""
        options = {**_about(execution=execution_id), "queue": queue, "ignore_result": True}
        return self._send(lambda: self._app.send_task(ORCHESTRATE, **options))

    def dispatch(self, dispatches: Iterable[Dispatch]) -> bool:
        """Publishes claims, and the lanes of frames: several as one chord whose callback orchestrates, the re-claim;
        one alone goes on by itself (``runtime/onward.py``).

        Stops at the first that cannot be sent, and returns False: the others would only wait for Redis as well.
        """
        return all(self._dispatch(dispatch) for dispatch in dispatches)

    def _dispatch(self, dispatch: Dispatch) -> bool:
        match dispatch.kind:
            case "claim":
                return self._send(partial(self._claim, dispatch))
            case "lanes":
                return self._send(partial(self._lanes, dispatch))
            case _:
                return self.orchestrate(dispatch.execution_id)

    def _claim(self, dispatch: Dispatch) -> None:
        about = _about(execution=dispatch.execution_id, claim=dispatch.target, stage=dispatch.stage_id)
        self._app.send_task(CLAIM, **about, queue=dispatch.queue, ignore_result=True)

    def _lanes(self, dispatch: Dispatch) -> None:
        execution, frame, stage = dispatch.execution_id, dispatch.target, dispatch.stage_id
        about = [_about(execution=execution, frame=frame, lane=lane, stage=stage) for lane in dispatch.lanes]
        if len(about) == 1:  # it looks at the execution itself when its frame has ended
            self._app.send_task(BODY, **about[0], queue=dispatch.queue, ignore_result=True)
            return
        header = [self._app.signature(BODY, **lane, queue=dispatch.queue, immutable=True) for lane in about]
        callback = self._app.signature(ORCHESTRATE, **_about(execution=execution), immutable=True)
        chord(header, app=self._app)(callback)

    def _send(self, send: Callable[[], Any]) -> bool:
        try:
            send()
        except (OperationalError, RedisError, OSError) as error:
            if not self._away:
                log.warning("Redis is away, messages wait in PostgreSQL until it is back: %s", error)
            self._away = True
            return False
        if self._away:
            log.warning("Redis is back")
        self._away = False
        return True


def _about(**ids: int) -> dict[str, Any]:
    """The arguments of a task, and how Flower shows them and finds them by an id."""
    return {"kwargs": ids, "kwargsrepr": " ".join(f"{name}={id_}" for name, id_ in ids.items())}


def _run(server: Mapping[str, Any]) -> bytes:
    """The id that a server draws for itself whenever it starts."""
    return str(server.get("run_id")).encode()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
