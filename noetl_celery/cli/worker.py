"""``noetl-celery worker``: the two Celery nodes of a worker, started and ended together."""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from noetl_celery.cli.supervisor import HURRY_SECONDS, Program, Signals, Stopped, Supervisor
from noetl_celery.errors import InputError
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE, Settings, load
from noetl_celery.telemetry import logs
from noetl_celery.telemetry.serving import Endpoint

APP = "noetl_celery"


def node_name(role: str, name: str) -> str:
    """The node's name as Celery and Flower show it."""
    return f"{role}-{name}@{socket.gethostname()}"


def celery_command(*arguments: str, quiet: bool = False) -> list[str]:
    """``celery -A noetl_celery …`` with the Python that runs us; ``quiet``: without what it prints beside its log."""
    return [sys.executable, "-m", "celery", *(["--quiet"] if quiet else []), "-A", APP, *arguments]


def body_queues(pools: Sequence[str]) -> list[str]:
    """The queues that serve these pools (``executor.spec.pool``); names of queues are taken as well."""
    wanted = [
        pool if pool == BODY_QUEUE or pool.startswith(f"{BODY_QUEUE}.") else f"{BODY_QUEUE}.{pool}" for pool in pools
    ]
    return list(dict.fromkeys(wanted)) or [BODY_QUEUE]


def node_programs(
    name: str,
    settings: Settings,
    *,
    concurrency: int | None = None,
    control_concurrency: int | None = None,
    queues: Sequence[str] = (),
    log_level: str | None = None,
    options: Sequence[str] = (),
    logs: Path | None = None,
    restart_always: bool = False,
    env: Mapping[str, str] | None = None,
) -> list[Program]:
    """The control node and the bodies node of the worker ``name``; ``options`` are Celery's, given to both, and so is
    ``env``, besides the environment that we have."""
    nodes = {
        "control": ("threads", control_concurrency or settings.control_concurrency, [CONTROL_QUEUE]),
        "bodies": ("prefork", concurrency or settings.body_processes, list(queues) or [BODY_QUEUE]),
    }
    return [
        Program(
            name=f"{role} node of worker {name}",
            command=celery_command(
                *("worker", "-P", pool, "-c", str(size), "-Q", ",".join(names), "-n", node_name(role, name)),
                *("--loglevel", log_level or settings.log_level, "-E", "--without-gossip", "--without-mingle"),
                *options,
                quiet=settings.log_format == "json",
            ),
            log=logs / f"worker-{name}-{role}.log" if logs else None,
            env={"NOETL_GRACE_SECONDS": str(settings.grace_seconds), **(env or {})},
            hurry_signal=signal.SIGQUIT,
            restart_always=restart_always,
        )
        for role, (pool, size, names) in nodes.items()
    ]


def worker(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Option(help="Name of this worker, unique on its host (default: the process id).")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Processes for bodies (default: the number of CPUs)."),
    ] = None,
    control_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Threads for control tasks (default: 8).")
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queues", "-Q", help="Pools whose rows this worker takes; noetl.body: rows without a pool (default)."
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds that rows at work may take to end when it is told to stop (default: 30)."),
    ] = None,
    loglevel: Annotated[str | None, typer.Option("--loglevel", "-l", help="DEBUG, INFO, WARNING or ERROR.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Tells Prometheus here what was counted (default: nowhere).")
    ] = None,
) -> None:
    """Works on executions: starts a control node and a bodies node, until it is told to stop.

    SIGTERM and Ctrl-C let rows at work end first; a second one hands them to other workers at once. Options of
    `celery worker` may follow after `--`.
    """
    pools = [pool.strip() for text in queues or [] for pool in text.split(",") if pool.strip()]
    level = loglevel.upper() if loglevel else None
    if level and level not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise InputError(f"--loglevel {loglevel} is not one of DEBUG, INFO, WARNING, ERROR, CRITICAL")
    given = {"grace_seconds": grace, "metrics_port": metrics_port}
    settings = load(**{name: value for name, value in given.items() if value is not None})
    with Endpoint(settings) as endpoint:
        programs = node_programs(
            name or str(os.getpid()),
            settings,
            concurrency=concurrency,
            control_concurrency=control_concurrency,
            queues=body_queues(pools),
            log_level=level,
            options=[argument for argument in ctx.args if argument != "--"],
            env=endpoint.env,
        )
        code = run_nodes(programs, settings)
    raise typer.Exit(code)


def run_nodes(programs: Sequence[Program], settings: Settings) -> int:
    """Runs the nodes until a signal comes; the exit code. A node that cannot start is a :class:`ServiceError`.

    Nodes hand their work over after the grace time; those that have not ended a little later are killed.
    """
    say = partial(logs.say, settings)
    with Signals() as signals:
        try:
            with Supervisor(signals, settings.grace_seconds + HURRY_SECONDS, say) as supervisor:
                for program in programs:
                    supervisor.start(program)
                return supervisor.run()
        except Stopped as stopped:
            return stopped.code
