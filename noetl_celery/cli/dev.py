"""``noetl-celery dev``: everything that is needed on one machine, started together and ended together."""

import contextlib
import os
import secrets
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_celery.cli import worker as workers
from noetl_celery.cli.embedded import EmbeddedServices, free_port
from noetl_celery.cli.supervisor import Child, Program, Signals, Stopped, Supervisor
from noetl_celery.errors import InputError, ServiceError
from noetl_celery.settings import Settings, load
from noetl_celery.telemetry.serving import Endpoint

READY_SECONDS = 60.0
CONSOLE_PORT, FLOWER_PORT = 8080, 5555
#: what a task is about stands in its arguments
FLOWER_COLUMNS = "--tasks-columns=name,uuid,kwargs,state,received,runtime,worker"
#: nobody waits longer than this for running tasks when everything ends anyway
GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class DevOptions:
    """What `dev` was asked to do."""

    workers: int = 1
    concurrency: int | None = None
    flower: bool = False
    console: bool = False
    fresh: bool = False
    folder: Path = Path()
    command: Sequence[str] = ()


def dev(
    ctx: typer.Context,
    workers: Annotated[int, typer.Option(min=0, help="Workers to start, each a control node and a bodies node.")] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-c", min=1, help="Processes for bodies in each worker (default: the number of CPUs)."
        ),
    ] = None,
    flower: Annotated[bool, typer.Option("--flower", help="Start Flower too, to look at tasks and workers.")] = False,
    console: Annotated[
        bool | None,
        typer.Option("--console/--no-console", help="Serve the console for this machine (default: if it stays)."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start empty, in a temporary folder that is removed at the end.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Project folder; the data is kept in its subfolder .noetl.")] = Path("."),
) -> None:
    """Starts PostgreSQL, Redis and workers; then runs COMMAND (after `--`), or stays until Ctrl-C.

    No PostgreSQL and Redis need to be installed; NOETL_DATABASE_URL and NOETL_BROKER_URL name others to use instead.
    COMMAND finds everything in its environment, and `dev` exits with its exit code. All that was started ends with it.
    """
    command = ctx.args[1:] if ctx.args[:1] == ["--"] else ctx.args
    if command and command[0].startswith("-"):
        raise InputError(f"dev has no option {command[0]}", hint="a command to run goes after `--`")
    served = not command if console is None else console
    raise typer.Exit(run(DevOptions(workers, concurrency, flower, served, fresh, folder, command)))


def run(options: DevOptions) -> int:
    """Does what :func:`dev` says; the exit code. Errors are :class:`NoetlError`."""
    with Signals() as signals:
        try:
            return _run(options, signals)
        except Stopped as stopped:
            return stopped.code


def _run(options: DevOptions, signals: Signals) -> int:
    settings = load()
    # a variable is looked at, not only its value: a default address is no service that somebody runs for us
    given = {name for name in ("database_url", "broker_url") if name in settings.model_fields_set}
    services = EmbeddedServices(
        options.folder / settings.data_dir,
        options.fresh,
        postgres="database_url" not in given,
        redis="broker_url" not in given,
    )
    with contextlib.ExitStack() as stack:
        count = f"{options.workers} worker{'' if options.workers == 1 else 's'}"
        parts = [name for name, url in (("PostgreSQL", "database_url"), ("Redis", "broker_url")) if url not in given]
        _say(f"starting {', '.join([*parts, count])} …")
        endpoint = stack.enter_context(Endpoint(settings))
        stack.enter_context(services)
        supervisor = stack.enter_context(Supervisor(signals, min(settings.grace_seconds, GRACE_SECONDS), _say))
        for child in services.children:
            supervisor.watch(child)
        settings = _with_services(settings, services)
        stack.enter_context(exported(settings))
        _migrate(settings)
        nodes = _start_workers(options, settings, supervisor, services.folder / "logs", endpoint.env)
        places = _start_pages(options, supervisor, services.folder / "logs")
        wait_consuming(supervisor, nodes, READY_SECONDS)
        if options.command:
            return supervisor.run_command(Program("COMMAND", list(options.command), own_group=False))
        _print_places(settings, services.folder, places)
        return supervisor.run()


def _with_services(settings: Settings, services: EmbeddedServices) -> Settings:
    found = {"database_url": services.database_url, "broker_url": services.broker_url}
    overrides: dict[str, Any] = {name: url for name, url in found.items() if url is not None}
    if settings.secret_key is None:
        overrides["secret_key"] = kept_secret_key(services.folder)
    return load(**overrides)


def kept_secret_key(folder: Path) -> str:
    """The key in ``<folder>/secret.key``, made at the first call; only its owner may read it."""
    path = folder / "secret.key"
    if not path.exists():
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(urlsafe_b64encode(secrets.token_bytes(32)) + b"\n")
    return path.read_text().strip()


@contextlib.contextmanager
def exported(settings: Settings) -> Iterator[None]:
    """The environment in which everything we start, and our own copy of the Celery app, finds the services."""
    assert settings.secret_key is not None
    bin_folder = str(Path(sys.executable).parent)  # not resolved: the virtual environment's, not its base
    path = os.environ.get("PATH", os.defpath)
    values = {
        "NOETL_DATABASE_URL": settings.database_url,
        "NOETL_BROKER_URL": settings.broker_url,
        "NOETL_SECRET_KEY": settings.secret_key.get_secret_value(),
        "PATH": path if path.split(os.pathsep)[0] == bin_folder else f"{bin_folder}{os.pathsep}{path}",
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _migrate(settings: Settings) -> None:
    from noetl_celery.store import migrate

    migrate.upgrade(settings)


def _start_workers(
    options: DevOptions, settings: Settings, supervisor: Supervisor, logs: Path, env: Mapping[str, str]
) -> dict[str, Child]:
    """Starts the nodes of all workers; by the name that each answers to."""
    started: dict[str, Child] = {}
    for number in range(1, options.workers + 1):
        programs = workers.node_programs(
            str(number), settings, concurrency=options.concurrency, logs=logs, restart_always=True, env=env
        )
        for program in programs:
            started[program.command[program.command.index("-n") + 1]] = supervisor.start(program)
    return started


def _start_pages(options: DevOptions, supervisor: Supervisor, logs: Path) -> dict[str, str]:
    """Starts what one looks at with a browser, for this machine only; where each is."""
    places = {}
    if options.console:
        port = free_port(CONSOLE_PORT)
        command = [sys.executable, "-m", "noetl_celery", "console", "--no-token", f"--port={port}"]
        supervisor.start(Program("Console", command, log=logs / "console.log"))
        places["Console"] = f"http://127.0.0.1:{port}"
    if options.flower:
        port = free_port(FLOWER_PORT)
        command = workers.celery_command("flower", "--address=127.0.0.1", f"--port={port}", FLOWER_COLUMNS)
        supervisor.start(Program("Flower", command, log=logs / "flower.log"))
        places["Flower"] = f"http://127.0.0.1:{port}"
    return places


def wait_consuming(supervisor: Supervisor, nodes: dict[str, Child], seconds: float) -> None:
    """Waits until every node answers, which it does once it takes tasks; :class:`ServiceError` if one does not."""
    if not nodes:
        return
    from kombu.exceptions import OperationalError

    from noetl_celery.app import app

    waiting = set(nodes)
    deadline = time.monotonic() + seconds
    while waiting:
        supervisor.check()
        if time.monotonic() > deadline:
            raise nodes[min(waiting)].failure(f"did not answer in {seconds:g} s")
        try:
            for reply in app.control.ping(destination=sorted(waiting), timeout=0.3, limit=len(waiting)):
                waiting -= set(reply)
        except OperationalError as error:
            raise ServiceError(f"the broker cannot be reached: {error}", hint="see NOETL_BROKER_URL") from None


def _print_places(settings: Settings, folder: Path, places: dict[str, str]) -> None:
    key = folder / "secret.key"
    lines = [
        "Ready. In another terminal:",
        f"  export NOETL_DATABASE_URL='{settings.database_url}'",
        f"  export NOETL_BROKER_URL='{settings.broker_url}'",
        *([f"  export NOETL_SECRET_KEY=\"$(cat '{key}')\""] if key.exists() else []),
        f"Data and logs: {folder}",
        *(f"{name}: {url}" for name, url in places.items()),
        "Ctrl-C ends everything.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"noetl-celery dev: {text}\n")
    sys.stderr.flush()
