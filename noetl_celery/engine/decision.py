"""What ``decide`` asks for. The store writes it in one transaction; the runtime publishes after the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from noetl_celery.engine.state import LoopSettings, SignalType


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the execution's story. ``stage_id`` and ``node`` where it belongs to a step."""

    type: str
    status: str | None = None
    node: str | None = None
    stage_id: int | None = None
    result: Any = None
    context: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    #: what kind of node: the tool, ``loop``, ``router`` or ``playbook``
    node_type: str | None = None
    #: type of the event of the same stage that this one belongs to
    parent: str | None = None
    #: the books' own: its context is kept as it is, whatever its size, and it is shown only to who asks for all events
    book: bool = False


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A ticket to ask the source of a cursor stage up to ``budget`` times.

    ``sole``: nothing of the stage was open when it was issued, so an empty answer drains it.
    ``more``: further claims may be due as soon as this one is filled; else there is time for that until its frame ends.
    """

    claim_id: int
    stage_id: int
    index: int
    budget: int = 1
    sole: bool = True
    more: bool = False
    #: the stale re-claim runs first
    reclaim: bool = False


@dataclass(frozen=True, slots=True)
class Timer:
    """A signal to this execution that is due in ``seconds``."""

    type: SignalType
    stage_id: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Opening:
    """A stage to open; ``items`` (single: one row, collection: its elements) become one frame.

    None for a cursor, and for a collection that becomes frames slice by slice. ``total``: the elements of a collection.
    """

    stage_id: int
    step: str
    visit: int
    kind: Literal["single", "collection", "cursor"]
    settings: LoopSettings
    previous: str | None
    args: Mapping[str, Any] | None
    items: Sequence[Any] | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """The next frame of a collection that was never loaded: ``rows`` elements of ``source`` from ``start`` on.

    ``source`` is a reference to the whole list; ``index`` numbers the frame.
    """

    stage_id: int
    step: str
    settings: LoopSettings
    index: int
    source: Mapping[str, Any]
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Closing:
    """A stage to close. ``result`` is what its step's name means from now on."""

    stage_id: int
    step: str
    status: Literal["COMPLETED", "FAILED", "CANCELLED"]
    result: Any = None
    task_results: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    ok: int = 0
    failed: int = 0
    frames: int = 0
    retries: int = 0
    #: its ``StageState``, to go on with if its rows are run again
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reopening:
    """Ended frames of a stage to open again, and the stage with them if it is closed.

    Their rows that ended in one of ``statuses`` are READY as at the beginning.
    """

    stage_id: int
    step: str
    statuses: tuple[str, ...]
    frames: tuple[int, ...] = ()


@dataclass(slots=True)
class Decision:
    """Everything that one call of ``decide`` asks for, in the order in which it came up."""

    openings: list[Opening] = field(default_factory=list)
    reopenings: list[Reopening] = field(default_factory=list)
    closings: list[Closing] = field(default_factory=list)
    claims: list[ClaimSpec] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    #: stages whose tickets that nobody took are to be taken back
    recalls: list[int] = field(default_factory=list)
    #: stages whose rows that have not started are to be given up
    stops: list[int] = field(default_factory=list)
    #: stages whose running children are to be cancelled
    cancels: list[int] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    #: ``ctx`` changed and must be written
    ctx_changed: bool = False
