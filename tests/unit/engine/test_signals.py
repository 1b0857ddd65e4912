"""What is told to an execution: begin, pause, cancel, and notes that come late, twice or about what is over."""

from __future__ import annotations

import pytest
from engine_cases import Told, collection, cursor, noop

from noetl_celery.engine import Decision, ExecutionState, LoopSettings, Signal, StageState, Waiting
from noetl_celery.engine.state import STATE_VERSION
from noetl_celery.errors import NoetlError


def test_an_execution_begins_once() -> None:
    told = Told([noop("a")])
    assert [event.type for event in told.last.events] == ["playbook.started", "step.enter"]
    told.tell("start")
    assert told.last == Decision()


def test_nothing_happens_before_it_begins() -> None:
    told = Told([noop("a")], start=False)
    told.tell_all()
    assert told.last == Decision()
    assert told.state.status == "PENDING"


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_cancel_stops_what_runs_and_ends_when_that_has_ended() -> None:
    told = Told([noop("fork", ["a", "drain"]), noop("a", "b"), cursor("drain", flight=2), noop("b")])
    told.row("fork")
    told.filled("drain")
    told.tell("cancel", reason="enough")
    assert told.state.status == "CANCELLING"
    assert sorted(told.last.stops) == sorted(told.state.stages)
    told.tell("claim.empty", stage=told.stage("drain").stage_id, claim=1, budget=1, sole=False)
    assert told.last.claims == []
    told.row("a")
    assert told.open == ["drain"]
    told.frame("drain", ok=2, failed=1)
    assert told.state.status == "CANCELLED"
    assert told.last.events[-1].type == "playbook.cancelled"
    assert told.terminal == ["fork:step.done"]


def test_a_cancelled_stage_keeps_its_counts() -> None:
    told = Told([cursor("drain")])
    told.filled("drain")
    told.tell("cancel")
    told.frame("drain", ok=7, failed=2)
    (closing,) = told.last.closings
    assert (closing.status, closing.ok, closing.failed, closing.frames) == ("CANCELLED", 7, 2, 1)


def test_a_stage_that_waits_for_an_empty_answer_is_over_when_it_is_cancelled_and_answered() -> None:
    told = Told([cursor("drain")])
    told.tell("cancel")
    told.empty("drain", sole=False)  # the ticket that nobody took
    assert told.state.status == "CANCELLED"


def test_cancel_again_changes_nothing() -> None:
    told = Told([noop("a")])
    told.tell("cancel")
    told.tell("cancel")
    assert told.last == Decision()
    told.row("a")
    assert told.state.status == "CANCELLED"


@pytest.mark.parametrize("order", [("cancel",), ("cancel", "start"), ("start", "cancel")])
def test_cancel_before_anything_has_begun(order: tuple[str, ...]) -> None:
    told = Told([noop("a")], start=False)
    told.tell_all(*(Signal(type_) for type_ in order))  # type: ignore[arg-type]
    assert told.state.status == "CANCELLED"
    assert told.visits == []


def test_cancel_of_a_paused_execution() -> None:
    told = Told([noop("a", "b"), noop("b")])
    told.tell("pause")
    told.row("a")
    told.tell("cancel")
    assert told.state.status == "CANCELLED"
    assert told.visits == ["a"]


def test_cancel_and_the_last_row_in_one_turn() -> None:
    told = Told([noop("a", "b"), noop("b")])
    stage = told.stage("a").stage_id
    told.tell_all(
        Signal("frame.done", {"stage": stage, "frame": 1, "slots": 1, "ok": 1, "failed": 0}), Signal("cancel")
    )
    assert told.state.status == "CANCELLED"


# -- pause -------------------------------------------------------------------------------------------------------------


def test_a_paused_execution_lets_stages_end_and_opens_none() -> None:
    told = Told([noop("a", "b"), noop("b")])
    told.tell("pause")
    assert told.state.status == "PAUSED"
    told.row("a")
    assert (told.open, told.state.status) == ([], "PAUSED")
    told.tell("resume")
    assert (told.open, told.state.status) == (["b"], "RUNNING")


def test_a_paused_loop_claims_nothing_until_it_is_resumed() -> None:
    told = Told([cursor("drain")])
    told.filled("drain")
    told.tell("pause")
    told.frame("drain")
    assert told.last.claims == []
    told.tell("resume")
    assert [claim.sole for claim in told.last.claims] == [True]


def test_paused_before_it_begins() -> None:
    told = Told([noop("a")], start=False)
    told.tell("pause")
    told.tell("start")
    assert (told.open, told.state.status) == ([], "PAUSED")
    told.tell("resume")
    assert (told.open, told.state.status) == (["a"], "RUNNING")


