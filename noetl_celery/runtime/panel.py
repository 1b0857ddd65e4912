"""What a Celery node tells whoever asks: ``celery -A noetl_celery inspect noetl_node``."""

from __future__ import annotations

import hashlib
import platform
import time
from typing import Any

from celery.worker.control import inspect_command

from noetl_celery import __version__
from noetl_celery.settings import Settings, load


@inspect_command()  # type: ignore[untyped-decorator]
def noetl_node(state: Any) -> dict[str, Any]:
    """Its clock (Unix time), versions, and the settings that have to fit those of others."""
    settings = load()
    return {
        "time": time.time(),
        "version": __version__,
        "python": platform.python_version(),
        "pool_size": settings.pool_size,
        "tool_pool_size": settings.tool_pool_size,
        "lease_seconds": settings.lease_seconds,
        "pools": sorted(settings.own_pools),
        "key": key_mark(settings),
    }


def key_mark(settings: Settings) -> str | None:
    """By what two keys can be told apart, and no key be found. None without one."""
    if settings.secret_key is None:
        return None
    return hashlib.sha256(b"noetl-celery:" + settings.secret_key.get_secret_value().encode()).hexdigest()[:12]
