"""The parts of the Python API that need no service."""

import asyncio
import contextlib
import datetime as dt
import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

import noetl_celery
from noetl_celery import AsyncExecution, AsyncNoetl, Execution, InputError, Noetl, PlaybookInvalid, ServiceError
from noetl_celery import client as module
from noetl_celery.errors import WaitTimeout
from noetl_celery.playbook.workload import deep_merged
from noetl_celery.report import Snapshot, build_report
from noetl_celery.settings import Settings, load
from noetl_celery.store.ledger import Books
from noetl_celery.submission import checked_workload, read_playbook

NOWHERE = "postgresql://nobody:secret@127.0.0.1:1/x"
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: small, path: t/small}
workflow: [{step: start, tool: {kind: noop}}]
"""


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 9}}, {"a": {"b": 9, "c": 2}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    ],
)
def test_deep_merge(base: dict[str, Any], over: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(base)
    assert deep_merged(base, over) == expected
    assert repr(base) == before


def test_threads_that_announce_at_once_share_one_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    both = threading.Barrier(2)

    class Fake:
        def orchestrate(self, execution_id: int, queue: str) -> bool:
            return True

    def make(settings: Settings) -> Fake:
        made.append(settings)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.2)  # nobody else may come here meanwhile
        return Fake()

    monkeypatch.setattr(module, "_publisher", make)
    client = Noetl(database_url=NOWHERE)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(client.announce, [1, 2])) == [True, True]
    assert len(made) == 1


def test_a_workload_becomes_json() -> None:
    assert checked_workload(None) == {}
    given = {"d": dt.date(2026, 1, 2), "n": Decimal("1.5"), "nan": math.nan, "t": (1, 2)}
    assert checked_workload(given) == {"d": "2026-01-02", "n": 1.5, "nan": None, "t": [1, 2]}


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ([1], "not list"),
        ("x", "not str"),
        ({"a": {"b": object()}}, "object"),
        ({"a": ["x\0"]}, "workload.a[0] holds a character"),
        ({"a\ud800": 1}, "holds a character"),
        (endless(), "cannot be written as JSON"),
    ],
)
def test_a_workload_that_is_no_json(workload: Any, says: str) -> None:
    with pytest.raises(InputError, match="workload") as refused:
        checked_workload(workload)
    assert says in str(refused.value)


def test_report() -> None:
    error = {"kind": "python", "message": "boom", "step": "b", "task": "t", "retryable": False}
    row = {"execution_id": 382466699806576640, "status": "FAILED", "error": error}
    steps = [
        {"step_name": "a", "stage_id": 7, "status": "COMPLETED", "result": {"x": [1]}},
        {"step_name": "b", "stage_id": 8, "status": "FAILED", "result": None},
    ]
    counted = {"claimed": 9, "ok": 4, "failed": 1, "released": 0, "parked": 2, "ready": 1, "taken": 1, "reruns": 3}
    counted["retries"] = 6
    books = Books(7, "a", 1, "COMPLETED", **counted, requests=2, starts=2, waiting=0, differences=())
    assert build_report(row, steps, Decimal("1.23456"), [books]) == {  # type: ignore[arg-type]
        "execution_id": "382466699806576640",
        "status": "FAILED",
        "error": {"kind": "python", "message": "boom", "step": "b", "task": "t"},
        "steps": {
            "a": {"status": "COMPLETED", "output": {"x": [1]}, "rows": counted | {"differences": ()}},
            "b": {"status": "FAILED", "output": None, "rows": None},
        },
        "duration_seconds": 1.235,
    }
    assert build_report({**row, "status": "COMPLETED", "error": None}, [], 0)["error"] is None


def test_settings_are_read_and_may_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_DATABASE_URL", "postgresql://a@b/environment")
    monkeypatch.setenv("NOETL_BROKER_URL", "redis://environment:6379/0")
    assert Noetl().settings.database_url == "postgresql://a@b/environment"
    client = Noetl(database_url="postgresql://a@b/given")
    assert client.settings.database_url == "postgresql://a@b/given"
    assert client.settings.broker_url == "redis://environment:6379/0"
    settings = load(database_url="postgresql://a@b/mine", republish_seconds=3)
    assert Noetl(settings).settings is settings
    both = Noetl(settings, broker_url="redis://given:6379/0").settings
    assert (both.database_url, both.broker_url) == ("postgresql://a@b/mine", "redis://given:6379/0")
    assert both.republish_seconds == 3
    with pytest.raises(InputError):
        Noetl(database_url="mysql://x")


def test_no_server_is_a_service_error_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    with Noetl(database_url=NOWHERE) as client:
        for ask in (
            lambda: client.register("small.yaml", text=PLAYBOOK),
            lambda: client.submit("t/small"),
            lambda: client.execution(1),
            lambda: client.executions(),
            lambda: Execution(client, 1).wait(),
            lambda: list(Execution(client, 1).events(follow=True)),
        ):
            with pytest.raises(ServiceError) as refused:
                ask()
            assert "secret" not in str(refused.value)
    client.close()


@pytest.mark.parametrize("execution_id", ["", "x", "-1", "1.0", "٣", str(2**63), "9" * 5000])
def test_what_is_no_execution_id(execution_id: str) -> None:
    with pytest.raises(InputError, match="is no execution id"):
        Noetl(database_url=NOWHERE).execution(execution_id)


def test_a_playbook_is_read_without_services() -> None:
    playbook = read_playbook("small.yaml", text=PLAYBOOK)
    assert playbook.compiled.plan.path == "t/small"
    with pytest.raises(PlaybookInvalid) as refused:
        read_playbook("small.yaml", text=PLAYBOOK.replace("noop", "nope"))
    assert refused.value.problems[0].file == "small.yaml"


class Scripted(Execution):
    """An execution whose looks are given: a status, or an error to raise."""

    def __init__(self, *answers: str | Exception) -> None:
        super().__init__(Noetl(database_url=NOWHERE), 1)
        self._answers = iter(answers)

    def row(self) -> dict[str, Any]:
        return {"status": "PENDING", "error": None}

    def _look(self, steps: bool) -> Snapshot:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return Snapshot(answer)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only by sleeping; the pauses made."""
    pauses: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: 1000.0 + sum(pauses))
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(Noetl, "news", lambda self, execution_id: contextlib.nullcontext(pauses.append))
    return pauses