# -- notes that come too late ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signal",
    [
        Signal("frame.done", {"stage": 5, "frame": 1, "slots": 1, "ok": 1, "failed": 0}),
        Signal("claim.filled", {"stage": 5, "claim": 1, "budget": 1, "frames": 1, "slots": 1}),
        Signal("claim.empty", {"stage": 5, "claim": 1, "budget": 1, "sole": True}),
        Signal("claim.failed", {"stage": 5, "claim": 1, "budget": 1, "error": {}}),
        Signal("stage.timeout", {"stage": 5}),
    ],
    ids=lambda signal: signal.type,
)
def test_a_note_about_a_stage_that_is_not_open_does_nothing(signal: Signal) -> None:
    told = Told([cursor("drain")])
    before = told.state.document()
    told.tell_all(signal)
    assert told.last == Decision()
    assert told.state.document() == before | {"turns": 2}


@pytest.mark.parametrize("type_", ["start", "cancel", "pause", "resume"])
def test_nothing_is_decided_after_the_end(type_: str) -> None:
    told = Told([collection("a", [])])
    assert told.state.status == "COMPLETED"
    told.tell(type_)
    assert told.last == Decision()
    assert told.state.status == "COMPLETED"


# -- the state as it is stored -----------------------------------------------------------------------------------------


def test_the_state_is_the_same_after_a_round_trip_through_its_document() -> None:
    settings = LoopSettings(max_in_flight=3, max_rows=7, lease_seconds=1.5, max_seconds=9.0, batch=2)
    stage = StageState(
        4, "a", "cursor", (1, 2), "before", settings, claims=2, tickets=1, sole=True, dry=True, error={"k": 1}
    )
    state = ExecutionState(1, "PAUSED", {"w": 1}, {"c": 2}, {"kind": "bad"}, [3], {4: stage})
    state.waiting = [Waiting("b", (1,), "a", {"x": [1]}, back=True), Waiting("c", ())]
    state.paused, state.cancelling, state.visits = True, True, {"a": 2}
    restored = ExecutionState(1, "PAUSED", {"w": 1}, {"c": 2}, {"kind": "bad"})
    restored.restore(state.document())
    assert restored == state


def test_an_execution_that_has_not_begun_has_an_empty_document() -> None:
    state = ExecutionState(1)
    state.restore({})
    assert state == ExecutionState(1)


def test_a_document_of_another_version_of_the_code_is_understood_as_far_as_it_goes() -> None:
    """Workers of two versions share executions while they are restarted one by one."""
    state = ExecutionState(1, stages={4: StageState(4, "a", "cursor", (1,), claims=2)}, waiting=[Waiting("b", (1,))])
    document = state.document()
    (stage,), (token,) = document["stages"], document["waiting"]
    for newer in (document, stage, stage["settings"], token):
        newer["unheard_of"] = 1
    del document["visits"], stage["probe"], stage["settings"]["batch"], token["back"]
    restored = ExecutionState(1)
    restored.restore(document)
    assert restored == state


def test_a_document_of_before_there_were_versions_is_understood() -> None:
    document = ExecutionState(1, stages={4: StageState(4, "a", "single")}).document()
    del document["version"]
    restored = ExecutionState(1)
    restored.restore(document)
    assert restored.stages.keys() == {4}


def test_a_document_of_a_later_version_is_left_alone() -> None:
    document = {**ExecutionState(1).document(), "version": STATE_VERSION + 1}
    with pytest.raises(
        NoetlError,
        match=rf"version {STATE_VERSION + 1}, this noetl-celery knows {STATE_VERSION} \(upgrade noetl-celery",
    ):
        ExecutionState(1).restore(document)


def test_pause_takes_back_the_claims_that_nobody_took() -> None:
    told = Told([cursor("drain", flight=3)])
    told.filled("drain")
    assert len(told.last.claims) == 2
    told.tell("pause")
    assert told.last.recalls == [told.stage("drain").stage_id]
    for _ in range(2):
        told.tell("claim.recalled", stage=told.stage("drain").stage_id, claim=1, budget=1, reclaim=False)
        assert told.last.claims == []
    told.tell("resume")
    assert len(told.last.claims) == 2


def test_a_claim_that_was_taken_back_leaves_its_reclaim_to_the_next() -> None:
    told = Told([cursor("drain")])
    told.tell("pause")
    told.tell("claim.recalled", stage=told.stage("drain").stage_id, claim=1, budget=1, reclaim=True)
    told.tell("resume")
    assert [claim.reclaim for claim in told.last.claims] == [True]
