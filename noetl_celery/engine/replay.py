"""Turns as they are kept in the events, and how an execution is rebuilt from them.

A turn is one call of ``decide``. Its record holds what the function was given and the tables do not keep: the signals,
the ids that it drew, the time, and answers that change later. The rest of what it asked (results, outcomes of rows) is
answered from the tables when it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any, cast

from noetl_celery.engine.decide import decide
from noetl_celery.engine.decision import Decision
from noetl_celery.engine.facts import Facts, Unfinished
from noetl_celery.engine.state import FINAL, ExecutionState, Signal, StageState
from noetl_celery.playbook.plan import Plan

#: the type of the event that keeps a turn
TURN = "playbook.decided"


class Turn:
    """One turn while it is decided: notes the ids drawn and the answers that change later."""

    def __init__(self, signals: Sequence[Signal], now: datetime, new_id: Callable[[], int]) -> None:
        self._signals, self._now, self._new_id = signals, now, new_id
        self._ids: list[int] = []
        self._unfinished: list[list[Unfinished]] = []
        self._retried = False

    def decide(self, plan: Plan, state: ExecutionState, facts: Facts) -> Decision:
        """Calls :func:`~noetl_celery.engine.decide.decide`, and remembers."""
        ended = state.status in FINAL
        decision = decide(plan, state, self._signals, _asking(facts, self._ask(facts)), self._draw, self._now)
        self._retried = any(event.type == "playbook.retried" for event in decision.events)
        # What comes after the end is no turn, unless it opens work again.
        state.turns += 0 if ended and not self._retried else 1
        return decision

    def record(self, state: ExecutionState) -> dict[str, Any]:
        """What is to be kept of the turn, as JSON; ``state`` is what it left."""
        kept: dict[str, Any] = {
            "turn": state.turns,
            "signals": [[signal.type, signal.data] for signal in self._signals],
            "ids": self._ids,
            "now": self._now.isoformat(),
        }
        if self._unfinished:
            kept["unfinished"] = [[astuple(frame) for frame in answer] for answer in self._unfinished]
        if self._retried:
            # Rows have lost their outcomes: what was decided on them cannot be replayed any more, what follows can.
            kept["state"] = whole(state)
        return kept

    def _draw(self) -> int:
        self._ids.append(self._new_id())
        return self._ids[-1]

    def _ask(self, facts: Facts) -> Callable[..., list[Unfinished]]:
        def unfinished(stage: StageState, statuses: Sequence[str], after: int, limit: int) -> list[Unfinished]:
            self._unfinished.append(list(facts.unfinished(stage, statuses, after, limit)))
            return self._unfinished[-1]

        return unfinished


def whole(state: ExecutionState) -> dict[str, Any]:
    """All of an execution that turns change, as JSON."""
    return {"status": state.status, "ctx": state.ctx, "error": state.error, "document": state.document()}


def since_the_last_retry(records: Sequence[Mapping[str, Any]]) -> int:
    """The place of the first turn that can be replayed: behind the last one that ran failed work again."""
    return max((place + 1 for place, record in enumerate(records) if "state" in record), default=0)


def replay(plan: Plan, state: ExecutionState, record: Mapping[str, Any], facts: Facts) -> Decision:
    """Decides a turn again, on the ``state`` that the turn before it left.

    Raises ``LookupError`` if it is not the next turn, or draws more ids or asks more than it did.
    """
    if record["turn"] != state.turns + 1:
        raise LookupError(f"turn {record['turn']} follows turn {state.turns}")
    signals = [Signal(type_, data) for type_, data in record["signals"]]
    ids = _in_order(record["ids"], "id")
    answers = _in_order(record.get("unfinished", ()), "answer")

    def unfinished(*_: Any) -> list[Unfinished]:
        return [Unfinished(*frame) for frame in answers()]

    state.turns += 1
    return decide(plan, state, signals, _asking(facts, unfinished), ids, datetime.fromisoformat(record["now"]))


def _in_order(kept: Iterable[Any], what: str) -> Callable[[], Any]:
    left: Iterator[Any] = iter(kept)

    def following() -> Any:
        for value in left:
            return value
        raise LookupError(f"it asks for one {what} more than were kept")

    return following


class _Asking:
    """Facts of which one answer comes from elsewhere."""

    def __init__(self, facts: Facts, unfinished: Callable[..., list[Unfinished]]) -> None:
        self._facts, self.unfinished = facts, unfinished

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)


def _asking(facts: Facts, unfinished: Callable[..., list[Unfinished]]) -> Facts:
    return cast(Facts, _Asking(facts, unfinished))
