"""The systems, each with two processes for the work: one per core of the machine that the goals are for."""

from __future__ import annotations

from benchmarks.model import Command, System

BASELINES = "benchmarks.baselines"
PROCESSES = 2


def noetl(processes: int = PROCESSES, workers: int = 1, **settings: str) -> System:
    """``noetl-celery worker``, as the README has it; each is a control node and a bodies node."""
    commands = tuple(
        Command(("noetl_celery", "worker", "--name", f"bench-{number}", "-c", str(processes)), " ready.", 2)
        for number in range(1, workers + 1)
    )
    named = "".join(f" {name.removeprefix('NOETL_').lower()}={value}" for name, value in settings.items())
    name = f"noetl-celery {workers}x{processes}{named}"
    return System(name, commands, tuple(sorted(settings.items())), group="noetl")


def celery(*options: str) -> System:
    """One worker; its pool has the processes."""
    start = ("celery", "-A", f"{BASELINES}.celery_app", "worker", "-n", "bench@%h")
    pool = options or ("-c", str(PROCESSES))
    quiet = ("--without-gossip", "--without-mingle", "--loglevel", "WARNING")
    return System(
        "celery", (Command((*start, *pool, *quiet), "worker is ready"),), group="celery", message_command="lpush"
    )


def psycopg_limit(mode: str) -> System:
    command = Command((f"{BASELINES}.psycopg_limit", mode), "worker is ready")
    return System(f"psycopg {mode}", (command,) * PROCESSES)


NOETL = noetl()
CELERY = celery()
