"""Whoever waits is told once what does not mend itself, and nothing while things get on."""

from __future__ import annotations

from typing import Any, cast

import pytest

from noetl_celery.cli import waiting
from noetl_celery.cli.waiting import QUIET_SECONDS, Waiting
from noetl_celery.errors import ServiceError
from noetl_celery.execution import Execution
from noetl_celery.explanation import Reason
from noetl_celery.report import Snapshot

PENDING = Snapshot("PENDING")


class Asked:
    """An execution that explains itself, and counts how often it is asked."""

    def __init__(self, *reasons: Reason, error: ServiceError | None = None) -> None:
        self.reasons, self.error, self.times = list(reasons), error, 0

    def explain(self) -> list[Reason]:
        self.times += 1
        if self.error:
            raise self.error
        return self.reasons


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def looks(asked: Asked, clock: list[float], *snapshots: Snapshot, pause: float = QUIET_SECONDS) -> None:
    watched = Waiting(cast(Execution, asked))
    for snapshot in snapshots:
        watched.look(snapshot)
        clock[0] += pause


def test_what_is_to_be_done_is_said_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    asked = Asked(Reason("it is on its way"), Reason("no worker is there", "start one"), Reason("more", "later"))
    looks(asked, clock, *[PENDING] * 12)
    assert capsys.readouterr().err == "warning: no worker is there → start one\n"
    assert 1 < asked.times < 5


def test_the_step_is_named(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    looks(Asked(Reason("a lane waits", "start one", "drain")), clock, PENDING, PENDING)
    assert capsys.readouterr().err == "warning: drain: a lane waits → start one\n"


@pytest.mark.parametrize(
    "snapshots",
    [
        (PENDING, Snapshot("RUNNING"), PENDING, Snapshot("RUNNING")),
        (Snapshot("COMPLETED"), Snapshot("COMPLETED")),
        (Snapshot("PENDING", away="gone"), Snapshot("PENDING", away="gone")),
        (PENDING,),
    ],
)
def test_nobody_is_asked_while_things_change(
    snapshots: tuple[Snapshot, ...], clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(Reason("x", "y"))
    looks(asked, clock, *snapshots)
    assert (asked.times, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize("fault", [{"reasons": [Reason("at work")]}, {"error": ServiceError("away")}])
def test_nothing_is_said_where_nothing_is_to_be_done(
    fault: dict[str, Any], clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(*fault.get("reasons", []), error=fault.get("error"))
    looks(asked, clock, PENDING, PENDING, PENDING)
    assert asked.times
    assert capsys.readouterr().err == ""
