"""What the simulated playbooks work on: queues to claim from, and task bodies that fail in repeatable ways."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl_celery.errors import ErrorInfo
from noetl_celery.outcome import Outcome


@dataclass(frozen=True)
class SourceSpec:
    """``items`` to begin with; some of them enqueue children, some go back to pending, while they are worked on."""

    items: int = 0
    grows: bool = False
    returns: bool = False


def share(*parts: object) -> float:
    """A number of [0, 1) that depends on ``parts`` only."""
    return zlib.crc32(":".join(map(str, parts)).encode()) / 2**32


@dataclass
class Source:
    """The work queue of one stage, with transactions: what one has locked, others pass over."""

    spec: SourceSpec
    name: str
    pending: list[str] = field(default_factory=list)
    leases: dict[str, int] = field(default_factory=dict)
    locked: dict[int, list[str]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    done: set[tuple[str, int]] = field(default_factory=set)
    #: left leased by others that are gone, until a re-claim frees one after the other
    stale: list[str] = field(default_factory=lambda: ["stale-1", "stale-2", "stale-3"])
    reclaims: int = 0

    def __post_init__(self) -> None:
        self.pending = [str(number) for number in range(self.spec.items)]

    @property
    def quiet(self) -> bool:
        return not self.pending and not self.locked

    def reclaim(self) -> None:
        """Frees the next of the items that others have left."""
        self.reclaims += 1
        self.pending += self.stale[:1]
        del self.stale[:1]

    def lock(self, transaction: int, limit: int) -> list[dict[str, Any]]:
        """Picks up to ``limit`` pending items inside a transaction; they are leased when it commits."""
        picked, self.pending = self.pending[:limit], self.pending[limit:]
        if picked:
            self.locked[transaction] = picked
        return [{"id": item, "lease": self.leases.get(item, 0) + 1} for item in picked]

    def commit(self, transaction: int) -> None:
        for item in self.locked.pop(transaction, ()):
            self.leases[item] = self.leases.get(item, 0) + 1
        self.committed.add(transaction)

    def rollback(self, transaction: int) -> None:
        self.pending = self.locked.pop(transaction, []) + self.pending

    def effect(self, payload: Mapping[str, Any]) -> None:
        """What a body does to the queue: at least once for a lease, with the effect of once."""
        item, lease = payload["id"], payload["lease"]
        if (item, lease) in self.done:
            return
        self.done.add((item, lease))
        chance = share(self.name, item)
        if self.spec.grows and lease == 1 and item.count(".") < 2 and chance < 0.4:
            self.pending.append(f"{item}.1")
        if self.spec.returns and lease < 3 and chance > 0.6:
            self.pending.append(item)


def call(flaw: str, attempt: int, *key: object) -> Outcome:
    """A task's outcome: repeatable for the same key and attempt, whoever runs it and however often."""
    chance = share(*key)
    if flaw == "hopeless" or (flaw == "fails" and chance < 0.3):
        return Outcome(error=ErrorInfo("bad", "it cannot be done"))
    if flaw == "flaky" and attempt <= int(chance * 3):
        return Outcome(error=ErrorInfo("server_error", "try again", status=503, retryable=True))
    if flaw == "throttles" and attempt <= int(chance * 3):
        return Outcome(error=ErrorInfo("rate_limit", "slow down", status=429, retryable=True, retry_after=20))
    return Outcome({"n": int(chance * 100)})
