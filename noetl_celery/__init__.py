"""NoETL playbooks on Celery workers: the public Python API.

    from noetl_celery import Noetl

    with Noetl() as noetl:
        noetl.register("playbooks/hello.yaml")
        execution = noetl.submit("examples/hello", {"greeting": "Welcome"})
        execution.wait(timeout=60)
        print(execution.result())

Names are imported when they are first used, so that a part of the package costs only what it needs itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetl_celery.aio import AsyncExecution, AsyncNoetl
    from noetl_celery.client import Noetl, Registered
    from noetl_celery.errors import (
        ExecutionFailed,
        InputError,
        NoetlError,
        NotFound,
        PlaybookInvalid,
        Problem,
        ServiceError,
        WaitTimeout,
    )
    from noetl_celery.execution import Execution
    from noetl_celery.settings import Settings

    __version__: str

__all__ = [
    "AsyncExecution",
    "AsyncNoetl",
    "Execution",
    "ExecutionFailed",
    "InputError",
    "Noetl",
    "NoetlError",
    "NotFound",
    "PlaybookInvalid",
    "Problem",
    "Registered",
    "ServiceError",
    "Settings",
    "Snapshot",
    "StepProgress",
    "WaitTimeout",
    "__version__",
]

_ERRORS = (
    "ExecutionFailed",
    "InputError",
    "NoetlError",
    "NotFound",
    "PlaybookInvalid",
    "Problem",
    "ServiceError",
    "WaitTimeout",
)
_SOURCES = {
    **dict.fromkeys(("AsyncExecution", "AsyncNoetl"), "aio"),
    **dict.fromkeys(("Noetl", "Registered"), "client"),
    "Execution": "execution",
    **dict.fromkeys(("Snapshot", "StepProgress"), "report"),
    **dict.fromkeys(_ERRORS, "errors"),
    "Settings": "settings",
}


def __getattr__(name: str) -> Any:
    if name in _SOURCES:
        value = getattr(import_module(f"noetl_celery.{_SOURCES[name]}"), name)
    elif name == "celery":
        # `celery -A noetl_celery …` looks here for the app
        value = import_module("noetl_celery.app").app
    elif name == "__version__":
        from importlib.metadata import version

        value = version("noetl-celery")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
