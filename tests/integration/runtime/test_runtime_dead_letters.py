"""``dead_letter``: once for each row that failed for good, also for one that its workers died over."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from cases import CLAIM
from families import nothing_left, playbook
from services import make_settings
from tickets import crash
from world import World

from noetl_celery.errors import ErrorInfo, ToolError
from noetl_celery.runtime.row import RowRunner
from noetl_celery.settings import Settings

pytestmark = pytest.mark.integration

BURY = "INSERT INTO public.dead VALUES ({{ iter.item.id }}, '{{ error.kind }}', '{{ error.message }}')"


@pytest.fixture
def settings(database: str) -> Settings:
    return make_settings(database, max_crashes=2)


@pytest.fixture
def queue(here: World) -> World:
    here.q(
        "CREATE TABLE public.dead (id int REFERENCES public.work DEFERRABLE INITIALLY DEFERRED, kind text, said text)"
    )
    return here


def loop(statement: str = BURY, *, spec: str = "", tool: dict[str, Any] | None = None, aggregate: str = "{}") -> str:
    task = {"kind": "probe", "input": {"id": "{{ iter.item.id }}"}} | (tool or {})
    return playbook(
        "test/dead",
        f"""
  - step: start
    loop:
      cursor: {{kind: postgres, auth: src, claim: {json.dumps(CLAIM)}, dead_letter: {json.dumps(statement)}}}
      iterator: item
      aggregate: {aggregate}
      spec: {{frame: {{max_rows: 10, row_concurrency: 4}}{spec}}}
    tool: {json.dumps(task)}
    next: []
""",
    )


def odd_rows_fail(given: Any) -> str:
    if given["id"] % 2:
        raise ToolError(ErrorInfo("odd", f"{given['id']} is odd"))
    return "even"


def dead(world: World) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in world.q("SELECT * FROM public.dead ORDER BY id")]


def failures(world: World, execution: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.steps(execution)["start"]["result"]["failures"]
    return found


def test_each_failed_row_comes_there_once(queue: World) -> None:
    queue.probe.act = odd_rows_fail
    execution = queue.begin(loop())
    assert queue.run(execution) == "COMPLETED"
    assert dead(queue) == [(number, "odd", f"{number} is odd") for number in (1, 3, 5, 7)]
    result = queue.steps(execution)["start"]["result"]
    assert (result["ok"], result["failed"]) == (3, 4), "it still failed"
    assert "dead_letter" not in failures(queue, execution)[0]["error"]
    nothing_left(queue)


def test_a_row_that_is_tried_again_comes_there_after_the_last_attempt(queue: World) -> None:
    queue.probe.act = odd_rows_fail
    rules = [{"when": "{{ output.status == 'error' }}", "then": {"do": "retry", "attempts": 3, "delay": 0}}]
    execution = queue.begin(loop(tool={"spec": {"policy": {"rules": rules}}}))
    assert queue.run(execution) == "COMPLETED"
    assert len(queue.probe.calls) == 3 + 4 * 3
    assert [row[0] for row in dead(queue)] == [1, 3, 5, 7]


def test_a_row_whose_aggregate_cannot_be_used_says_why(queue: World) -> None:
    queue.probe.act = lambda given: "many" if given["id"] == 3 else given["id"]
    execution = queue.begin(
        loop(
            BURY.replace("'{{ error.message }}'", "$${{ error.message }}$$"),
            aggregate='{total: {sum: "{{ output.data }}"}}',
        )
    )
    assert queue.run(execution) == "COMPLETED"
    said = "loop.aggregate `total`: `sum` needs a number, not 'many'"
    assert dead(queue) == [(3, "aggregate", said)]
    (failure,) = failures(queue, execution)
    assert (failure["error"]["kind"], failure["error"]["message"]) == ("aggregate", said)
    assert queue.steps(execution)["start"]["result"]["aggregate"] == {"total": 25}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("INSERT INTO public.daed VALUES (1)", 'relation "public.daed" does not exist'),
        ("INSERT INTO public.dead VALUES (1000 + {{ iter.item.id }})", "violates foreign key constraint"),
        ("INSERT INTO public.dead VALUES ({{ iter.item.nothing }})", "nothing"),
    ],
    ids=["the statement", "its commit", "its template"],
)
def test_a_statement_that_fails_is_told_with_the_rows_own_error(
    queue: World, caplog: pytest.LogCaptureFixture, statement: str, said: str
) -> None:
    queue.probe.act = lambda given: odd_rows_fail(given) if given["id"] < 2 else None
    with caplog.at_level(logging.WARNING):
        execution = queue.begin(loop(statement))
        assert queue.run(execution) == "COMPLETED"
    (failure,) = failures(queue, execution)
    assert failure["error"]["kind"] == "odd"
    assert said in failure["error"]["dead_letter"]
    assert "step start: the dead letter of a row was not written" in caplog.text


def test_a_row_that_failed_for_a_bug_of_ours_comes_there(queue: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = RowRunner._reduced

    def broken(self: RowRunner, pipeline: Any) -> Any:
        if pipeline.position.iter["item"]["id"] == 3:
            raise KeyError("nothing of the kind")
        return real(self, pipeline)

    monkeypatch.setattr(RowRunner, "_reduced", broken)
    execution = queue.begin(loop(BURY.replace("'{{ error.message }}'", "$${{ error.message }}$$")))
    assert queue.run(execution) == "COMPLETED"
    assert dead(queue) == [(3, "internal", "KeyError: 'nothing of the kind'")]
    assert queue.steps(execution)["start"]["result"]["failed"] == 1


def test_a_row_that_workers_died_over_comes_there_without_another_try(queue: World) -> None:
    queue.q("DELETE FROM public.work WHERE id > 1")
    execution = queue.begin(loop())
    queue.claim(queue.publisher.claims()[0])
    crash(queue)
    crash(queue)
    assert queue.settle(execution) == "COMPLETED"
    assert queue.probe.calls == [], "its tasks are not run a third time"
    ((number, kind, said),) = dead(queue)
    assert (number, kind) == (1, "worker_lost")
    assert "died 2 times" in said
    (failure,) = failures(queue, execution)
    assert failure["error"]["kind"] == "worker_lost"
    nothing_left(queue)


def test_a_dead_letter_that_kills_its_worker_too_fails_the_row_without(queue: World) -> None:
    queue.q("DELETE FROM public.work WHERE id > 1")
    execution = queue.begin(loop())
    queue.claim(queue.publisher.claims()[0])
    for _ in range(3):
        crash(queue)
    assert queue.settle(execution) == "COMPLETED"
    assert dead(queue) == []
    (failure,) = failures(queue, execution)
    assert failure["error"]["kind"] == "worker_lost"
    nothing_left(queue)
