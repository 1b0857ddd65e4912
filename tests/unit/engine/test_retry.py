"""Failed work that is run again: which stages open, with which frames, and how the execution goes on."""

from __future__ import annotations

import pytest
from engine_cases import Told, collection, cursor, noop

from noetl_celery.engine import Decision
from noetl_celery.engine.decision import Reopening
from noetl_celery.engine.facts import Unfinished

BAD = {"kind": "http", "message": "503", "task": "call"}
FAIL_FAST = {"spec": {"policy": {"failure": {"mode": "fail_fast"}}}}


def reopened(decision: Decision) -> list[tuple[str, tuple[int, ...]]]:
    return [(opening.step, opening.frames) for opening in decision.reopenings]


def unfinished(*frames: int, slots: int = 1, ok: int = 0, failed: int = 1) -> list[Unfinished]:
    return [Unfinished(frame, slots, ok, failed) for frame in frames]


def test_a_plain_step_that_failed_is_run_again_and_the_rest_goes_on() -> None:
    told = Told([noop("a", "b"), noop("b", "c"), noop("c")])
    told.row("a")
    failed = told.stage("b").stage_id
    told.row("b", error=BAD)
    assert told.state.status == "FAILED"
    told.facts.unfinished_frames = unfinished(7)
    told.tell("retry")
    assert told.state.status == "RUNNING"
    assert told.last.reopenings == [
        Reopening(failed, "b", ("FAILED", "SKIPPED")),
        Reopening(failed, "b", ("FAILED", "SKIPPED"), (7,)),
    ]
    assert [event.type for event in told.last.events] == ["playbook.retried", "step.retried"]
    told.row("b")
    assert told.open == ["c"]
    told.row("c")
    assert (told.state.status, told.state.error) == ("COMPLETED", None)


def test_what_fails_again_may_be_run_again() -> None:
    told = Told([noop("a")])
    told.row("a", error=BAD)
    told.facts.unfinished_frames = unfinished(7)
    for _ in range(2):
        told.tell("retry")
        told.row("a", error=BAD)
        assert told.state.status == "FAILED"


def test_a_branch_that_waited_when_another_failed_goes_on() -> None:
    told = Told([noop("fork", ["a", "b"]), noop("a", "join"), noop("b", "join"), noop("join")])
    told.row("fork")
    told.row("a")
    told.row("b", error=BAD)
    assert (told.state.status, [token.step for token in told.state.waiting]) == ("FAILED", ["join"])
    told.facts.unfinished_frames = unfinished(7)
    told.tell("retry")
    told.row("b")
    assert told.open == ["join"]
    told.row("join")
    assert told.state.status == "COMPLETED"
    assert told.visits.count("join") == 1


def test_a_branch_that_came_to_its_next_step_after_the_failure_opens_it_when_run_again() -> None:
    told = Told([noop("fork", ["a", "b"]), noop("a"), noop("b", "after"), noop("after")])
    told.row("fork")
    told.row("a", error=BAD)
    told.row("b")
    assert (told.state.status, told.visits) == ("FAILED", ["fork", "a", "b"])
    told.facts.unfinished_frames = unfinished(7)
    told.tell("retry")
    assert sorted(told.open) == ["a", "after"]


def test_all_stages_that_failed_are_run_again() -> None:
    told = Told([noop("fork", ["a", "b"]), noop("a"), noop("b")])
    told.row("fork")
    told.row("a", error=BAD)
    told.row("b", error=BAD)
    told.facts.unfinished_frames = unfinished(7)
    told.tell("retry")
    assert sorted(told.open) == ["a", "b"]
    told.row("a")
    told.row("b", error=BAD)
    assert (told.state.status, told.state.failed) == ("FAILED", [told.facts.last("b").state.stage_id])  # type: ignore[union-attr]


def test_a_step_that_failed_before_it_had_work_is_entered_anew() -> None:
    told = Told([noop("a", "b"), collection("b", "{{ a.items }}")])
    told.row("a", {"no": 1})
    assert told.state.status == "FAILED"
    told.facts.results["a"] = {"items": [1]}
    told.tell("retry")
    assert (told.open, told.visits) == (["b"], ["a", "b", "b"])
    assert told.last.reopenings == []


def test_a_cursor_whose_claim_failed_claims_again() -> None:
    told = Told([cursor("drain")])
    told.filled("drain")
    told.frame("drain", ok=5)
    told.claim_failed("drain")
    assert told.state.status == "FAILED"
    told.tell("retry")
    assert [claim.sole for claim in told.last.claims] == [True]
    assert (told.stage("drain").ok, told.stage("drain").drained) == (5, False)
    told.empty("drain", sole=True)
    assert told.state.status == "COMPLETED"
    assert told.result("drain")["ok"] == 5


def test_frames_open_again_no_faster_than_the_loop_allows() -> None:
    told = Told([cursor("drain", flight=2, **FAIL_FAST)])
    told.filled("drain", frames=3, slots=3)
    for ok in (4, 5, 3):
        told.frame("drain", ok=ok, failed=5 - ok)
    assert told.state.status == "FAILED"
    told.facts.unfinished_frames = [Unfinished(11, 1, 4, 1), Unfinished(13, 1, 3, 2), Unfinished(15, 1, 0, 0)]
    told.tell("retry")
    assert reopened(told.last) == [("drain", ()), ("drain", (11, 13))]
    assert (told.stage("drain").ok, told.stage("drain").failed, told.last.claims) == (5, 0, [])
    told.frame("drain", ok=5, frame=11)
    assert reopened(told.last) == [("drain", (15,))]
    told.frame("drain", ok=5, frame=13)
    assert (told.stage("drain").again, len(told.last.claims)) == (None, 1)


