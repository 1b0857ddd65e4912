"""What the engine may ask about the past of an execution. The store answers from tables, tests from dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from noetl_celery.engine.state import StageState


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed stage: its state at the end, and the arguments that it was entered with."""

    state: StageState
    args: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A frame that has ended, with rows that are to be run again; it has counted ``ok`` and ``failed`` rows so far, and
    their ``retries``."""

    frame_id: int
    slots: int
    ok: int
    failed: int
    retries: int = 0


class Facts(Protocol):
    """Read-only and consistent: everything is answered from the transaction that holds the execution's lock."""

    @property
    def results(self) -> Mapping[str, Any]:
        """Step name → bare result of its last visit; looked up on demand."""

    @property
    def task_results(self) -> Mapping[str, Mapping[str, Any]]:
        """Step name → task name → result, for the steps that some template asks ``<step>.results.<task>`` of."""

    def single(self, stage: StageState) -> Mapping[str, Any]:
        """The envelope of a single stage whose row has ended, plus ``task_results``."""

    def collection(self, stage: StageState) -> Mapping[str, Any]:
        """``{results, data, count, stats}`` of a collection stage whose rows have ended, in the order of its items."""

    def failures(self, stage: StageState, limit: int) -> Sequence[Mapping[str, Any]]:
        """The first failed rows of a stage: ``{index, payload, error}``, by frame and row."""

    def aggregates(self, stage: StageState, frame_id: int) -> Iterable[Mapping[str, Any]]:
        """What the OK rows of a frame gave for ``loop.aggregate``, in row order; each maps names to values."""

    def ctx_writes(self, stage: StageState, frame_id: int) -> Sequence[Mapping[str, Any]]:
        """What the rows of a frame wrote to ``ctx``, in row order; each maps dotted paths to values."""

    def closed(self, stage_id: int) -> Closed | None:
        """A stage that has COMPLETED or FAILED; None if there is no such."""

    def last(self, step: str) -> Closed | None:
        """The last visit of a step, if that has COMPLETED or FAILED and has frames."""

    def unfinished(self, stage: StageState, statuses: Sequence[str], after: int, limit: int) -> Sequence[Unfinished]:
        """The next ended frames of a stage, by id from behind ``after``, with rows that ended in one of ``statuses``.

        Its answer changes when those rows are run again: whoever replays a turn must have kept it.
        """
