"""Claims at bad moments: COMMITs without a reply, runs that stand still at the source, errors of all kinds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from cases import CLAIM, cursor, states
from services import Server, credential_of
from tickets import Arm, claim_ids, frames_of, seen, ticket
from world import World, in_thread, wait_for

from noetl_celery import faults
from noetl_celery.cursors.base import ClaimRequest
from noetl_celery.cursors.postgres import PostgresCursor
from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.runtime import claim as claim_module

pytestmark = pytest.mark.integration

#: makes the COMMIT of a claim fail, as long as the table `angry` has a row
AT_COMMIT = """
CREATE TABLE public.angry (why text);
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    IF EXISTS (SELECT FROM public.angry) THEN RAISE EXCEPTION 'not on a Sunday' USING ERRCODE = '23514'; END IF;
    RETURN NULL;
  END $$;
CREATE CONSTRAINT TRIGGER refused AFTER UPDATE ON public.work DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION public.refuse();
INSERT INTO public.angry VALUES ('today');
"""


def do(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


def place_of(request: pytest.FixtureRequest, place: str, world: World) -> str:
    """The source, by its name, and where it is."""
    request.getfixturevalue(place)
    return str(world.settings.libpq_url if place == "here" else request.getfixturevalue("empty_database"))


def die(world: World, crash_at: Arm, point: str, claim: int) -> None:
    crash_at(point)
    with pytest.raises(faults.FaultInjected):
        world.claim(claim)


@contextmanager
def standing_still(world: World, monkeypatch: pytest.MonkeyPatch, point: str) -> Iterator[Callable[[], None]]:
    """A claim is held at a fault point, in a thread, until what this yields is called; its run is taken from it."""
    reached, go_on = threading.Event(), threading.Event()
    first = threading.get_ident()

    def pause(name: str) -> None:
        if name == point and threading.get_ident() != first and not reached.is_set():
            reached.set()
            assert go_on.wait(20)

    monkeypatch.setattr(claim_module.faults, "reached", pause)
    with in_thread(world.claim, world.publisher.claims()[0]):
        try:
            assert reached.wait(20)
            world.q("DELETE FROM noetl.run")
            yield go_on.set
        finally:
            go_on.set()


# what others see of a claim that has not been settled


def test_rows_that_a_dead_claim_never_got_go_to_another_ticket(world: World, source: str, crash_at: Arm) -> None:
    """Its transaction was undone, and the next ticket takes the same rows before anybody has asked the source."""
    execution = world.begin(cursor(spec="max_in_flight: 3", frame="max_rows: 2"))
    world.claim(world.publisher.claims()[0])
    world.orchestrate(execution)
    first, second = claim_ids(world)[1:]
    die(world, crash_at, "claim.recorded", first)
    world.claim(second)
    assert [frame["status"] for frame in frames_of(world)] == ["RUNNING", "TENTATIVE", "RUNNING"]
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_they_go_to_another_ticket_where_the_cursor_takes_stale_rows_back_too(
    world: World, source: str, crash_at: Arm
) -> None:
    playbook = cursor(spec="max_in_flight: 3", frame="max_rows: 2")
    stale = "UPDATE public.work SET state = 'open' WHERE state = 'stale'"
    playbook = playbook.replace("kind: postgres,", f"kind: postgres, reclaim: {json.dumps(stale)},")
    execution = world.begin(playbook)
    world.claim(world.publisher.claims()[0])
    world.orchestrate(execution)
    first, second = claim_ids(world)[1:]
    die(world, crash_at, "claim.recorded", first)
    world.claim(second)
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_a_ticket_opened_again_waits_for_what_its_first_run_has_locked(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run stands still with rows locked and nothing recorded: a claim that skips them would find nothing, and
    end the loop."""
    execution = world.begin(cursor(frame="max_rows: 7"))
    with standing_still(world, monkeypatch, "claim.claimed") as go_on:
        world.sweep()
        assert ticket(world)["status"] == "OPEN"
        other = world.another_process()
        with in_thread(world.claim, ticket(world)["claim_id"], other):
            wait_for(lambda: waits_at_the_source(source), "the second run waits")
            go_on()
        other.close()
    monkeypatch.undo()
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]
    assert states(source) == {"claimed": 7}


