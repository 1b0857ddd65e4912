"""What orchestration knows of one execution: loaded under the row lock, changed by ``decide``, written back whole.

It is small whatever the number of rows: one entry per *open* stage and per waiting token. Rows, frames and
results live in their tables; what the engine must know of them reaches it as signals, each consumed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from noetl_celery.errors import NoetlError

ExecutionStatus = Literal["PENDING", "RUNNING", "PAUSED", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]
SignalType = Literal[
    "start",
    "cancel",
    "pause",
    "resume",
    "claim.filled",
    "claim.empty",
    "claim.failed",
    "claim.recalled",
    "frame.done",
    "stage.timeout",
    "stage.reclaim",
    "retry",
]

#: of the stored document: one more where code that does not know the change would decide wrongly. A new key that such
#: code may leave out, and drop, needs none
STATE_VERSION = 1

#: statuses in which an execution changes no more, unless failed work of it is run again
FINAL: frozenset[str] = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


def known(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a stored document that this code knows; a version beside it may have written others."""
    names = kind.__dataclass_fields__
    return {key: value for key, value in document.items() if key in names}


def _values(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Signal:
    """A durable note to an execution, written in the transaction that made it true.

    ``claim.filled`` {stage, claim, budget, frames, slots, dry}; ``claim.empty`` {stage, claim, budget, sole};
    ``claim.failed`` {stage, claim, budget, error}; ``claim.recalled`` {stage, claim, budget, reclaim}: nobody had
    taken it; ``frame.done`` {stage, frame, slots, ok, failed, ctx, retries}; ``cancel`` {reason}; ``stage.timeout``
    and ``stage.reclaim`` (timers) {stage}; ``retry`` {} or {step}: failed work is to be run again; ``start``, ``pause``
    and ``resume`` carry nothing.
    """

    type: SignalType
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The numbers of a loop, rendered when its stage opens. Seconds and bytes; None: no limit."""

    max_in_flight: int = 1
    max_rows: int = 1
    row_concurrency: int = 1
    lease_seconds: float = 120.0
    heartbeat_seconds: float = 30.0
    max_seconds: float | None = None
    max_bytes: int | None = None
    #: claims that one ticket may run (the oldest form: LIMIT 1 and a large ``max_in_flight``)
    batch: int = 1
    #: how often the playbook's stale re-claim runs while the stage is open; None: only when it opens
    reclaim_after: float | None = None
    #: ``auto`` where the playbook could give a number: requests keep to the pace that their targets bear
    paced: bool = False

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> LoopSettings:
        """From its ``document``, written by this version or another one."""
        return cls(**known(cls, raw))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return _values(self)


@dataclass(slots=True)
class StageState:
    """An open stage: where it came from, its loop's numbers and how far it is."""

    stage_id: int
    step: str
    kind: Literal["single", "collection", "cursor"]
    #: ids of the fan-outs that its token descends from, outermost first
    lineage: tuple[int, ...] = ()
    previous: str | None = None
    settings: LoopSettings = field(default_factory=LoopSettings)
    #: claim budget issued and not yet answered; open frames and the slots of ``max_in_flight`` that they hold
    claims: int = 0
    tickets: int = 0
    #: the one ticket that is out was issued when nothing was open: no other goes out before its answer, or its
    #: being empty would prove nothing
    sole: bool = False
    open_frames: int = 0
    slots: int = 0
    frames: int = 0
    ok: int = 0
    failed: int = 0
    #: attempts of its rows that failed and were made again
    retries: int = 0
    #: claims issued so far, to number them
    claimed: int = 0
    #: an empty claim came back while work was open; ``probe``: a frame has ended since, so one more may ask
    dry: bool = False
    probe: bool = False
    #: an empty claim came back that was issued when nothing was open: the source has nothing left
    drained: bool = False
    #: the next claim runs the playbook's stale re-claim first
    reclaim: bool = False
    #: what ``loop.aggregate`` has come to: name → state of its reduction
    aggregate: dict[str, Any] = field(default_factory=dict)
    #: a collection that was never loaded: a reference to it, its length, and how much of it frames were made of
    source: dict[str, Any] | None = None
    total: int = 0
    cut: int = 0
    #: rows that are run again: those that ended in one of ``statuses``, in frames with an id above ``after``
    again: dict[str, Any] | None = None
    #: no new row starts; the stage ends when what runs has ended
    stopping: bool = False
    error: dict[str, Any] | None = None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> StageState:
        """A stage from its ``document``, also after a round trip through JSON."""
        settings = LoopSettings.of(raw.get("settings", {}))
        return cls(**{**known(cls, raw), "lineage": tuple(raw.get("lineage", ())), "settings": settings})

    def document(self) -> dict[str, Any]:
        """For JSON, as it is now."""
        return {**_values(self), "settings": self.settings.document()}

    @property
    def idle(self) -> bool:
        """Nothing of this stage runs or is under way."""
        return self.tickets == 0 and self.open_frames == 0


@dataclass(slots=True)
class Waiting:
    """A token held before a step because another one of its fan-out may still reach that step."""

    step: str
    lineage: tuple[int, ...]
    previous: str | None = None
    args: dict[str, Any] | None = None
    #: brought here by a back edge: never held, never merged
    back: bool = False


@dataclass(slots=True)
class ExecutionState:
    """One execution as orchestration sees it. ``ctx`` and ``error`` have columns, the rest is one document."""

    execution_id: int
    status: ExecutionStatus = "PENDING"
    workload: Mapping[str, Any] = field(default_factory=dict)
    ctx: dict[str, Any] = field(default_factory=dict)
    #: the first failure that no arc handled; its presence means that no new stage starts
    error: dict[str, Any] | None = None
    #: stages whose failure no arc handled
    failed: list[int] = field(default_factory=list)
    stages: dict[int, StageState] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    paused: bool = False
    cancelling: bool = False
    #: ``iter`` of the row that called this playbook; None if none did
    parent_iter: Mapping[str, Any] | None = None
    #: how many callers are above it
    depth: int = 0
    #: how often each step was entered, to number its visits
    visits: dict[str, int] = field(default_factory=dict)
    #: how many turns have been decided
    turns: int = 0

    def document(self) -> dict[str, Any]:
        """The part stored as one JSON document; ``restore`` is its inverse."""
        return {
            "version": STATE_VERSION,
            "stages": [stage.document() for stage in self.stages.values()],
            "waiting": [_values(token) for token in self.waiting],
            "failed": self.failed,
            "paused": self.paused,
            "cancelling": self.cancelling,
            "visits": self.visits,
            "turns": self.turns,
        }

    def restore(self, document: Mapping[str, Any]) -> None:
        """Fills this state from a stored ``document`` (empty for an execution that has not started).

        Raises ``NoetlError`` for one of a version that this code does not know.
        """
        version = document.get("version", STATE_VERSION)
        if version > STATE_VERSION:
            text = f"its state has version {version}, this noetl-celery knows {STATE_VERSION}"
            raise NoetlError(text, hint="upgrade noetl-celery on this machine")
        for raw in document.get("stages", ()):
            stage = StageState.of(raw)
            self.stages[stage.stage_id] = stage
        self.waiting = [
            Waiting(**{**known(Waiting, raw), "lineage": tuple(raw.get("lineage", ()))})
            for raw in document.get("waiting", ())
        ]
        self.failed = list(document.get("failed", ()))
        self.paused = bool(document.get("paused", False))
        self.cancelling = bool(document.get("cancelling", False))
        self.visits = dict(document.get("visits", {}))
        # One that was begun by a version that kept no turns has had at least one.
        self.turns = int(document.get("turns", 1 if document else 0))