def test_polling_slows_down(clock: list[float]) -> None:
    assert Scripted(*["RUNNING"] * 20, "COMPLETED").wait() == "COMPLETED"
    waits = clock[:-1]
    assert waits[0] == 0.05
    assert waits == sorted(waits)
    assert waits[-1] == 0.5
    assert clock[-1] == 0


def test_a_wait_ends_at_its_timeout(clock: list[float]) -> None:
    with pytest.raises(WaitTimeout, match="still RUNNING after 3 s"):
        Scripted(*["RUNNING"] * 100).wait(3)
    assert sum(clock) == pytest.approx(3)
    with pytest.raises(WaitTimeout):
        Scripted("RUNNING").wait(0)
    assert Scripted("COMPLETED").wait(0) == "COMPLETED"


def test_a_wait_survives_a_server_that_comes_back(clock: list[float]) -> None:
    away = ServiceError("PostgreSQL is not reachable")
    execution = Scripted("RUNNING", *[away] * 20, "RUNNING", *[away] * 20, "FAILED")
    seen = [(snapshot.status, snapshot.away is not None) for snapshot in execution.watch()]
    assert seen[0] == ("RUNNING", False)
    assert seen[1] == ("RUNNING", True)
    assert seen[-1] == ("FAILED", False)


def test_a_wait_gives_up_on_a_server_that_stays_away(clock: list[float]) -> None:
    with pytest.raises(ServiceError):
        Scripted("RUNNING", *[ServiceError("PostgreSQL is not reachable")] * 1000).wait()
    assert 60 <= sum(clock) < 62


def test_the_asynchronous_twin_has_the_same_shape() -> None:
    hidden = {
        "looks",
        "event_feed",
        "log_feed",
        "outcome",
        "run",
        "read",
        "news",
        "announce",
        "register_playbook",
        "plan",
        "wait_until_under_way",
    }
    for sync, twin in ((Noetl, AsyncNoetl), (Execution, AsyncExecution)):
        for name, method in inspect.getmembers(sync, inspect.isfunction):
            if name.startswith("_") or name in hidden:
                continue
            assert (
                inspect.signature(getattr(twin, name)).parameters.keys() == inspect.signature(method).parameters.keys()
            )


def test_an_asynchronous_wait_can_be_cancelled_and_does_not_block() -> None:
    async def main() -> str:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncExecution(Scripted(*["RUNNING"] * 10_000)).wait(), 0.2)
        waits = [AsyncExecution(Scripted("RUNNING", "COMPLETED")).wait(5) for _ in range(50)]
        return " ".join(set(await asyncio.gather(*waits)))

    assert asyncio.run(main()) == "COMPLETED"


def test_the_package_exports_what_it_says() -> None:
    for name in noetl_celery.__all__:
        assert getattr(noetl_celery, name) is not None
        assert name in dir(noetl_celery)
    with pytest.raises(AttributeError, match="nonsense"):
        noetl_celery.nonsense  # noqa: B018
