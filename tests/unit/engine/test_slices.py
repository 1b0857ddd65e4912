"""A loop over a list that is kept elsewhere: frames are cut from it one after the other, and it is never loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from engine_cases import Told, collection, noop

from noetl_celery.engine import loops
from noetl_celery.engine.decision import Decision, Slice
from noetl_celery.template.lazy import LazyMapping, LazySequence, Part, Path

SOURCE = {"id": "7"}


class Unread:
    """A kept list that nobody may read."""

    def part(self, path: Path) -> Part | None:
        raise AssertionError(f"{path} was read")

    def keys(self, path: Path) -> Sequence[str]:
        raise AssertionError(f"the keys of {path} were read")

    def entries(self, path: Path, start: int, stop: int) -> Sequence[tuple[str, Any]]:
        raise AssertionError(f"{path} was read")

    def elements(self, path: Path, start: int, stop: int) -> Sequence[Any]:
        raise AssertionError(f"{path} was read")

    def whole(self, path: Path, stretch: range | None = None) -> Any:
        raise AssertionError(f"all of {path} was read")

    def place(self) -> Mapping[str, Any]:
        return SOURCE

    def reference(self, path: Path, part: Part, first: int | None = None) -> Mapping[str, Any]:
        return {**SOURCE, "length": part.length, "first": first}


def looping(over: Any, items: str = "{{ start }}", **keys: Any) -> Told:
    """An execution that has just entered its loop ``each`` over the result of ``start``."""
    pace = {"mode": "parallel", "max_in_flight": 3}
    told = Told([noop("start", "each"), collection("each", items, pace=pace, **keys)])
    told.row("start", over)
    return told


def done(told: Told, cut: Slice, *, failed: int = 0) -> Decision:
    return told.frame("each", ok=cut.rows - failed, failed=failed, ctx=False)


@pytest.fixture(autouse=True)
def _short_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FRAME_ROWS", 10)


def test_one_frame_after_the_other_until_all_is_cut() -> None:
    told = looping(LazySequence(Unread(), (), 25, 5))
    (opening,) = told.last.openings
    assert (opening.step, opening.kind, opening.items) == ("each", "collection", None)
    seen = []
    while told.last.slices:
        (cut,) = told.last.slices
        seen.append((cut.index, cut.start, cut.rows))
        assert cut.source == {**SOURCE, "length": 25, "first": None}
        assert cut.settings.row_concurrency == 3
        told.facts.collections[cut.stage_id] = ["r"] * 25
        done(told, cut)
    assert seen == [(0, 0, 10), (1, 10, 10), (2, 20, 5)]
    (closing,) = told.last.closings
    assert (closing.status, closing.result["count"], closing.ok, closing.frames) == ("COMPLETED", 25, 25, 3)
    assert told.state.status == "COMPLETED"


def test_a_stretch_of_a_list_names_where_it_begins() -> None:
    told = looping(LazySequence(Unread(), ("rows",), 40, 5), "{{ start[5:17] }}")
    assert [(cut.start, cut.rows, cut.source["first"]) for cut in told.last.slices] == [(0, 10, 5)]
    (cut,) = done(told, told.last.slices[0]).slices
    assert (cut.start, cut.rows, cut.source["length"]) == (10, 2, 12)


def test_fail_fast_cuts_no_further_frame() -> None:
    told = looping(LazySequence(Unread(), (), 25, 5))
    stage = told.last.slices[0].stage_id
    told.facts.failed[stage] = [{"index": 3, "item": 1, "error": {"kind": "bad", "message": "no"}}]
    decision = done(told, told.last.slices[0], failed=1)
    assert decision.slices == []
    assert [closing.status for closing in decision.closings] == ["FAILED"]
    assert told.state.error is not None
    assert told.state.error["kind"] == "bad"


def test_best_effort_goes_on_after_a_failure() -> None:
    told = looping(LazySequence(Unread(), (), 25, 5), spec={"policy": {"failure": {"mode": "best_effort"}}})
    assert len(done(told, told.last.slices[0], failed=10).slices) == 1


def test_a_pause_cuts_nothing_and_resuming_goes_on() -> None:
    told = looping(LazySequence(Unread(), (), 25, 5))
    first = told.last.slices[0]
    told.tell("pause")
    assert done(told, first).slices == []
    assert told.state.status == "PAUSED"
    assert [cut.start for cut in told.tell("resume").slices] == [10]


def test_a_cancel_ends_the_loop_after_its_frame() -> None:
    told = looping(LazySequence(Unread(), (), 25, 5))
    first = told.last.slices[0]
    told.tell("cancel")
    assert done(told, first).slices == []
    assert told.state.status == "CANCELLED"


def test_an_empty_list_is_done_at_once() -> None:
    told = looping(LazySequence(Unread(), (), 0, 5))
    assert told.last.slices == []
    assert told.last.closings[-1].result == {
        "results": [],
        "data": [],
        "count": 0,
        "stats": {"total": 0, "ok": 0, "failed": 0},
    }


def test_a_mapping_is_no_list_and_is_not_read_for_that() -> None:
    told = looping(LazyMapping(Unread(), (), 5, 5))
    assert told.state.error is not None
    assert told.state.error["message"] == "loop.in must be a list, not dict"
