"""What the processes of tasks inherit of the worker's environment."""

from __future__ import annotations

import os

#: ours; database, broker and key are among them
_OURS = "NOETL_"


def inherited() -> dict[str, str]:
    """The worker's own environment without NoETL-Celery's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
