"""When a cursor stage claims again, and when its source is known to be empty."""

from __future__ import annotations

from engine_cases import Told, cursor, noop


def test_no_other_claim_goes_out_beside_the_one_that_may_prove_the_source_empty() -> None:
    # given a stage whose first claim is out: nothing of it is open, so its being empty would drain the stage
    told = Told([cursor("drain", flight=2)])
    assert [claim.sole for claim in told.last.claims] == [True]
    # when something else makes the execution decide meanwhile (a second claim could take rows that enqueue more)
    told.tell("pause")
    told.tell("resume")
    # then no further claim goes out until it is answered
    assert told.last.claims == []
    told.filled("drain")
    assert [claim.sole for claim in told.last.claims] == [False]


def test_a_neighbours_signal_issues_no_claim_beside_a_sole_one() -> None:
    told = Told([noop("fork", ["drain", "other"]), cursor("drain", flight=3), noop("other")])
    told.row("fork")
    assert [claim.sole for claim in told.last.claims] == [True]
    told.row("other")
    assert told.last.claims == []
