"""Fault points: named, armed through the environment, and nothing but a look-up otherwise."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from noetl_celery import faults
from noetl_celery.faults import FaultInjected

Arm = Callable[[str], None]


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Arm:
    def _arm(text: str) -> None:
        monkeypatch.setenv("NOETL_FAULT", text)
        monkeypatch.setattr(faults, "_armed", None)
        monkeypatch.setattr(faults, "_visits", Counter())

    return _arm


def test_a_point_that_is_not_armed_does_nothing(arm: Arm) -> None:
    arm("")
    for point in faults.POINTS:
        faults.reached(point)


def test_error_raises_at_the_first_visit_by_default_and_only_then(arm: Arm) -> None:
    arm("claim.committed:error")
    faults.reached("lane.flushed")
    with pytest.raises(FaultInjected, match=r"claim\.committed"):
        faults.reached("claim.committed")
    faults.reached("claim.committed")


@pytest.mark.parametrize("nth", [1, 2, 5])
def test_error_raises_at_the_visit_that_was_asked_for(arm: Arm, nth: int) -> None:
    arm(f"claim.committed:error:{nth}")
    for _ in range(nth - 1):
        faults.reached("claim.committed")
    with pytest.raises(FaultInjected):
        faults.reached("claim.committed")
    faults.reached("claim.committed")


def test_several_points_count_by_themselves(arm: Arm) -> None:
    arm("claim.committed:error:2,lane.flushed:error")
    faults.reached("claim.committed")
    with pytest.raises(FaultInjected):
        faults.reached("lane.flushed")
    with pytest.raises(FaultInjected):
        faults.reached("claim.committed")


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_kill_and_stop_send_their_signal_to_this_process(
    arm: Arm, monkeypatch: pytest.MonkeyPatch, action: str, number: int
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(faults.os, "kill", lambda pid, signum: sent.append((pid, signum)))
    arm(f"lane.flushed:{action}")
    faults.reached("lane.flushed")
    assert sent == [(os.getpid(), number)]


@pytest.mark.parametrize("text", ["no.such.point:error", "lane.flushed:explode", "no.such.point:kill:2"])
def test_an_unknown_point_or_action_is_refused(arm: Arm, text: str) -> None:
    arm(text)
    with pytest.raises(ValueError, match="no such point or action"):
        faults.reached("lane.flushed")


def test_every_point_is_somewhere_in_the_code() -> None:
    from test_architecture import MODULES, name

    text = "".join(path.read_text() for path in MODULES if name(path) != "faults.py")
    assert [point for point in faults.POINTS if f'"{point}"' not in text] == []
