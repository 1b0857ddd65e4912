"""Claims: in our own database in one transaction, elsewhere with a tentative frame that a crash leaves to the sweep."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from cases import CLAIM, cursor, fill, states
from services import Server, credential_of
from tickets import Arm, claim_ids, frames_of, seen, ticket
from world import World, in_thread

from noetl_celery import faults
from noetl_celery.cursors.postgres import PostgresCursor
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.ids import new_id
from noetl_celery.runtime import claim as claim_module
from noetl_celery.store import signals

pytestmark = pytest.mark.integration


# the ordinary way


@pytest.mark.parametrize("place", ["here", "source"])
def test_a_source_is_drained_and_each_row_worked_once(place: str, request: pytest.FixtureRequest, world: World) -> None:
    request.getfixturevalue(place)
    url = world.settings.libpq_url if place == "here" else request.getfixturevalue("empty_database")
    execution = world.begin(cursor(spec="max_in_flight: 2"))
    assert world.run(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]
    assert states(url) == {"claimed": 7}
    result = world.steps(execution)["start"]["result"]
    assert (result["processed"], result["ok"], result["frames"]) == (7, 7, 3)
    for table in ("run", "outbox", "signal"):
        assert world.q(f"SELECT * FROM noetl.{table}") == []


def test_own_database_is_one_transaction(here: World, crash_at: Arm) -> None:
    here.begin(cursor())
    (claim,) = here.publisher.claims()
    before = here.everything()
    crash_at("claim.claimed")
    with pytest.raises(faults.FaultInjected):
        here.claim(claim)
    assert here.everything() == before
    assert states(here.settings.libpq_url) == {"open": 7}
    here.claim(claim)
    assert [(frame["status"], frame["source"]) for frame in frames_of(here)] == [("RUNNING", None)]
    before = here.everything()
    here.claim(claim)
    here.claim(12345)
    assert here.everything() == before


def test_a_claim_is_planned_as_usual_and_our_statements_as_ours(here: World) -> None:
    settings = "current_setting('enable_seqscan') AS seqscan, current_setting('plan_cache_mode') AS plans"
    here.begin(cursor(CLAIM.replace("RETURNING id", f"RETURNING id, {settings}")))
    (claim,) = here.publisher.claims()
    here.claim(claim)
    payload = here.value("SELECT payload FROM noetl.row LIMIT 1")
    assert (payload["seqscan"], payload["plans"]) == ("on", "auto")
    ours = here.do(lambda connection: connection.execute(f"SELECT {settings}").fetchone())
    assert ours == ("off", "force_generic_plan")


@pytest.mark.parametrize("place", ["here", "source"])
def test_two_deliveries_at_once_answer_a_ticket_once(place: str, request: pytest.FixtureRequest, world: World) -> None:
    request.getfixturevalue(place)
    world.begin(cursor())
    (claim,) = world.publisher.claims()
    other = world.another_process()
    gate = threading.Barrier(2)

    def deliver(process: Any) -> None:
        gate.wait(5)
        world.claim(claim, process)

    with in_thread(deliver, other):
        deliver(world.process)
    other.db.close()
    assert [frame["rows"] for frame in frames_of(world)] == [3]
    assert ticket(world)["status"] == "FILLED"
    assert world.value("SELECT count(*) FROM noetl.run") == 0


def test_an_empty_claim_leaves_no_frame_and_says_so(world: World, database: str) -> None:
    world.credential("src", credential_of(database))
    fill(database, 0)
    execution = world.begin(cursor())
    world.claim(world.publisher.claims()[0])
    assert frames_of(world) == []
    assert ticket(world)["status"] == "EMPTY"
    assert world.column("SELECT data -> 'sole' FROM noetl.signal") == [True]
    assert world.run(execution) == "COMPLETED"


# other roles


def test_a_role_without_any_privilege_can_claim_elsewhere(
    world: World, postgres: Server, database: str, crash_at: Arm
) -> None:
    """Same database, another role: a transaction of its own, and the role may ask what became of it."""
    fill(database, 7)
    role = f"claimer_{new_id()}"
    world.q(f"CREATE ROLE {role} LOGIN PASSWORD 'x' NOSUPERUSER")
    try:
        world.q(f"GRANT SELECT, UPDATE ON public.work TO {role}")
        world.credential("src", credential_of(database, db_user=role, db_password="x"))
        execution = world.begin(cursor())
        crash_at("claim.source_committed")
        with pytest.raises(faults.FaultInjected):
            world.claim(world.publisher.claims()[0])
        assert world.settle(execution) == "COMPLETED"
        assert seen(world) == [1, 2, 3, 4, 5, 6, 7]
    finally:
        world.process.tools.close()
        world.q(f"DROP OWNED BY {role}")
        world.q(f"DROP ROLE {role}")


# errors


def test_a_syntax_error_fails_the_stage_and_shows_the_line(here: World) -> None:
    execution = here.begin(cursor("SELECT id\nFROM public.work\nWHERE stat = 'open'"))
    assert here.run(execution) == "FAILED"
    error = here.value("SELECT error FROM noetl.execution")
    assert error["step"] == "start"
    assert "claim:" in error["message"]
    assert "stat" in error["message"]
    assert "line 3" in error["message"]
    assert "WHERE stat = 'open'" in error["message"]
    assert ticket(here)["status"] == "FAILED"


@pytest.mark.parametrize("place", ["here", "source"])
def test_a_passing_error_opens_the_ticket_again_later_and_later(
    place: str, request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(place)
    execution = world.begin(cursor())
    (claim,) = world.publisher.claims()

    def fail(*_: Any) -> Any:
        raise ToolError(ErrorInfo("deadlock", "deadlock detected", code="40P01", retryable=True))

    with monkeypatch.context() as patched:
        patched.setattr(PostgresCursor, "claim", fail)
        for attempt in range(1, 4):
            world.claim(claim)
            assert (ticket(world)["status"], ticket(world)["attempts"]) == ("OPEN", attempt)
            wait = world.value("SELECT extract(epoch FROM publish_at - clock_timestamp())::float FROM noetl.outbox")
            expected = 0.5 * 2 ** (attempt - 1)
            assert expected - 0.45 < wait <= expected
            assert world.value("SELECT count(*) FROM noetl.run") == 0
    assert world.settle(execution) == "COMPLETED"


def test_a_passing_error_does_not_pass_for_ever(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = here.begin(cursor())
    (claim,) = here.publisher.claims()

    def fail(*_: Any) -> Any:
        raise ToolError(ErrorInfo("connection", "no route to host", retryable=True))

    monkeypatch.setattr(PostgresCursor, "claim", fail)
    for _ in range(claim_module.ATTEMPTS):
        here.claim(claim)
    assert ticket(here)["status"] == "FAILED"
    assert here.run(execution) == "FAILED"
    assert "no route to host" in here.value("SELECT error FROM noetl.execution")["message"]


@pytest.mark.parametrize("max_bytes", ["", ", max_bytes: 10"])
def test_a_claim_that_changes_nothing_ends(here: World, max_bytes: str) -> None:
    execution = here.begin(cursor("SELECT id FROM public.work ORDER BY id LIMIT 3", frame=f"max_rows: 3{max_bytes}"))
    assert here.run(execution, messages=200) == "FAILED"
    error = here.value("SELECT error FROM noetl.execution")
    assert error["kind"] == "endless_claim"
    assert "3 claims in a row" in error["message"]
    assert len(here.probe.calls) == 6


def test_a_row_of_an_open_frame_is_noticed_at_once(here: World) -> None:
    here.begin(cursor("SELECT id FROM public.work ORDER BY id LIMIT 3", spec="max_in_flight: 2"))
    first, second = here.publisher.claims() if len(here.publisher.claims()) == 2 else (claim_ids(here)[0], None)
    here.claim(first)
    if second is None:
        here.orchestrate(here.value("SELECT execution_id FROM noetl.execution"))
        second = claim_ids(here)[-1]
    here.claim(second)
    assert ticket(here)["status"] == "FAILED"
    error = here.value("SELECT data -> 'error' FROM noetl.signal WHERE type = 'claim.failed'")
    assert error["kind"] == "endless_claim"
    assert "another open frame" in error["message"]


def test_claimed_text_of_any_kind_reaches_its_row(here: World) -> None:
    """A ``json`` column keeps NUL characters and half surrogate pairs; such a row hangs nothing."""
    here.q(r"""UPDATE public.work SET note = '"a\u0000b"' WHERE id = 2""")
    here.q(r"""UPDATE public.work SET note = '"a\ud800b"' WHERE id = 3""")
    execution = here.begin(cursor())
    assert here.run(execution) == "COMPLETED"
    notes = {call["item"]["id"]: call["item"]["note"] for call in here.probe.calls}
    assert (notes[2], notes[3]) == ("a\0b", "a\ud800b")


# forms of frames


def test_max_bytes_cuts_a_claim_into_frames_that_hold_its_slot_together(here: World) -> None:
    execution = here.begin(cursor(frame="max_rows: 7, max_bytes: 50"))
    here.claim(here.publisher.claims()[0])
    made = frames_of(here)
    assert [frame["slots"] for frame in made] == [1] + [0] * (len(made) - 1)
    assert sum(frame["rows"] for frame in made) == 7
    assert len(made) > 2
    assert here.run(execution) == "COMPLETED"
    assert seen(here) == [1, 2, 3, 4, 5, 6, 7]


def test_the_whole_frame_as_one_row(here: World) -> None:
    execution = here.begin(cursor(frame="max_rows: 3, process: frame"))
    here.claim(here.publisher.claims()[0])
    assert [(frame["rows"], frame["weight"]) for frame in frames_of(here)] == [(1, 3)]
    assert here.run(execution) == "COMPLETED"
    assert [len(call["item"]) for call in here.probe.calls] == [3, 3, 1]
    result = here.steps(execution)["start"]["result"]
    assert (result["processed"], result["ok"], result["frames"]) == (7, 7, 3)


def test_the_oldest_form_claims_one_row_at_a_time_up_to_its_budget(here: World) -> None:
    """``LIMIT 1`` with a large ``max_in_flight`` and no frame: few tickets, few frames, never too many in flight."""
    claim = CLAIM.replace("{{ __frame_max_rows }}", "1")
    execution = here.begin(cursor(claim, frame=None, spec="max_in_flight: 4"))
    assert here.run(execution) == "COMPLETED"
    assert seen(here) == [1, 2, 3, 4, 5, 6, 7]
    assert here.probe.most <= 4
    assert all(frame["rows"] <= 2 for frame in frames_of(here))


def test_a_stage_that_stops_while_its_claim_runs_starts_no_row(world: World, source: str, crash_at: Arm) -> None:
    execution = world.begin(cursor())
    crash_at("claim.source_committed")
    with pytest.raises(faults.FaultInjected):
        world.claim(world.publisher.claims()[0])
    world.do(signals.add, execution, "cancel", republish_seconds=30.0)
    world.orchestrate(execution)
    world.sweep()
    world.orchestrate(execution)  # of the frame that the sweep has confirmed
    assert world.settle(execution) == "CANCELLED"
    assert world.probe.calls == []
    assert world.q("SELECT * FROM noetl.outbox") == []
