"""A transport of messages that duplicates, delays, reorders and drops them: Redis on a bad day.

What it does is in the variable NOETL_TEST_ILL, as JSON: ``duplicate`` (the share of messages that come twice), ``drop``
(the share that does not come), ``delay`` (seconds that all messages come later), ``reorder`` (seconds that any message
comes later, at random) and ``seed``. How often it did each of these it counts in the hash ``ill`` in Redis. Messages
that are not for tasks are left alone.
"""

from __future__ import annotations

import json
import os
import threading
from random import Random
from typing import Any

import redis
from kombu.transport import redis as healthy
from kombu.utils.json import dumps

ILL = json.loads(os.environ.get("NOETL_TEST_ILL", "{}"))
COUNTS = "ill"


class Channel(healthy.Channel):  # type: ignore[misc]
    """Puts messages into the queues of tasks in its own way."""

    random = Random()
    pid = 0

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if not queue.startswith("noetl."):
            super()._put(queue, message, **kwargs)
            return
        if Channel.pid != os.getpid():  # each process has its own bad day, after a fork as well
            Channel.random, Channel.pid = Random(f"{ILL['seed']} {queue} {os.getpid()}"), os.getpid()
        copies = [0.0]
        if self.random.random() < ILL.get("duplicate", 0):
            self.count("duplicate")
            copies.append(self.random.uniform(0, 1))
        for pause in copies:
            self.deliver(pause, queue, message)

    def deliver(self, pause: float, queue: str, message: dict[str, Any]) -> None:
        sent = self.count("sent")
        if ILL.get("drop") and sent % round(1 / ILL["drop"]) == ILL["seed"] % round(1 / ILL["drop"]):
            self.count("drop")  # exactly so many of all, or a short test might see none
            return
        if ILL.get("delay"):
            self.count("delay")
            pause += ILL["delay"]
        if ILL.get("reorder"):
            self.count("reorder")
            pause += self.random.uniform(0, ILL["reorder"])
        timer = threading.Timer(pause, client().lpush, (queue, dumps(message)))
        timer.daemon = True
        timer.start()

    def count(self, what: str) -> int:
        return int(client().hincrby(COUNTS, what, 1))


class Transport(healthy.Transport):  # type: ignore[misc]
    """Celery's Redis transport with such channels."""

    Channel = Channel


_clients: dict[int, redis.Redis] = {}


def client() -> redis.Redis:
    """This process's own; it may be used by any thread, also when the channel is gone."""
    if os.getpid() not in _clients:
        _clients[os.getpid()] = redis.Redis.from_url(os.environ["NOETL_BROKER_URL"])
    return _clients[os.getpid()]
