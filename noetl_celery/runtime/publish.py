"""Sending messages after the commit. A message is a hint: what cannot be sent now, the sweep sends later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import Celery, chord
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from noetl_celery.store.outbox import Dispatch

log = logging.getLogger(__name__)

ORCHESTRATE = "noetl.orchestrate"
CLAIM = "noetl.claim"
BODY = "noetl.body"
SWEEP = "noetl.sweep"


class Publisher:
    """Publishes through a Celery app. Never raises for a broker that is away; says so once per outage."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._away = False

    def reachable(self) -> bool:
        """Is the broker there? Asked only while it was away at the last message; then it costs a connection."""
        if self._away:
            self._send(self._connect)
        return not self._away

    def _connect(self) -> None:
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=3)

    def orchestrate(self, execution_id: int) -> bool:
        """Asks for somebody to look at the execution's signals. False if the broker is away."""
        return self._send(
            lambda: self._app.send_task(ORCHESTRATE, kwargs={"execution": execution_id}, ignore_result=True)
        )

    def dispatch(self, dispatches: Iterable[Dispatch]) -> None:
        """Publishes claims, and the lanes of each frame as one chord whose callback orchestrates: the re-claim."""
        for dispatch in dispatches:
            match dispatch.kind:
                case "claim":
                    self._send(partial(self._claim, dispatch))
                case "lanes":
                    self._send(partial(self._lanes, dispatch))
                case _:
                    self.orchestrate(dispatch.execution_id)

    def _claim(self, dispatch: Dispatch) -> None:
        ids = {"execution": dispatch.execution_id, "stage": dispatch.stage_id, "claim": dispatch.target}
        self._app.send_task(CLAIM, kwargs=ids, queue=dispatch.queue, ignore_result=True)

    def _lanes(self, dispatch: Dispatch) -> None:
        ids = {"execution": dispatch.execution_id, "stage": dispatch.stage_id, "frame": dispatch.target}
        header = [
            self._app.signature(BODY, kwargs={**ids, "lane": lane}, queue=dispatch.queue, immutable=True)
            for lane in dispatch.lanes
        ]
        callback = self._app.signature(ORCHESTRATE, kwargs={"execution": dispatch.execution_id}, immutable=True)
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
