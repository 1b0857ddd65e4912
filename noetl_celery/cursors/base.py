"""What a cursor driver is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Verdict = Literal["committed", "aborted", "running", "unknown"]
#: notes the claimed rows and where they were claimed, durably, before the source's own commit
Record = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One ticket to run.

    ``claim``: the rendered claim (SQL, or what the driver takes). ``bindings``: the claim parameters by name.
    ``credential``: the fields of the source's credential. ``budget``: how often to claim at most; the driver stops
    at the first empty answer. ``timeout_seconds`` bounds each statement. ``session``: an open psycopg connection
    with a transaction of ours, given when the source is our own database: the driver then runs in it and commits
    nothing. ``options`` are the cursor's own.
    """

    claim: str
    bindings: Mapping[str, Any]
    credential: Mapping[str, Any]
    timeout_seconds: float
    budget: int = 1
    session: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What came back: rows of each claim that returned any (JSON values), and whether the last one was empty."""

    batches: tuple[tuple[Mapping[str, Any], ...], ...]
    dry: bool

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for batch in self.batches for row in batch]


@runtime_checkable
class Cursor(Protocol):
    """A source that claims frames of rows. One instance serves all threads of a process.

    ``claim`` calls ``record`` exactly once before the claim becomes durable at the source, if it has rows and no
    ``session`` was given. It raises ``ToolError``; after one nothing is claimed, or ``settle`` will know.
    ``settle`` says what became of a source transaction that was recorded: its answer decides whether the rows are
    ours. ``same_place`` says whether the source is the database ``conninfo``, with the same role.
    """

    kind: str

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]: ...

    def same_place(self, credential: Mapping[str, Any], conninfo: str) -> bool: ...

    def claim(self, request: ClaimRequest, record: Record) -> Claimed: ...

    def settle(self, source: Mapping[str, Any], credential: Mapping[str, Any]) -> Verdict: ...
