"""Why an execution is where it is, in words, and what to do. Pure: the facts come from ``store/situation.py``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noetl_celery.engine.state import FINAL
from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE

if TYPE_CHECKING:
    from noetl_celery.store.situation import Situation

#: what is younger is on its way
SOON_SECONDS = 5.0
START = "start one: noetl-celery worker"
#: kinds of errors that lie in what somebody wrote
_WRITTEN = frozenset({"syntax", "template", "endless_claim", "endless", "jump_budget"})
_REMEDIES = {
    "auth": "the login is refused: correct the credential that `auth` names (noetl-celery credential set)",
    "connection": "see whether the service runs and its address is right",
    "credential": "store the credential",
    "timeout": "see why it takes so long, or give it more time",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that the execution waits for. ``todo``: what one can do about it; empty: nothing is to be done."""

    text: str
    todo: str = ""
    step: str | None = None


def explain(at: Situation, queues: Collection[str] | None) -> list[Reason]:
    """The reasons, those that need somebody first. ``queues``: those that workers take now; None: nobody knows."""
    execution = at.execution
    status, id_ = execution["status"], execution["execution_id"]
    if status in FINAL:
        return [_ended(execution), *_losses(id_, at.losses)]
    reasons = list(_nobody(at, queues))
    if status == "PAUSED":
        reasons.append(Reason("it is paused: no step and no claim starts", f"noetl-celery resume {id_}"))
    if status == "CANCELLING":
        reasons.append(Reason("it is being cancelled: rows at work come to their end, nothing else starts"))
    reasons += _signals(at)
    for stage in at.stages:
        reasons += _stage(at, stage, queues)
    return sorted(reasons, key=lambda reason: not reason.todo) or [Reason("it is being worked on right now")]


def _ended(execution: Mapping[str, Any]) -> Reason:
    error = execution["error"] or {}
    if execution["status"] == "COMPLETED":
        return Reason("it has completed")
    if execution["status"] == "CANCELLED":
        return Reason(f"it was cancelled: {error['message']}" if error else "it was cancelled")
    step = error.get("step")
    place = f" in step '{step}'" if step else ""
    return Reason(f"it failed{place}: {error.get('kind')}: {error.get('message')}", remedy(execution), step)


def remedy(execution: Mapping[str, Any]) -> str:
    """What to do about the error of an execution that has failed."""
    id_, error = execution["execution_id"], execution["error"] or {}
    kind = error.get("kind")
    if kind in _WRITTEN:
        return "correct the playbook, and run it: this execution keeps the version that it began with"
    if kind in _REMEDIES:
        return f"{_REMEDIES[kind]}, then: noetl-celery retry {id_}"
    return f"noetl-celery retry {id_} goes on from there; a corrected playbook is run anew"


def look_at_rows(execution_id: int, step: str, kind: str | None = None) -> str:
    """How to see the failed rows of a step that went on without them, and how to run them again.

    ``kind``: of the first of their errors, if it says what to do before.
    """
    before = f"{_REMEDIES[kind]}; " if kind in _REMEDIES else ""
    return (
        f"{before}noetl-celery rows {execution_id} {step} --failed shows them; "
        f"again: noetl-celery retry {execution_id} --rows failed {step}"
    )


def _losses(execution_id: int, losses: Iterable[Mapping[str, Any]]) -> Iterator[Reason]:
    for stage in losses:
        text = "1 row failed" if stage["failed"] == 1 else f"{stage['failed']:,} rows failed"
        yield Reason(text, look_at_rows(execution_id, stage["step"], stage["kind"]), stage["step"])


def _nobody(at: Situation, queues: Collection[str] | None) -> Iterator[Reason]:
    if not at.workers and queues is not None and not queues:
        yield Reason("no worker is there", START)


def _signals(at: Situation) -> Iterator[Reason]:
    old = [signal for signal in at.signals if signal["since"] > SOON_SECONDS]
    if not old:
        return
    names = ", ".join(signal["type"] for signal in old)
    since = max(signal["since"] for signal in old)
    if at.execution["status"] == "PENDING":
        text = f"it was submitted {_seconds(since)} ago, and no worker has begun it"
    else:
        text = f"nobody has decided on what it was told {_seconds(since)} ago ({names})"
    again = min(signal["again"] for signal in old)
    yield Reason(f"{text}; it is announced again {_when(again)}", "noetl-celery doctor says whether workers take it")


