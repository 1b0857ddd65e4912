"""What is asked for with the variables of prometheus_client and OpenTelemetry."""

from __future__ import annotations

import os
from importlib.util import find_spec

#: the folder where the processes of a worker count
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def counters() -> bool:
    """Does somebody add up what the processes of this worker count?"""
    return bool(os.environ.get(FOLDER))


def traces() -> bool:
    """Are spans to be sent, as far as that is possible here (:func:`lacking`)?"""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "")
    return exporter != "none" and bool(exporter or any(os.environ.get(name) for name in _ENDPOINTS))


def lacking() -> str | None:
    """Why there will be no traces although they are wanted, and what to do."""
    if not traces() or _installed("opentelemetry.sdk"):
        return None
    return "OTEL_… variables ask for traces, but OpenTelemetry is not installed: pip install 'noetl-celery[otel]'"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False
