"""What PostgreSQL and Redis say when Prometheus asks: how much is open, waits, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import redis
from kombu.connection import Connection as Broker
from kombu.exceptions import OperationalError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from psycopg import Error

from noetl_celery.errors import ServiceError
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE, Settings
from noetl_celery.store import gauges, health
from noetl_celery.telemetry import declared as m

#: Prometheus itself gives up after 10 seconds
CONNECT_SECONDS, STATEMENT_SECONDS = 2, 2
POSTGRESQL, REDIS = "postgresql", "redis"


def exposed(settings: Settings) -> bytes:
    """All gauges, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Gauges(settings))
    return generate_latest(registry)


class Gauges(Collector):
    """Asks anew each time it is asked. Of a service that is away there is ``noetl_up`` alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def describe(self) -> Iterable[Family]:
        """Nothing: registering it asks nobody."""
        return ()

    def collect(self) -> Iterator[Family]:
        """What there is to say now."""
        found: list[Family] = []
        up = {}
        queues = [CONTROL_QUEUE, BODY_QUEUE, *(f"{BODY_QUEUE}.{pool}" for pool in sorted(self._settings.own_pools))]
        try:
            found += self._postgresql(queues)
            up[POSTGRESQL] = True
        except (ServiceError, Error):
            up[POSTGRESQL] = False
        try:
            found.append(self._redis(queues))
            up[REDIS] = True
        except (redis.RedisError, OperationalError, OSError):
            up[REDIS] = False
        yield _family(m.UP, [((service,), answered) for service, answered in up.items()])
        yield from found

    def _postgresql(self, queues: list[str]) -> list[Family]:
        """Adds to ``queues`` those that work waits for."""
        settings = self._settings
        with health.session(
            settings, connect_seconds=CONNECT_SECONDS, statement_seconds=STATEMENT_SECONDS, name="noetl-celery metrics"
        ) as connection:
            executions = gauges.executions(connection)
            work = gauges.work(connection, sweep_seconds=settings.sweep_seconds)
            outbox = gauges.outbox(connection, republish_seconds=settings.republish_seconds)
            alive, dead = gauges.workers(connection, dead_after_seconds=settings.dead_after_seconds)
        asked = {row["queue"]: row for row in outbox}
        queues += [queue for queue in asked if queue not in queues]
        statuses = ("PENDING", "RUNNING", "PAUSED", "CANCELLING")
        swept = [] if work["swept"] is None else [((), work["swept"])]
        return [
            _family(m.OPEN_EXECUTIONS, [((status.lower(),), executions.get(status, 0)) for status in statuses]),
            _one(m.OPEN_FRAMES, work["frames"]),
            _one(m.OPEN_ROWS, work["rows"]),
            _one(m.ROWS_AT_WORK, work["at_work"]),
            _family(m.PARKED_ROWS, [(("time",), work["until_time"]), (("child",), work["until_child"])]),
            _family(m.OUTBOX, [((queue,), asked[queue]["n"] if queue in asked else 0) for queue in queues]),
            _family(
                m.OUTBOX_OLDEST, [((queue,), asked[queue]["seconds"] if queue in asked else 0) for queue in queues]
            ),
            _one(m.SIGNALS, work["signals"]),
            _one(m.SIGNALS_OLDEST, work["signals_age"]),
            _family(m.WORKERS, [(("alive",), alive), (("dead",), dead)]),
            _one(m.LEASES_OVERDUE, work["overdue"]),
            _one(m.LOCK_WAITS, work["lock_waits"]),
            _family(m.SWEEP_AGE, swept),
        ]

    def _redis(self, queues: Sequence[str]) -> Family:
        # Through Celery's own transport: so with its TLS options and sentinels.
        limits = {"socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": STATEMENT_SECONDS, "max_retries": 0}
        with Broker(self._settings.broker_url, transport_options=limits, connect_timeout=CONNECT_SECONDS) as broker:  # type: ignore[no-untyped-call]
            broker.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
            client = broker.default_channel.client
            return _family(m.QUEUE, [((queue,), client.llen(queue)) for queue in queues])


def _one(metric: m.Metric, value: float) -> Family:
    return _family(metric, [((), value)])


def _family(metric: m.Metric, values: Iterable[tuple[Sequence[str], float]]) -> Family:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, float(value))
    return family
