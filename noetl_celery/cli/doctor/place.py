"""What the checks look at: the settings here, and whatever of the services and workers can be reached."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from noetl_celery.errors import ServiceError
from noetl_celery.settings import Settings
from noetl_celery.store import health, migrate
from noetl_celery.store.db import Connection

#: how long workers have to answer
ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Node:
    """A Celery node that answered. ``ahead``: seconds that its clock is ahead of ours, less what the reply took;
    ``told`` is what ``runtime/panel.py`` says, empty if the node does not know that question."""

    queues: frozenset[str]
    told: Mapping[str, Any] = field(default_factory=dict)
    ahead: float = 0.0


@dataclass(slots=True)
class Place:
    """What is there. What is not is None (``nodes``: empty), and ``away`` says why."""

    settings: Settings
    postgres: Connection | None = None
    #: the schema is as this version needs it; else ``away`` says what is wrong
    schema: bool = False
    redis: redis.Redis | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)


@contextmanager
def visiting(settings: Settings) -> Iterator[Place]:
    """A place with all that can be reached now."""
    place = Place(settings)
    with ExitStack() as stack:
        try:
            place.postgres = stack.enter_context(health.session(settings))
            migrate.check(settings)
            place.schema = True
        except ServiceError as error:
            place.away["schema" if place.postgres is not None else "postgres"] = str(error)
        try:
            app = create(settings)
            place.redis = stack.enter_context(connected(app))
            place.nodes = asked(app)
        except (RedisError, OperationalError, OSError, ValueError) as error:
            place.away["redis"] = str(error).strip() or type(error).__name__
        yield place


def create(settings: Settings) -> Any:
    """A Celery app on these settings."""
    from noetl_celery.app import create

    return create(settings)


@contextmanager
def connected(app: Any) -> Iterator[redis.Redis]:
    """The broker, through Celery's own connection: so with its TLS options and sentinels. Raises what kombu raises."""
    with app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=3)
        client = connection.default_channel.client
        client.ping()
        yield client


def asked(app: Any) -> dict[str, Node]:
    """Every node that answers in time, by its name."""
    ahead: dict[str, float] = {}

    def heard(reply: Mapping[str, Any]) -> None:
        now = time.time()
        ahead.update({name: told["time"] - now for name, told in reply.items() if "time" in told})

    replies = app.control.broadcast("noetl_node", reply=True, timeout=ANSWER_SECONDS, callback=heard) or []
    answers = {name: answer for reply in replies for name, answer in reply.items()}
    queues = app.control.inspect(timeout=ANSWER_SECONDS).active_queues() or {}
    return {
        name: Node(
            frozenset(queue["name"] for queue in queues.get(name, ())),
            answers.get(name, {}) if name in ahead else {},
            ahead.get(name, 0.0),
        )
        for name in sorted({*answers, *queues})
    }
