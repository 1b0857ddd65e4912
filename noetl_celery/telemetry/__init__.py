"""What can be seen of the work from outside: metrics for Prometheus, spans for OpenTelemetry, structured log lines.

All of it is off unless it is configured, and then costs next to nothing.
"""

from __future__ import annotations

from noetl_celery.settings import Settings

#: of what :func:`exposition` returns
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(settings: Settings) -> bytes:
    """What PostgreSQL and Redis say at this moment, as Prometheus reads it (:data:`CONTENT_TYPE`).

    Never raises for a service that is away, and waits for none for long: ``noetl_up`` tells.
    """
    from noetl_celery.telemetry.gauges import exposed

    return exposed(settings)