def waits_at_the_source(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0])  # type: ignore[index]


def test_a_run_that_stands_still_is_undone_at_the_source_when_its_lease_is_over(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`in progress: wait` has an end, without anybody's doing."""
    world.process.settings = world.settings.model_copy(update={"lease_seconds": 1.0})
    execution = world.begin(cursor(frame="max_rows: 7"))
    with standing_still(world, monkeypatch, "claim.recorded"):
        world.sweep()
        assert ticket(world)["status"] == "TAKEN"
        wait_for(lambda: world.sweep() or ticket(world)["status"] == "OPEN", "the source gives it up")
        assert states(source) == {"open": 7}
    monkeypatch.undo()
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_nothing_of_a_claim_stays_in_its_session(source: str) -> None:
    """A pooler may hand the session to anybody else."""
    request = ClaimRequest(
        CLAIM.replace("{{ __frame_max_rows }}", "2"),
        {},
        credential_of(source),
        timeout_seconds=7,
        ticket=4711,
        lease_seconds=3,
    )
    found: list[Any] = []

    def look(rows: Any, where: Mapping[str, Any]) -> None:
        with psycopg.connect(source) as other:
            found.extend(other.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory'").fetchall())

    assert len(PostgresCursor().claim(request, look).rows) == 2
    (pid,) = found[0]
    from noetl_celery.tools import pg

    with pg.connection(credential_of(source)) as session:
        assert session.info.backend_pid == pid
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        values = [session.execute(f"SHOW {name}").fetchone() for name in names]
        assert values == [("0",), ("10min",)]
        assert session.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_two_sweeps_at_once_settle_a_claim_once(
    world: World, source: str, crash_at: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.begin(cursor())
    die(world, crash_at, "claim.source_committed", world.publisher.claims()[0])
    world.q("DELETE FROM noetl.run")
    gate, real = threading.Barrier(2), PostgresCursor.settle

    def together(self: PostgresCursor, *args: Any) -> Any:
        verdict = real(self, *args)
        gate.wait(10)
        return verdict

    monkeypatch.setattr(PostgresCursor, "settle", together)
    other = world.another_process()
    with in_thread(world.sweep, other):
        from noetl_celery.runtime.settle import settle_claims

        settle_claims(world.process, world.publisher)  # type: ignore[arg-type]
    other.close()
    monkeypatch.undo()
    assert [frame["status"] for frame in frames_of(world)] == ["RUNNING"]
    assert world.events(execution).count("frame.claimed") == 1
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


# COMMITs


@pytest.mark.parametrize("place", ["here", "source"])
def test_an_error_at_the_commit_fails_the_stage_and_says_why(
    place: str, request: pytest.FixtureRequest, world: World
) -> None:
    url = place_of(request, place, world)
    do(url, AT_COMMIT)
    execution = world.begin(cursor())
    assert world.run(execution) == "FAILED"
    error = world.value("SELECT error FROM noetl.execution")
    assert (error["step"], error["kind"]) == ("start", "constraint")
    assert "not on a Sunday" in error["message"]
    assert states(url) == {"open": 7}
    assert frames_of(world) == []


def broken_at_commit(
    monkeypatch: pytest.MonkeyPatch, *, committed: bool, also: Callable[[], None] | None = None
) -> None:
    """The connection breaks while the source commits: its COMMIT was done, or is undone."""
    real = PostgresCursor.claim

    def claim(self: PostgresCursor, request: Any, record: Any) -> Any:
        def breaking(rows: Any, where: Any) -> None:
            record(rows, where)
            if not committed:
                raise psycopg.OperationalError("server closed the connection unexpectedly")

        real(self, request, breaking)
        if also is not None:
            also()
        raise ToolError(ErrorInfo("connection", "server closed the connection unexpectedly", retryable=True))

    monkeypatch.setattr(PostgresCursor, "claim", claim)


def test_a_commit_without_a_reply_is_asked_about_at_once(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.begin(cursor())
    with monkeypatch.context() as patched:
        broken_at_commit(patched, committed=True)
        world.claim(world.publisher.claims()[0])
    assert ticket(world)["status"] == "FILLED"
    assert world.q("SELECT * FROM noetl.run") == []
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_a_commit_that_was_undone_is_a_failed_attempt(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.begin(cursor())
    with monkeypatch.context() as patched:
        broken_at_commit(patched, committed=False)
        world.claim(world.publisher.claims()[0])
    assert (ticket(world)["status"], ticket(world)["attempts"]) == ("OPEN", 1)
    assert frames_of(world) == []
    assert world.events(execution).count("claim.retry") == 1
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_one_that_cannot_be_asked_about_yet_is_left_to_the_sweep_at_once(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a lease that a living process holds and does not need."""
    execution = world.begin(cursor())

    def away(*_: Any) -> Any:
        raise ToolError(ErrorInfo("connection", "the source is away", retryable=True))

    with monkeypatch.context() as patched:
        broken_at_commit(patched, committed=True)
        patched.setattr(PostgresCursor, "settle", away)
        world.claim(world.publisher.claims()[0])
        assert (ticket(world)["status"], world.q("SELECT * FROM noetl.run")) == ("TAKEN", [])
        world.sweep()
        assert ticket(world)["status"] == "TAKEN"
    world.sweep()
    assert ticket(world)["status"] == "FILLED"
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_the_last_attempt_forgets_nothing_that_was_committed(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.begin(cursor())
    world.q("UPDATE noetl.claim SET attempts = %s", claim_module.ATTEMPTS - 1)
    with monkeypatch.context() as patched:
        broken_at_commit(patched, committed=True)
        world.claim(world.publisher.claims()[0])
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_one_that_is_never_answered_does_not_go_on_for_ever(
    world: World, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = world.begin(cursor())
    real, asked = PostgresCursor.settle, [0]

    def away_at_first(self: PostgresCursor, *args: Any) -> Any:
        asked[0] += 1
        if asked[0] % 2:
            raise ToolError(ErrorInfo("connection", "the source is away", retryable=True))
        return real(self, *args)

    broken_at_commit(monkeypatch, committed=False)
    monkeypatch.setattr(PostgresCursor, "settle", away_at_first)
    assert world.settle(execution) == "FAILED"
    assert "connection" in json.dumps(world.value("SELECT error FROM noetl.execution"))
    assert states(source) == {"open": 7}


# sources that are gone


def test_a_source_that_was_dropped_fails_the_stage_and_says_so(
    world: World, source: str, postgres: Server, crash_at: Arm
) -> None:
    execution = world.begin(cursor())
    die(world, crash_at, "claim.source_committed", world.publisher.claims()[0])
    name = source.partition("?")[0].rpartition("/")[2]
    world.process.tools.close()
    postgres.drop(name)
    assert world.settle(execution) == "FAILED"
    assert "claim.unknown" in world.events(execution)
    assert name in world.value("SELECT error FROM noetl.execution")["message"]


def test_one_that_was_dropped_and_restored_is_not_believed(
    world: World, source: str, postgres: Server, crash_at: Arm
) -> None:
    """Its transactions are those of the server, but what they wrote is gone."""
    from cases import fill

    execution = world.begin(cursor())
    die(world, crash_at, "claim.source_committed", world.publisher.claims()[0])
    name = source.partition("?")[0].rpartition("/")[2]
    postgres.drop(name)
    postgres.execute(f"CREATE DATABASE {name}")
    fill(source, 7)
    world.sweep()
    assert "claim.unknown" in world.events(execution)
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]


def test_a_standby_is_not_asked(source: str) -> None:
    """It may not have heard of the transaction yet."""
    do(source, "CREATE FUNCTION public.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT true'")
    standby = credential_of(source) | {"search_path": "public,pg_catalog"}
    with pytest.raises(ToolError, match="standby") as caught:
        PostgresCursor().settle({"database": "any", "system": "any", "xid": "3"}, standby)
    assert caught.value.info.retryable


def test_a_cancelled_execution_does_not_wait_for_a_source_that_cannot_be_asked(
    world: World, source: str, crash_at: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noetl_celery.store import signals

    execution = world.begin(cursor())
    die(world, crash_at, "claim.source_committed", world.publisher.claims()[0])

    def away(*_: Any) -> Any:
        raise ToolError(ErrorInfo("connection", "the source is away", retryable=True))

    monkeypatch.setattr(PostgresCursor, "settle", away)
    world.do(signals.add, execution, "cancel", republish_seconds=30.0)
    world.orchestrate(execution)
    assert world.settle(execution) == "CANCELLED"
    assert "claim.unknown" in world.events(execution)


# errors of other kinds


@pytest.mark.parametrize("place", ["here", "source"])
def test_a_bug_of_a_driver_fails_the_stage(
    place: str, request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_of(request, place, world)
    execution = world.begin(cursor())

    def broken(*_: Any) -> Any:
        raise KeyError("nothing of the kind")

    monkeypatch.setattr(PostgresCursor, "claim", broken)
    assert world.run(execution) == "FAILED"
    error = world.value("SELECT error FROM noetl.execution")
    assert error["kind"] == "internal"
    assert "KeyError" in error["message"]


# tokens, names


@pytest.mark.parametrize("place", ["here", "source"])
def test_each_attempt_has_a_token_of_its_own_which_its_bodies_see(
    place: str, request: pytest.FixtureRequest, world: World, crash_at: Arm
) -> None:
    url = place_of(request, place, world)
    do(url, "ALTER TABLE public.work ADD COLUMN token text")
    do(url, "CREATE TABLE public.tokens (token text)")
    claim = CLAIM.replace("claims = claims + 1", "claims = claims + 1, token = '{{ __claim_token }}'")
    claim = claim.replace("RETURNING id, note", "RETURNING id, note, token, %(__claim_token)s AS bound")
    execution = world.begin(cursor(claim, input={"item": "{{ iter.item }}", "token": "{{ __claim_token }}"}))
    die(world, crash_at, "claim.claimed", world.publisher.claims()[0])
    # What that attempt has drawn is nobody else's; what it did was undone, so look at what the next ones do.
    (claimed,) = [world.publisher.claims()[0]]
    world.claim(claimed)
    assert world.settle(execution) == "COMPLETED"
    calls = world.probe.calls
    assert all(str(call["token"]) == call["item"]["token"] == call["item"]["bound"] for call in calls)
    assert len({call["token"] for call in calls}) == 3
    assert not {str(call["token"]) for call in calls} & {str(claim) for claim in claim_ids(world)}


def test_an_attempt_that_died_has_another_token_than_the_next(world: World, source: str, crash_at: Arm) -> None:
    drawn: list[str] = []
    real = PostgresCursor.claim

    def noting(self: PostgresCursor, request: Any, record: Any) -> Any:
        drawn.append(request.bindings["__claim_token"])
        return real(self, request, record)

    world.begin(cursor())
    (claim,) = world.publisher.claims()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PostgresCursor, "claim", noting)
        die(world, crash_at, "claim.recorded", claim)
        world.q("DELETE FROM noetl.run")
        world.sweep()
        world.claim(claim)
    assert len(drawn) == len(set(drawn)) == 2
    assert world.column("SELECT token::text FROM noetl.frame") == drawn[1:]


@pytest.mark.parametrize("place", ["here", "source"])
def test_reclaim_and_count_see_the_keychain_and_all_is_rendered_once(
    place: str, request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noetl_celery.runtime import sources

    url = place_of(request, place, world)
    do(url, "UPDATE public.work SET state = 'stale' WHERE id > 5")
    world.credential("names", {"old": "stale", "new": "open"})
    stale = "UPDATE public.work SET state = '{{ keychain.names.new }}' WHERE state = '{{ keychain.names.old }}'"
    count = "SELECT count(*) FROM public.work WHERE state <> '{{ keychain.names.old }}'"
    keys = f"kind: postgres, reclaim: {json.dumps(stale)}, count: {json.dumps(count)},"
    playbook = cursor(frame="max_rows: 7").replace("kind: postgres,", keys, 1)
    playbook = playbook.replace("workflow:", "keychain: [{name: names, credential: names}]\nworkflow:")
    real, rendered = sources.source_of, [0]

    def counting(*args: Any) -> Any:
        rendered[0] += 1
        return real(*args)

    monkeypatch.setattr(claim_module, "source_of", counting)
    execution = world.begin(playbook)
    world.claim(world.publisher.claims()[0])
    assert rendered == [1]
    assert world.settle(execution) == "COMPLETED"
    assert seen(world) == [1, 2, 3, 4, 5, 6, 7]
    assert world.value("SELECT total FROM noetl.stage") == 7