def test_retries_of_a_frame_that_is_opened_again_are_counted_once() -> None:
    told = Told([cursor("drain", **FAIL_FAST)])
    told.filled("drain")
    told.frame("drain", ok=4, failed=1, frame=11, retries=6)
    assert told.last.closings[-1].retries == 6
    told.facts.unfinished_frames = [Unfinished(11, 1, 4, 1, 6)]
    told.tell("retry")
    assert told.stage("drain").retries == 0
    told.frame("drain", ok=5, frame=11, retries=7)  # the frame goes on counting
    assert told.stage("drain").retries == 7


def test_a_frame_that_a_version_before_has_ended_tells_of_no_retries() -> None:
    told = Told([cursor("drain")])
    told.filled("drain")
    told.frame("drain", ok=5)
    assert told.stage("drain").retries == 0


def test_a_frame_that_holds_more_slots_than_are_free_waits() -> None:
    told = Told([cursor("drain", flight=3, frames=False, **FAIL_FAST)])
    told.filled("drain", budget=2, slots=2)
    told.frame("drain", slots=2, ok=1, failed=1)
    told.tell("claim.recalled", stage=told.stage("drain").stage_id, claim=1, budget=1, reclaim=False)
    assert told.state.status == "FAILED"
    told.facts.unfinished_frames = unfinished(11, 12, slots=2)
    told.tell("retry")
    assert reopened(told.last)[-1] == ("drain", (11,))
    told.tell("resume")
    assert reopened(told.last) == []
    told.frame("drain", slots=2, frame=11)
    assert reopened(told.last) == [("drain", (12,))]


def test_a_paused_execution_opens_nothing_until_it_is_resumed() -> None:
    told = Told([noop("a")])
    told.row("a", error=BAD)
    told.facts.unfinished_frames = unfinished(7)
    told.state.paused = True
    told.tell("retry")
    assert (told.state.status, reopened(told.last)) == ("PAUSED", [("a", ())])
    told.tell("resume")
    assert reopened(told.last) == [("a", (7,))]


def test_failed_rows_of_a_loop_that_went_on_are_run_again_and_its_arcs_followed() -> None:
    told = Told([cursor("drain", "after"), noop("after")])
    told.filled("drain")
    told.frame("drain", ok=3, failed=2)
    told.empty("drain", sole=True)
    told.row("after")
    assert told.state.status == "COMPLETED"
    told.facts.unfinished_frames = unfinished(11, ok=3, failed=2)
    told.tell("retry", step="drain")
    assert (told.state.status, told.last.claims) == ("RUNNING", [])
    assert told.last.reopenings[-1].statuses == ("FAILED",)
    told.frame("drain", ok=5, frame=11)
    assert told.result("drain")["ok"] == 5
    assert told.open == ["after"]
    told.row("after")
    assert told.state.status == "COMPLETED"


def test_failed_rows_of_one_step_leave_another_failure_as_it_is() -> None:
    told = Told([cursor("drain", "after"), noop("after")])
    told.filled("drain")
    told.frame("drain", ok=3, failed=2)
    told.empty("drain", sole=True)
    told.row("after", error=BAD)
    told.facts.unfinished_frames = unfinished(11, ok=3, failed=2)
    told.tell("retry", step="drain")
    told.frame("drain", ok=5, frame=11)
    assert (told.state.status, told.state.error and told.state.error["step"]) == ("FAILED", "after")


@pytest.mark.parametrize("step", [None, "a", "nowhere"])
def test_what_did_not_fail_or_still_runs_is_left_alone(step: str | None) -> None:
    told = Told([noop("a")])
    told.tell("retry", **({"step": step} if step else {}))
    assert (told.last, told.state.status) == (Decision(), "RUNNING")


def test_a_cancelled_execution_stays_so() -> None:
    told = Told([noop("a")])
    told.tell("cancel")
    told.row("a", error=BAD)
    told.tell("retry")
    told.tell("retry", step="a")
    assert (told.last, told.state.status) == (Decision(), "CANCELLED")


def test_timers_start_afresh() -> None:
    told = Told([noop("a", spec={"timeout": 60})])
    told.row("a", error=BAD)
    told.facts.unfinished_frames = unfinished(7)
    told.tell("retry")
    assert [(timer.type, timer.seconds) for timer in told.last.timers] == [("stage.timeout", 60)]


def test_cancel_while_frames_wait_to_be_opened_again() -> None:
    told = Told([cursor("drain", flight=1, **FAIL_FAST)])
    told.filled("drain")
    told.frame("drain", failed=1, ok=0)
    assert told.state.status == "FAILED"
    told.facts.unfinished_frames = unfinished(11, 12)
    told.tell("retry")
    told.tell("cancel")
    told.frame("drain", frame=11)
    assert told.state.status == "CANCELLED"