def _stage(at: Situation, stage: Mapping[str, Any], queues: Collection[str] | None) -> Iterator[Reason]:
    step = stage["step"]

    def mine(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [row for row in rows if row["stage_id"] == stage["stage_id"]]

    if stage["time_left"] is not None:
        yield Reason(f"its timeout is over {_when(stage['time_left'])}", step=step)
    for ticket in mine(at.tickets):
        yield _ticket(ticket, step, queues)
    for waiting in mine(at.dispatches):
        yield _dispatch(waiting, step, queues)
    runs = mine(at.runs)
    for run in runs:
        yield _run(run, step)
    sleepers = mine(at.sleepers)
    for row in sleepers:
        yield _sleeper(row, step)
    if stage["parked"] > len(sleepers):
        yield Reason(f"{stage['parked'] - len(sleepers):,} more rows are parked", step=step)
    if stage["ready"] and runs:
        yield Reason(f"{stage['ready']:,} rows wait for a place beside those at work", step=step)


def _ticket(ticket: Mapping[str, Any], step: str, queues: Collection[str] | None) -> Reason:
    error = ticket["error"] or {}
    failed = f"; {ticket['attempts']} attempts failed, the last one with {_brief(error)}" if ticket["attempts"] else ""
    if ticket["status"] == "TAKEN":
        if not ticket["alive"]:
            return Reason(f"the worker that asked its source is gone; another one will{failed}", step=step)
        return Reason(f"process {ticket['pid']} on {ticket['host']} asks its source for rows{failed}", step=step)
    if failed:
        return Reason(f"a claim waits{failed}; the next one {_when(ticket['again'])}", _fix(error), step)
    return _waits("a claim waits for a worker", ticket["queue"], ticket, step, queues)


def _dispatch(waiting: Mapping[str, Any], step: str, queues: Collection[str] | None) -> Reason:
    what = "a lane waits" if waiting["count"] == 1 else f"{waiting['count']:,} lanes wait"
    return _waits(f"{what} for a worker", waiting["queue"], waiting, step, queues)


def _waits(
    text: str, queue: str | None, message: Mapping[str, Any], step: str, queues: Collection[str] | None
) -> Reason:
    if queues is not None and queue is not None and queue not in queues:
        pool = queue.removeprefix(f"{BODY_QUEUE}.")
        start = START if queue in (CONTROL_QUEUE, BODY_QUEUE) else f"start one: noetl-celery worker -Q {pool}"
        return Reason(f"{text}, and none takes {queue}", start, step)
    sent = f", sent {message['published'] + 1} times by now" if message["published"] else ""
    again = f"; it is sent again {_when(message['again'])}" if message["again"] is not None else ""
    return Reason(f"{text} of {queue}{sent}{again}", step=step)


def _run(run: Mapping[str, Any], step: str) -> Reason:
    where = f"process {run['pid']} on {run['host']}" if run["host"] else "a process that is forgotten"
    if run["alive"]:
        lanes = "a lane" if run["lanes"] == 1 else f"{run['lanes']} lanes"
        return Reason(f"{where} works on {lanes}, {run['begun']} rows have begun", step=step)
    ends = _when(run["lease"]) if run["lease"] > 0 else "any moment"
    return Reason(f"{where} is gone; its rows are run again when that is certain ({ends})", step=step)


def _sleeper(row: Mapping[str, Any], step: str) -> Reason:
    name = f"row {row['frame']}.{row['row']}"
    if row["waits_for"] is not None:
        todo = f"noetl-celery explain {row['waits_for']}" if row["child"] not in FINAL else ""
        return Reason(f"{name} waits for execution {row['waits_for']} ({row['child']})", todo, step)
    when = "nobody knows when" if row["seconds"] is None else _when(row["seconds"])
    if not row["error"]:
        return Reason(f"{name} waits, and goes on {when}", step=step)
    of = f" of {row['attempts']}" if row["attempts"] else ""
    tries = f"attempt {row['attempt']}{of}" if row["attempt"] else "another attempt"
    return Reason(f"{name} waits for {tries} after {_brief(row['error'])}; it goes on {when}", step=step)


def _brief(error: Mapping[str, Any]) -> str:
    status = error.get("status")
    text = str(error.get("message") or "").split("\n")[0]
    return f"{status or error.get('kind')}{f' ({text[:120]})' if text else ''}"


def _fix(error: Mapping[str, Any]) -> str:
    return "see whether its source is reachable, and the credential right" if error.get("kind") == "connection" else ""


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _when(seconds: float) -> str:
    return f"in {_seconds(seconds)}" if seconds >= 1 else "now"
