"""Loops: when a cursor claims again, when its source is known to be empty, what a loop's result is."""

from __future__ import annotations

from typing import Any

import pytest
from engine_cases import Told, collection, cursor, noop

from noetl_celery.engine import LoopSettings
from noetl_celery.engine.decision import Timer

# -- claims ------------------------------------------------------------------------------------------------------------


def issued(told: Told) -> list[bool]:
    """Of the claims that the last decision issued: were they to be alone?"""
    return [claim.sole for claim in told.last.claims]


def test_a_cursor_stage_begins_with_one_claim_alone() -> None:
    told = Told([cursor("drain", flight=4)])
    (claim,) = told.last.claims
    assert (claim.sole, claim.index, claim.budget, claim.more) == (True, 0, 1, True)


@pytest.mark.parametrize(("flight", "more"), [(None, 0), (1, 0), (2, 1), (4, 3)])
def test_after_the_first_frame_as_many_claims_go_out_as_may_be_in_flight(flight: int | None, more: int) -> None:
    told = Told([cursor("drain", flight=flight)])
    told.filled("drain")
    assert issued(told) == [False] * more


def test_the_end_of_a_frame_frees_its_place() -> None:
    told = Told([cursor("drain", flight=2)])
    told.filled("drain")
    told.filled("drain")
    assert issued(told) == []
    told.frame("drain")
    assert issued(told) == [False]


def test_after_the_only_frame_the_next_claim_is_alone_again() -> None:
    told = Told([cursor("drain")])
    told.filled("drain")
    told.frame("drain")
    assert issued(told) == [True]


def test_pieces_of_one_claim_hold_its_place_together() -> None:
    told = Told([cursor("drain", flight=2)])
    told.filled("drain", frames=3, slots=1)
    assert issued(told) == [False]
    told.frame("drain", slots=0)
    assert issued(told) == []
    assert told.stage("drain").open_frames == 2


def test_the_empty_answer_to_a_claim_that_was_alone_drains_the_stage() -> None:
    told = Told([cursor("drain")])
    told.empty("drain", sole=True)
    assert told.terminal == ["drain:loop.done"]


def test_after_another_empty_answer_one_claim_follows_when_a_frame_ends_and_drains_nothing() -> None:
    # given two open frames, and a third claim that came back empty
    told = Told([cursor("drain", flight=4)])
    told.filled("drain")
    told.filled("drain")
    told.empty("drain", sole=False)
    told.empty("drain", sole=False)
    assert issued(told) == []
    # when one of the frames ends (its rows may have enqueued work), one claim follows
    told.frame("drain")
    assert issued(told) == [False]
    # it is empty too; the last frame ends; only now does a claim go out that may drain the stage
    told.empty("drain", sole=False)
    assert issued(told) == []
    told.frame("drain")
    assert issued(told) == [True]
    assert told.terminal == []
    told.empty("drain", sole=True)
    assert told.terminal == ["drain:loop.done"]


def test_with_a_claim_still_out_a_dry_source_is_asked_again_only_after_its_answer() -> None:
    # given two open frames, one claim that came back empty and one that is still out
    told = Told([cursor("drain", flight=4)])
    told.filled("drain")
    told.filled("drain")
    told.empty("drain", sole=False)
    told.frame("drain")
    assert issued(told) == []
    told.empty("drain", sole=False)
    assert issued(told) == [False]


def test_a_filled_claim_makes_a_dry_source_flow_again() -> None:
    told = Told([cursor("drain", flight=3)])
    told.filled("drain")
    told.empty("drain", sole=False)
    assert issued(told) == []
    told.filled("drain")
    assert issued(told) == [False]


def test_no_other_claim_goes_out_beside_the_one_that_may_prove_the_source_empty() -> None:
    # given a stage whose first claim is out: nothing of it is open, so its being empty would drain the stage
    told = Told([cursor("drain", flight=2)])
    assert issued(told) == [True]
    # when something else makes the execution decide meanwhile (a second claim could take rows that enqueue more)
    told.tell("pause")
    told.tell("resume")
    # then no further claim goes out until it is answered
    assert issued(told) == []
    told.filled("drain")
    assert issued(told) == [False]


def test_a_neighbours_signal_issues_no_claim_beside_a_sole_one() -> None:
    told = Told([noop("fork", ["drain", "other"]), cursor("drain", flight=3), noop("other")])
    told.row("fork")
    assert issued(told) == [True]
    told.row("other")
    assert issued(told) == []


def test_a_loop_that_says_nothing_about_frames_claims_half_of_its_places_with_one_ticket() -> None:
    told = Told([cursor("drain", flight=5, frames=False)])
    assert [(claim.budget, claim.sole) for claim in told.last.claims] == [(3, True)]
    told.filled("drain", budget=3, slots=3)
    assert [(claim.budget, claim.sole) for claim in told.last.claims] == [(2, False)]
    told.filled("drain", budget=2, slots=1, dry=True)
    assert issued(told) == []
    told.frame("drain", slots=3)
    assert [(claim.budget, claim.sole) for claim in told.last.claims] == [(3, False)]


def test_a_failed_claim_fails_the_stage_once_its_frames_have_ended() -> None:
    told = Told([cursor("drain", flight=2)])
    told.filled("drain")
    told.claim_failed("drain", "syntax error at line 3")
    assert told.last.stops == [told.stage("drain").stage_id]
    assert told.terminal == []
    told.frame("drain", ok=3)
    assert told.terminal == ["drain:step.failed"]
    assert told.state.error == {"kind": "sql", "message": "syntax error at line 3", "step": "drain", "task": None}


