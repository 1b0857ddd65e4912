"""What is asked for with the variables of prometheus_client and OpenTelemetry."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec

#: the folder where the processes of a worker count
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
#: the group of entry points that exporters of spans are in
EXPORTERS = "opentelemetry_traces_exporter"
_EXPORTER = "OTEL_TRACES_EXPORTER"
_INSTALL = "pip install 'noetl-celery[otel]'"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def counters() -> bool:
    """Does somebody add up what the processes of this worker count?"""
    return bool(os.environ.get(FOLDER))


def traces() -> bool:
    """Are spans to be sent, as far as that is possible here (:func:`lacking`)?"""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return bool(exporters()) and any(os.environ.get(name) for name in (_EXPORTER, *_ENDPOINTS))


def exporters() -> list[str]:
    """Where spans go: ``console``, or names of the entry points that OpenTelemetry's exporters have."""
    names = [name.strip() for name in (os.environ.get(_EXPORTER) or "otlp").split(",")]
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def lacking() -> str | None:
    """Why there will be no traces although they are wanted, and what to do."""
    if not traces():
        return None
    if not _installed("opentelemetry.sdk"):
        return f"OTEL_… variables ask for them, but OpenTelemetry is not installed: {_INSTALL}"
    missing = [name for name in exporters() if name != "console" and not entry_points(group=EXPORTERS, name=name)]
    return (
        f"the exporter {', '.join(missing)} is not installed; otlp_proto_http comes with {_INSTALL}"
        if missing
        else None
    )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False
