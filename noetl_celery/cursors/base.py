"""What a cursor driver is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from noetl_celery.errors import ErrorInfo, ToolError

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
    nothing. ``options`` are the cursor's own. ``reclaim``: a rendered statement to run before the claim, which sets
    free what workers that died have left leased; None for most claims. ``count``: a rendered query for the number of
    rows there are, for progress only; None for all claims but the first.

    ``ticket`` is the same for all attempts at this claim, also after a crash, and nobody else's. An attempt whose
    process stands still for ``lease_seconds`` is given up, and the next one begins: what it may still hold at the
    source must not be passed over by that.
    """

    claim: str
    bindings: Mapping[str, Any]
    credential: Mapping[str, Any]
    timeout_seconds: float
    budget: int = 1
    session: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reclaim: str | None = None
    count: str | None = None
    ticket: int | None = None
    lease_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """What came back: rows of each claim that returned any (JSON values), and whether the last one was empty.

    ``total`` is the answer to ``count``, None if it was not asked or not answered.
    """

    batches: tuple[tuple[Mapping[str, Any], ...], ...]
    dry: bool
    total: int | None = None

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for batch in self.batches for row in batch]


@runtime_checkable
class Cursor(Protocol):
    """A source that claims frames of rows. One instance serves all threads of a process.

    A driver may subclass this class, and then leave out ``acknowledges`` and ``acknowledge``; it need not.
    """

    kind: str
    #: whether the source wants to be told which rows are done; ``acknowledge`` is called only if it is True
    acknowledges: bool = False

    def check(self, config: Mapping[str, Any]) -> Sequence[tuple[str | None, str]]:
        """What is wrong with ``loop.cursor`` as written (templates unrendered), as ``(key or None, message)`` pairs."""
        ...

    def same_place(self, credential: Mapping[str, Any], conninfo: str) -> bool:
        """Whether the source is the database ``conninfo``, with the same role: the claim then gets our ``session``."""
        ...

    def claim(self, request: ClaimRequest, record: Record) -> Claimed:
        """Claims up to ``request.budget`` times, and not again after an empty answer.

        Calls ``record`` exactly once, with all rows, if there are any and no ``session`` was given: before the claim
        becomes durable at the source, or, where a source has no commit, after it has handed the rows out and before
        this returns. Raises ``ToolError``; after one nothing is claimed, or ``settle`` knows, or the source itself
        hands the rows out again.
        """
        ...

    def settle(self, source: Mapping[str, Any], credential: Mapping[str, Any]) -> Verdict:
        """What became of a claim that was recorded and never confirmed; ``source`` is what ``record`` was given.

        ``committed``: the rows are ours; ``aborted``: they are not, and the claim is run again; ``running``: asked
        again later; ``unknown``: nobody can tell. May be asked any number of times. Raises ``ToolError`` while the
        source cannot be asked.
        """
        ...

    def acknowledge(
        self,
        claim: str,
        options: Mapping[str, Any],
        credential: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Tells the source that these rows need not be handed out again.

        Called after their outcomes are durable, and outside of any transaction of ours. ``claim``, ``options`` and
        ``credential`` are those of the request that claimed them, ``rows`` as it returned them. May be called again
        with the same rows. Raises ``ToolError`` if the source does not answer: the rows are then handed out again.
        """

    def dead_letter(
        self,
        statement: str,
        options: Mapping[str, Any],
        credential: Mapping[str, Any],
        row: Mapping[str, Any],
        error: Mapping[str, Any],
    ) -> None:
        """Puts a row that failed for good where ``statement`` (rendered) says; ``row`` is its ``iter``.

        At least once: a row may come again after a crash. Raises ``ToolError``.
        """
        raise ToolError(ErrorInfo("config", f"cursor kind `{self.kind}` knows no dead letters"))


@runtime_checkable
class Keeper(Protocol):
    """A cursor whose source hands out again what it has not heard of for a while. It has this beside all of
    :class:`Cursor`, and ``acknowledges``."""

    def keep(self, request: ClaimRequest, rows: Sequence[Mapping[str, Any]]) -> float:
        """Tells the source that these rows wait or are at work here, and are not to be handed to anybody else.

        ``request`` has the claim, the options and the credential of the one that claimed them, and ``execution_id``
        among its bindings. Called outside of any transaction of ours, by every lane that works on a frame. Returns the
        seconds after which it wants to be told again. Raises ``ToolError`` if the source does not answer.
        """
        ...
