"""Checks of workers and queues: who is there, what they take, and what waits for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl_celery import __version__
from noetl_celery.cli.console import seconds_text
from noetl_celery.cli.doctor.findings import Check, Finding, ok, problem, warning
from noetl_celery.cli.doctor.place import Place
from noetl_celery.runtime.panel import key_mark
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE
from noetl_celery.store import health

#: a reply is on its way for a moment, and so looks old
NODE_CLOCK_SECONDS = 5.0


def _nodes(place: Place) -> Iterator[Finding]:
    if not place.nodes:
        hint = "start one: noetl-celery worker"
        if place.schema and place.postgres is not None and _waits(place):
            yield problem("no worker answers, and work waits", hint)
        else:
            yield warning("no worker answers", hint)
        return
    yield ok(f"{len(place.nodes)} nodes answer: {', '.join(place.nodes)}")
    for name, node in place.nodes.items():
        if not node.told:
            yield warning(f"{name} does not know this question: another version?", "restart it with this version")
            continue
        if node.told["version"] != __version__:
            yield warning(f"{name} is version {node.told['version']}, this one is {__version__}", "restart it")
        if abs(node.ahead) > NODE_CLOCK_SECONDS:
            direction = "ahead of" if node.ahead > 0 else "behind"
            yield warning(
                f"the clock of {name} is {seconds_text(abs(node.ahead))} {direction} ours",
                "leases and delays do not mind, times in its log do: use NTP",
            )
        if node.told["key"] != key_mark(place.settings):
            yield problem(
                f"{name} has another NOETL_SECRET_KEY than this machine, or none",
                "give all processes the same key: what one stores the others cannot read",
            )


def _waits(place: Place) -> bool:
    assert place.postgres is not None
    work = health.work(place.postgres)
    return bool(work["dispatches"] or work["signals"])


def _processes(place: Place) -> Iterator[Finding]:
    assert place.postgres is not None
    found = health.processes(place.postgres, dead_after_seconds=place.settings.dead_after_seconds)
    dead = [process for process in found if not process["alive"]]
    holding = [process for process in dead if process["runs"]]
    for process in holding:
        yield _holding(process, any(process["alive"] for process in found))
    said = f"{len(found) - len(dead)} processes are alive"
    yield ok(f"{said}, {len(dead)} have gone without a word and are forgotten after an hour" if dead else said)


def _holding(process: dict[str, Any], others: bool) -> Finding:
    text = (
        f"process {process['pid']} on {process['host']} is dead (seen {seconds_text(process['seconds'])} ago) and "
        f"still holds {process['runs']} runs"
    )
    return warning(text, "living workers take it over in a moment") if others else problem(text, "start a worker")


def _queues(place: Place) -> Iterator[Finding]:
    assert place.redis is not None
    taken = frozenset().union(*(node.queues for node in place.nodes.values()))
    lengths = {queue: int(place.redis.llen(queue)) for queue in sorted(taken | _known(place))}
    wanted = health.wanted_queues(place.postgres) if place.schema and place.postgres is not None else []
    lonely = False
    for queue in lengths:
        if queue in taken:
            continue
        if lengths[queue] or queue in wanted:
            lonely = True
            waits = f"{lengths[queue]} messages wait" if lengths[queue] else "work waits"
            yield problem(f"{waits} for {queue}, and no worker takes it", _start(queue))
        elif queue in (CONTROL_QUEUE, BODY_QUEUE) or _pool(queue) in place.settings.own_pools:
            lonely = True
            yield warning(f"no worker takes {queue}", _start(queue))
    if not lonely:
        shown = ", ".join(f"{queue} ({length})" for queue, length in lengths.items())
        yield ok(f"each has a worker; messages that wait: {shown}")


def _known(place: Place) -> set[str]:
    """Queues that are ours by name, that settings name, that work waits for, or that Redis has."""
    assert place.redis is not None
    known = {CONTROL_QUEUE, BODY_QUEUE, *(f"{BODY_QUEUE}.{pool}" for pool in place.settings.own_pools)}
    bound = {key.decode().removeprefix("_kombu.binding.") for key in place.redis.scan_iter("_kombu.binding.noetl.*")}
    if place.schema and place.postgres is not None:
        known |= set(health.wanted_queues(place.postgres))
    return known | bound


def _pool(queue: str) -> str:
    return queue.removeprefix(f"{BODY_QUEUE}.")


def _start(queue: str) -> str:
    if queue in (CONTROL_QUEUE, BODY_QUEUE):
        return "start one: noetl-celery worker"
    return f"start one: noetl-celery worker -Q {_pool(queue)}; or take the pool out of NOETL_POOLS everywhere"


WORKERS = [
    Check("workers", ("redis",), _nodes),
    Check("processes", ("postgres", "schema"), _processes),
    Check("queues", ("redis",), _queues),
]
