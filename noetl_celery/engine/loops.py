"""The numbers of a loop and the pace of a cursor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from noetl_celery.engine.decision import ClaimSpec, Reopening, Slice
from noetl_celery.engine.facts import Facts
from noetl_celery.engine.state import LoopSettings, StageState
from noetl_celery.errors import TemplateError
from noetl_celery.playbook.plan import LoopPlan
from noetl_celery.template import Value

PARALLEL_DEFAULT = 16
#: what ``auto`` stands for: more rows, and frames of a cursor, than need to be at work at the pace that is found
AUTO_ROWS, AUTO_FRAMES = 64, 4
#: rows of a frame that is cut from a collection which was never loaded
FRAME_ROWS = 10_000


def loop_settings(loop: LoopPlan, names: Mapping[str, Any]) -> LoopSettings:
    """Renders the numbers of a loop. Raises ``TemplateError`` naming the setting that is no number in its range."""
    frame = loop.frame
    default = PARALLEL_DEFAULT if loop.mode == "parallel" else 1
    auto = AUTO_FRAMES if loop.cursor is not None and frame.given else AUTO_ROWS
    in_flight, paced = 1, False
    if loop.mode != "sequential":
        in_flight, paced = _whole_or_auto(loop.max_in_flight, names, "max_in_flight", default, auto)
    numbers: dict[str, Any] = {
        "max_in_flight": in_flight,
        "paced": paced,
        "lease_seconds": seconds(frame.lease_seconds, names, "loop.spec frame.lease_seconds"),
        "heartbeat_seconds": seconds(frame.heartbeat_seconds, names, "loop.spec frame.heartbeat_seconds"),
        "max_seconds": seconds(frame.max_seconds, names, "loop.spec frame.max_seconds"),
    }
    if loop.cursor is None:
        return LoopSettings(row_concurrency=in_flight, **numbers)
    numbers["reclaim_after"] = seconds(loop.cursor.reclaim_after, names, "loop.cursor reclaim_after")
    if not frame.given:
        # The oldest form: one row a claim. Half of the free budget a ticket, so that two of them alternate.
        return LoopSettings(batch=math.ceil(in_flight / 2), **numbers)
    concurrency, rows_paced = _whole_or_auto(frame.row_concurrency, names, "frame.row_concurrency", 1, AUTO_ROWS)
    numbers["paced"] = paced or rows_paced
    return LoopSettings(
        max_rows=_whole(frame.max_rows, names, "frame.max_rows", 1),
        row_concurrency=concurrency,
        max_bytes=None if frame.max_bytes is None else _whole(frame.max_bytes, names, "frame.max_bytes", 1),
        **numbers,
    )


def due_claims(stage: StageState, new_id: Callable[[], int]) -> list[ClaimSpec]:
    """The claims to issue now, counted into ``stage``; none while the source is dry, drained or at its bound, nor
    while the answer to one is awaited that was to be alone."""
    if stage.kind != "cursor" or stage.stopping or stage.drained or stage.sole or stage.again:
        return []
    if stage.idle:
        # Alone, so that its being empty proves the source empty: no row is at work that could add or return some.
        return [_issue(stage, new_id, sole=True)]
    if stage.dry:
        if not stage.probe or stage.tickets:
            return []
        stage.probe = False
        return [_issue(stage, new_id, sole=False)]
    issued = []
    while stage.slots + stage.claims < stage.settings.max_in_flight:
        issued.append(_issue(stage, new_id, sole=False))
    return issued


def due_slice(stage: StageState) -> Slice | None:
    """The next frame of a collection that was never loaded, counted into ``stage``.

    One frame at a time: so the order of a sequence and ``max_in_flight`` hold, and no transaction makes more rows
    than one frame has.
    """
    if stage.source is None or stage.stopping or stage.open_frames or stage.again or stage.cut >= stage.total:
        return None
    rows = min(FRAME_ROWS, stage.total - stage.cut)
    due = Slice(stage.stage_id, stage.step, stage.settings, stage.frames, stage.source, stage.cut, rows)
    stage.cut += rows
    stage.open_frames += 1
    stage.frames += 1
    stage.slots += 1
    return due


def due_again(stage: StageState, facts: Facts) -> Reopening | None:
    """The frames to open again now, counted into ``stage``: as many as its ``max_in_flight`` has room for."""
    if stage.again is None:
        return None
    statuses = tuple(stage.again["statuses"])
    free = (stage.settings.max_in_flight if stage.kind == "cursor" else 1) - stage.slots
    if free <= 0:
        return None
    found = facts.unfinished(stage, statuses, stage.again["after"], free)
    if not found:
        stage.again = None
        return None
    opened = []
    for frame in found:
        if frame.slots > free and stage.open_frames:
            break
        free -= frame.slots
        stage.open_frames += 1
        stage.slots += frame.slots
        # It tells all its rows once more when it ends.
        stage.ok -= frame.ok
        stage.failed -= frame.failed
        stage.retries -= frame.retries
        stage.again["after"] = frame.frame_id
        opened.append(frame.frame_id)
    return Reopening(stage.stage_id, stage.step, statuses, tuple(opened)) if opened else None


def _issue(stage: StageState, new_id: Callable[[], int], *, sole: bool) -> ClaimSpec:
    settings = stage.settings
    budget = max(1, min(settings.batch, settings.max_in_flight - stage.slots - stage.claims))
    stage.tickets += 1
    stage.claims += budget
    stage.sole = sole
    stage.claimed += 1
    reclaim, stage.reclaim = stage.reclaim, False
    # Any other's budget is counted already: that it was filled changes nothing.
    more = budget > 1 or (sole and settings.max_in_flight > budget)
    return ClaimSpec(new_id(), stage.stage_id, stage.claimed - 1, budget, sole, more, reclaim)


def _whole_or_auto(
    value: Value | None, names: Mapping[str, Any], name: str, default: int, auto: int
) -> tuple[int, bool]:
    """The number, and whether ``auto`` stands for it."""
    raw = default if value is None else value.render(names)
    return (auto, True) if raw == "auto" else (_at_least_one(raw, name, ", or auto"), False)


def _whole(value: Value | None, names: Mapping[str, Any], name: str, default: int) -> int:
    return _at_least_one(default if value is None else value.render(names), name)


def _at_least_one(raw: Any, name: str, other: str = "") -> int:
    try:
        number = int(str(raw))
    except ValueError:
        number = 0
    if number < 1:
        raise TemplateError(f"loop.spec {name} must be a whole number of at least 1{other}, not {raw!r}")
    return number


def seconds(value: Value | None, names: Mapping[str, Any], name: str) -> Any:
    """A time in seconds, None if there is none. Raises ``TemplateError`` for what is no number above 0."""
    if value is None:
        return None
    raw = value.render(names)
    try:
        number = float(str(raw))
    except ValueError:
        number = -1.0
    if not 0 < number < math.inf:
        raise TemplateError(f"{name} must be a number of seconds above 0, not {raw!r}")
    return number
