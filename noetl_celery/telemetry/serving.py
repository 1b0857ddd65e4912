"""The endpoint that Prometheus asks: what the processes of one worker have counted."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Self

from noetl_celery.errors import ServiceError
from noetl_celery.settings import Settings
from noetl_celery.telemetry import wanted
from noetl_celery.telemetry.wanted import FOLDER


class Endpoint:
    """A folder for the files of a worker's processes, and ``http://host:port/metrics`` with their sums.

    Without a port in the settings there is neither. Raises ``ServiceError`` if the port cannot be had. At the end the
    folder goes; processes that still count then count for nobody.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Any = None
        self._folder: str | None = None

    @property
    def env(self) -> dict[str, str]:
        """What the processes need in their environment to count."""
        return {} if self._folder is None else {FOLDER: self._folder}

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Makes the folder and serves, if there is a port."""
        port, host = self._settings.metrics_port, self._settings.metrics_host
        if port is None:
            return
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.multiprocess import MultiProcessCollector

        self._folder = tempfile.mkdtemp(prefix="noetl-metrics-")
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self._folder)  # type: ignore[no-untyped-call]
        try:
            self._server, _ = start_http_server(port, host, registry)
        except OSError as error:
            self.close()
            hint = "set NOETL_METRICS_PORT (or --metrics-port) to a free one; each worker of a machine needs its own"
            text = f"metrics cannot be served at {host}:{port}: {error.strerror or error}"
            raise ServiceError(text, hint=hint) from error

    def close(self) -> None:
        """Serves no more; the folder is gone."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._server = self._folder = None

    def forget(self) -> None:
        """In a process that was forked off: it does not serve, and must not keep the port."""
        if self._server is not None:
            self._server.socket.close()
        self._server = self._folder = None


def serve_node(settings: Settings) -> Endpoint:
    """The endpoint of a node that nobody serves for (``celery worker``); one that somebody does has none."""
    endpoint = Endpoint(settings)
    if not wanted.counters():
        endpoint.open()
        os.environ.update(endpoint.env)
    return endpoint
