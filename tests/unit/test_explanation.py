"""Why an execution is where it is: each reason in words, and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from noetl_celery.explanation import Reason, explain
from noetl_celery.store.situation import Situation

STAGE = {"stage_id": 7, "step": "drain", "kind": "cursor", "visit": 1, "age": 3.0, "time_left": None}
IDLE = {"ready": 0, "parked": 0}
TICKET = {"stage_id": 7, "status": "OPEN", "attempts": 0, "host": None, "pid": None, "alive": False, "lease": None}
MESSAGE = {"queue": "noetl.body", "published": 0, "again": 25.0}
ROW = {"stage_id": 7, "frame": 2, "row": 17, "retries": 3, "waits_for": None, "child": None, "seconds": 4.2}
BOTH = {"noetl.body", "noetl.control"}


def at(status: str = "RUNNING", *, error: Any = None, workers: int = 1, **found: Any) -> Situation:
    execution = {"execution_id": 42, "path": "p", "status": status, "error": error, "age": 9.0}
    lists: dict[str, Any] = {part: [] for part in ("signals", "tickets", "dispatches", "runs", "sleepers", "losses")}
    return Situation(execution, **{**lists, "stages": [{**STAGE, **IDLE}], **found}, workers=workers)


def only(situation: Situation, queues: set[str] | None = BOTH) -> Reason:
    [reason] = explain(situation, queues)
    return reason


def test_ended() -> None:
    assert "completed" in only(at("COMPLETED")).text
    failed = only(at("FAILED", error={"kind": "http", "message": "gone", "step": "drain"}))
    assert "step 'drain': http: gone" in failed.text
    assert "noetl-celery retry 42" in failed.todo


@pytest.mark.parametrize(
    ("kind", "todo"),
    [
        ("auth", "correct the credential that `auth` names"),
        ("connection", "see whether the service runs"),
        ("syntax", "correct the playbook, and run it"),
        ("of a plugin", "noetl-celery retry 42 goes on"),
    ],
)
def test_what_to_do_about_an_error(kind: str, todo: str) -> None:
    reason = only(at("FAILED", error={"kind": kind, "message": "no", "step": "drain"}))
    assert todo in reason.todo
    assert ("retry" in reason.todo) == (kind != "syntax")


def test_completed_with_failed_rows() -> None:
    first, second = explain(at("COMPLETED", losses=[{"step": "drain", "failed": 3, "kind": "connection"}]), BOTH)
    assert first.text == "it has completed"
    assert (second.text, second.step) == ("3 rows failed", "drain")
    assert second.todo.startswith(
        "see whether the service runs and its address is right; noetl-celery rows 42 drain --failed"
    )
    assert "noetl-celery retry 42 --rows failed drain" in second.todo


def test_nothing_is_wrong() -> None:
    assert only(at()) == Reason("it is being worked on right now")


def test_no_worker_at_all() -> None:
    waiting = [{"type": "start", "count": 1, "published": 2, "since": 75.0, "again": 12.0}]
    first, second = explain(at("PENDING", workers=0, signals=waiting, stages=[]), set())
    assert (first.text, first.todo) == ("no worker is there", "start one: noetl-celery worker")
    assert "submitted 1 min 15 s ago" in second.text
    assert "announced again in 12 s" in second.text


def test_what_was_just_told_is_on_its_way() -> None:
    fresh = [{"type": "frame.done", "count": 1, "published": 0, "since": 0.1, "again": 30.0}]
    assert only(at(signals=fresh)).text == "it is being worked on right now"


@pytest.mark.parametrize(
    ("queue", "queues", "todo"),
    [
        ("noetl.body.gpu", BOTH, "start one: noetl-celery worker -Q gpu"),
        ("noetl.body", {"noetl.control"}, "start one: noetl-celery worker"),
        ("noetl.body", BOTH, ""),
        ("noetl.body.gpu", None, ""),
    ],
)
def test_lanes_that_wait(queue: str, queues: set[str] | None, todo: str) -> None:
    lanes = [{**MESSAGE, "stage_id": 7, "queue": queue, "count": 2}]
    reason = only(at(dispatches=lanes), queues)
    assert "2 lanes wait for a worker" in reason.text
    assert queue in reason.text
    assert (reason.todo, reason.step) == (todo, "drain")


def test_a_claim_that_fails() -> None:
    error = {"kind": "connection", "message": "refused"}
    reason = only(at(tickets=[{**TICKET, **MESSAGE, "attempts": 3, "error": error}]))
    assert "3 attempts failed, the last one with connection (refused); the next one in 25 s" in reason.text
    assert "credential" in reason.todo


def test_a_claim_that_is_asked() -> None:
    taken = {**TICKET, **MESSAGE, "status": "TAKEN", "host": "h", "pid": 5, "error": None}
    assert "process 5 on h asks" in only(at(tickets=[{**taken, "alive": True}])).text
    assert "is gone; another one will" in only(at(tickets=[taken])).text


def test_processes_at_work_and_gone() -> None:
    run = {"stage_id": 7, "host": "h", "pid": 5, "alive": True, "lanes": 1, "begun": 8, "lease": 100.0}
    waiting = [{**STAGE, **IDLE, "ready": 40}]
    texts = [reason.text for reason in explain(at(runs=[run], stages=waiting), BOTH)]
    assert texts == [
        "process 5 on h works on a lane, 8 rows have begun",
        "40 rows wait for a place beside those at work",
    ]
    gone = only(at(runs=[{**run, "alive": False, "lease": 31.0}]))
    assert "process 5 on h is gone; its rows are run again when that is certain (in 31 s)" in gone.text


def test_parked_rows() -> None:
    error = {"kind": "http", "status": 429, "message": "slow down\nplease"}
    waits = {**ROW, "attempt": 3, "attempts": 6, "error": error}
    stage = [{**STAGE, **IDLE, "parked": 3}]
    first, more = explain(at(sleepers=[waits], stages=stage), BOTH)
    assert first.text == "row 2.17 waits for attempt 3 of 6 after 429 (slow down); it goes on in 4 s"
    assert more.text == "2 more rows are parked"


def test_a_row_that_waits_for_a_child() -> None:
    child = {
        **ROW,
        "waits_for": 99,
        "child": "RUNNING",
        "seconds": None,
        "attempt": None,
        "attempts": None,
        "error": None,
    }
    reason = only(at(sleepers=[child], stages=[{**STAGE, **IDLE, "parked": 1}]))
    assert "waits for execution 99 (RUNNING)" in reason.text
    assert reason.todo == "noetl-celery explain 99"


def test_what_somebody_has_to_do_comes_first() -> None:
    lonely = [{**MESSAGE, "stage_id": 7, "queue": "noetl.body.gpu", "count": 1}]
    reasons = explain(at("PAUSED", stages=[{**STAGE, **IDLE, "time_left": 5.0}], dispatches=lonely), BOTH)
    assert [bool(reason.todo) for reason in reasons] == [True, True, False]
    assert reasons[0].todo == "noetl-celery resume 42"