def test_fail_fast_stops_other_frames_and_claims_no_more() -> None:
    told = Told([cursor("drain", flight=3, spec={"policy": {"failure": {"mode": "fail_fast"}}})])
    told.filled("drain")
    told.filled("drain")
    told.frame("drain", ok=4, failed=1)
    assert told.last.stops == [told.stage("drain").stage_id]
    assert issued(told) == []
    # a claim that was under way brings another frame: that one is stopped too
    told.filled("drain")
    assert told.last.stops == [told.stage("drain").stage_id]
    told.frame("drain")
    told.frame("drain", ok=0)
    assert told.terminal == ["drain:step.failed"]


def test_a_timeout_stops_the_stage_and_fails_it_when_nothing_runs() -> None:
    told = Told([noop("slow", spec={"timeout": 5})])
    (opening,) = told.last.openings
    assert told.last.timers == [Timer("stage.timeout", opening.stage_id, 5)]
    told.tell("stage.timeout", stage=opening.stage_id)
    assert told.last.stops == [opening.stage_id]
    told.row("slow", error={"kind": "cancelled", "message": "stopped"})
    assert told.terminal == ["slow:step.failed"]
    assert told.state.error is not None
    assert told.state.error["kind"] == "timeout"


# -- what a loop opens and gives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "concurrency"),
    [
        ({}, 1),
        ({"mode": "sequential"}, 1),
        ({"mode": "sequential", "max_in_flight": 7}, 1),
        ({"mode": "parallel"}, 16),
        ({"mode": "parallel", "max_in_flight": 7}, 7),
        ({"mode": "parallel", "max_in_flight": "{{ workload.n }}"}, 3),
        ({"mode": "parallel", "policy": {"max_in_flight": 2}}, 2),
    ],
)
def test_items_of_a_collection_in_flight(pace: dict[str, Any], concurrency: int) -> None:
    told = Told([collection("each", [5, 6, 7], pace=pace)], workload={"n": 3})
    (opening,) = told.last.openings
    assert (opening.kind, opening.items, opening.settings.row_concurrency) == ("collection", [5, 6, 7], concurrency)
    assert (told.stage("each").open_frames, told.stage("each").frames) == (1, 1)


def test_the_numbers_of_a_cursor_loop() -> None:
    told = Told([cursor("drain", flight="{{ 1 + 1 }}")])  # type: ignore[arg-type]
    (opening,) = told.last.openings
    assert opening.items is None
    assert opening.settings == LoopSettings(max_in_flight=2, max_rows=5, row_concurrency=2)


@pytest.mark.parametrize("items", ["{{ range(3) }}", "{{ (0, 1, 2) }}", "{{ workload.items }}", [0, "{{ 1 }}", 2]])
def test_a_collection_may_be_anything_that_lists_items(items: Any) -> None:
    told = Told([collection("each", items)], workload={"items": [0, 1, 2]})
    assert told.last.openings[0].items == [0, 1, 2]


@pytest.mark.parametrize("items", ["{{ workload }}", "{{ 'text' }}", "{{ 3 }}", "{{ none }}", "{{ nothing }}"])
def test_what_is_no_list_fails_its_stage(items: str) -> None:
    told = Told([collection("each", items)])
    assert told.terminal == ["each:step.failed"]


def test_the_result_of_a_cursor_loop_is_its_counts_and_first_failures() -> None:
    told = Told([cursor("drain")])
    stage = told.stage("drain").stage_id
    told.facts.failed[stage] = [{"index": index, "error": {"kind": "bad"}} for index in range(30)]
    for _ in range(2):
        told.filled("drain")
        told.frame("drain", ok=10, failed=15)
    told.empty("drain", sole=True)
    result = told.result("drain")
    assert len(result.pop("failures")) == 20
    assert result == {"processed": 50, "ok": 20, "failed": 30, "frames": 2}
    (closing,) = told.last.closings
    assert (closing.ok, closing.failed, closing.frames) == (20, 30, 2)


def test_the_result_of_a_collection_keeps_the_order_of_its_items() -> None:
    told = Told([collection("each", [1, 2])])
    told.facts.collections[told.stage("each").stage_id] = ["a", "b"]
    told.frame("each", ok=2)
    expected = {"results": ["a", "b"], "data": ["a", "b"], "count": 2, "stats": {"total": 2, "ok": 2, "failed": 0}}
    assert told.result("each") == expected


def test_the_result_of_an_empty_collection() -> None:
    told = Told([collection("each", [])])
    assert told.result("each") == {"results": [], "data": [], "count": 0, "stats": {"total": 0, "ok": 0, "failed": 0}}


def test_what_rows_wrote_to_ctx_is_merged_in_their_order_when_their_frame_is_told() -> None:
    told = Told([collection("each", [1, 2, 3], pace={"mode": "parallel"})])
    told.facts.ctx[9] = [{"last": 0, "first": 0}, {"last": 1}, {"last": 2, "third": True}]
    told.frame("each", ok=3, frame=9, ctx=True)
    assert told.state.ctx == {"last": 2, "first": 0, "third": True}
    assert told.last.ctx_changed
