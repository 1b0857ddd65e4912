"""The systems, each with two processes for the work: one per core of the machine that the goals are for."""

from __future__ import annotations

from benchmarks.model import Command, System

BASELINES = "benchmarks.baselines"
READY = "worker is ready"
PROCESSES = 2
NOETL_GROUP = "noetl"


def noetl(processes: int = PROCESSES, workers: int = 1, **settings: str) -> System:
    """``noetl-celery worker``, as the README has it; each is a control node and a bodies node."""
    commands = tuple(
        Command(("noetl_celery", "worker", "--name", f"bench-{number}", "-c", str(processes)), " ready.", 2)
        for number in range(1, workers + 1)
    )
    named = "".join(f" {name.removeprefix('NOETL_').lower()} {value}" for name, value in settings.items())
    return System(f"noetl {workers}x{processes}{named}", commands, tuple(sorted(settings.items())), group=NOETL_GROUP)


def celery() -> System:
    """One worker, whose pool has the processes."""
    arguments = ("celery", "-A", f"{BASELINES}.celery_app", "worker", "-n", "bench@%h", "-c", str(PROCESSES))
    quiet = ("--without-gossip", "--without-mingle", "--loglevel", "WARNING")
    return System("celery", (Command((*arguments, *quiet), READY),))


def dramatiq(threads: int = 8) -> System:
    """Eight threads in each process are its default."""
    sizes = ("--processes", str(PROCESSES), "--threads", str(threads))
    command = Command(("dramatiq", f"{BASELINES}.dramatiq_actors", *sizes), "is ready for action", PROCESSES)
    return System(f"dramatiq {threads} threads", (command,), group="dramatiq", message_command="rpush")


def procrastinate() -> System:
    return System("procrastinate", (Command((f"{BASELINES}.procrastinate_jobs",), READY),) * PROCESSES, setup=_install)


def _install() -> None:
    from benchmarks.baselines import procrastinate_jobs

    procrastinate_jobs.install()


def psycopg_limit(mode: str) -> System:
    return System(f"psycopg {mode}", (Command((f"{BASELINES}.psycopg_limit", mode), READY),) * PROCESSES)


def straight_loop() -> System:
    """One process: that is what it is."""
    return System("straight loop", (Command((f"{BASELINES}.straight_loop",), READY),))


NOETL = noetl()
#: for rows that wait: 32 of them at once in each process
NOETL_WIDE = noetl(NOETL_LANE_WIDTH="32")
CELERY = celery()
